"""The file format of policies, checkpoints and replays: named arrays, a JSON header and a digest, as safetensors.

    offset   bytes  what
         0       8  length h of the next part, little-endian
         8       h  JSON (UTF-8), padded with blanks to a multiple of 8:
                      "__metadata__"    "sha256"   digest of all bytes of the file, with zeros in its own place
                                        "format"   "asyncrl policy", "asyncrl checkpoint" or "asyncrl replay"
                                        "version"  "2"
                                        "header"   JSON: the header
                      name of an array  "dtype", "shape", "data_offsets"
       8+h          the arrays in the order of that table, without gaps

Any safetensors reader opens a file. The library itself is not used: it has no digest, writes from memory only, and maps
no array. "sha256" comes first and has a fixed place, so that it is checked whatever the JSON says, and is written after
arrays that are streamed.

A file is treated as untrusted input, since anybody can write one with a valid digest. Its sizes are compared with the
file's before anything of that size is read, every failed check raises ASYNC019, and no part is a pickle that is
unpickled here: `torch.load` silently returned wrong numbers for 300 of 300 single flipped bits, and excludes code only
by an allow-list.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import AsyncRLError, CheckpointError, error_text, printable
from asyncrl.storage.atomic_file import replaced_atomically
from asyncrl.version import __version__

FORMAT_VERSION = "2"
MAX_HEADER_BYTES = 32 << 20
"""Limit of the JSON's length: the bounds of a box of a hundred thousand actions fit."""
_DTYPES = {
    "BOOL": "bool",
    **{f"U{8 * size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{f"I{8 * size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"float{8 * size}" for size in (2, 4, 8)},
}
_DTYPE_NAMES = {numpy_name: name for name, numpy_name in _DTYPES.items()}
_START = b'{"__metadata__":{"sha256":"'
_ZEROS = "0" * 64
_LENGTH = struct.Struct("<Q")
_DIGEST = slice(_LENGTH.size + len(_START), _LENGTH.size + len(_START) + len(_ZEROS))
_FORMAT_1 = (b"ASYNCRL\0", b"ASYNCRR\0")
"""First bytes of the checkpoints and replays of format version 1, which no release wrote."""

Parsed = TypeVar("Parsed")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class FileKind:
    """Kind of file.

    Attributes:
        name: its name in the header.
        what: its name in errors.
        advice: returns what to do instead of reading a damaged file, by its path.
    """

    name: str
    what: str
    advice: Callable[[Path], str]


@dataclass(frozen=True)
class StoredArray:
    """One array to write.

    Attributes:
        name: unique name in the file.
        dtype: NumPy dtype name.
        shape: shape, in C order.
        pieces: returns an iterator over consecutive parts of the array, in C order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Place:
    """Place of an array in a file: `offset` counts from the file's beginning."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


class _Damage(Exception):
    """A failed check of the bytes."""

    def __init__(self, check: str, how: str) -> None:
        super().__init__(how)
        self.check = check


def stored(arrays: Mapping[str, NDArray[Any]]) -> list[StoredArray]:
    """Arrays in memory as arrays to write."""
    return [
        StoredArray(name, str(array.dtype), array.shape, lambda array=array: iter((array,)))  # type: ignore[misc]
        for name, array in arrays.items()
    ]


def write_tensors(
    path: Path, kind: FileKind, header: Mapping[str, Any], arrays: Sequence[StoredArray]
) -> None:
    """Write a file atomically, see `replaced_atomically`; arrays are streamed, piece by piece.

    Args:
        path: the file; its directory must exist.
        kind: the kind of file.
        header: JSON values.
        arrays: the arrays. The widest dtypes are written first, so that every array is aligned.

    Raises:
        OSError: the file cannot be written.
        TypeError: the header is no JSON, or an array's dtype is not one of the format's.
    """
    arrays = sorted(arrays, key=lambda array: -np.dtype(array.dtype).itemsize)
    start = _encoded_table(kind, header, arrays)
    digest = hashlib.sha256(start)
    with replaced_atomically(path) as file:
        file.write(start)
        for array in arrays:
            written = 0
            for piece in array.pieces():
                block = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                digest.update(block)
                file.write(block)
                written += block.nbytes
            assert written == array.nbytes, f"{array.name} has {written} bytes, {array.nbytes} were promised"
        file.seek(_DIGEST.start)
        file.write(digest.hexdigest().encode())


def _encoded_table(kind: FileKind, header: Mapping[str, Any], arrays: Sequence[StoredArray]) -> bytes:
    """Encode everything before the arrays, with zeros for the digest."""
    metadata = {
        "sha256": _ZEROS,
        "format": f"asyncrl {kind.name}",
        "version": FORMAT_VERSION,
        "header": json.dumps(header),
    }
    table: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    for array in arrays:
        if array.dtype not in _DTYPE_NAMES:
            raise TypeError(
                f"dtype of {array.name} must be one of {', '.join(_DTYPE_NAMES)}, got {array.dtype}"
            )
        end = begin + array.nbytes
        table[array.name] = {
            "dtype": _DTYPE_NAMES[array.dtype],
            "shape": array.shape,
            "data_offsets": (begin, end),
        }
        begin = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def read_tensors(
    path: Path, kind: FileKind, parse: Callable[[Any, Shapes], Parsed], *, mapped: bool = False
) -> tuple[Parsed, dict[str, NDArray[Any]]]:
    """Read a file; runs no code of it.

    Args:
        path: the file.
        kind: the expected kind.
        parse: makes a record from the header and the shapes of the arrays, before digest and arrays are read. An
            AttributeError, LookupError, TypeError, ValueError or RecursionError of it refuses the header.
        mapped: map the arrays read-only, in place of reading them.

    Returns:
        The result of `parse`, and the arrays by name; the caller's own unless mapped.

    Raises:
        CheckpointError: the file is missing, damaged, of another kind or of another format version (ASYNC019; the text
            names the file and the check that failed); or whatever `parse` raises.
    """
    with _opened(path, kind) as (file, size):
        try:
            metadata, places = _table(path, file, size, kind)
            try:
                shapes = {name: place.shape for name, place in places.items()}
                parsed = parse(json.loads(metadata["header"]), shapes)
            except AsyncRLError:  # a reason of its own
                raise
            except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
                _check_digest(file)
                what = (
                    f"the header of {kind.what} is not one that asyncrl {__version__} writes: {short(error)}"
                )
                raise refused(path, what, "header", "load it with the asyncrl that wrote it") from None
            _check_digest(file)
            return parsed, {name: _array(file, place, mapped) for name, place in places.items()}
        except _Damage as damage:
            raise refused(
                path, f"{kind.what} is damaged: {damage}", damage.check, kind.advice(path)
            ) from None


def begins_as(path: Path, kind: FileKind) -> bool:
    """Whether a file begins like one of `kind`; False if it cannot be read."""
    expected = f'","format":"asyncrl {kind.name}"'.encode()
    with contextlib.suppress(CheckpointError), _opened(path, kind) as (file, _):
        start = file.read(_DIGEST.stop + len(expected))
        return start[_LENGTH.size : _DIGEST.start] == _START and start[_DIGEST.stop :] == expected
    return False


def is_whole(path: Path, kind: FileKind) -> bool:
    """Whether a file has the format, version, sizes and digest of a complete one of `kind`."""
    with contextlib.suppress(CheckpointError, _Damage), _opened(path, kind) as (file, size):
        _table(path, file, size, kind)
        _check_digest(file)
        return True
    return False


def refused(path: Path, what: str, check: str, fix: str) -> CheckpointError:
    """Make the error ASYNC019 of a file that failed a check."""
    return CheckpointError(what, facts={"file": path, "failed check": check}, fix=fix)


def short(error: Exception) -> str:
    """First sentence of an exception's text, at most 200 characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, KeyError) and error.args:
        return f"it lacks {printable(repr(error.args[0]), 200)}"
    text = " ".join(error_text(error).split())
    return printable(text.split(". ")[0], 200) or type(error).__name__


@contextlib.contextmanager
def _opened(path: Path, kind: FileKind) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file that anybody may have made; yields it and its size.

    Raises:
        CheckpointError: it is no regular file, or cannot be opened or read (ASYNC019).
    """
    reason = "the path has a NUL character" if "\0" in str(path) else "it is not a file"
    error: OSError | None = None
    try:
        if "\0" not in str(path):
            # O_NONBLOCK: opening a pipe without a writer would block.
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode):
                    yield file, status.st_size
                    return
    except OSError as caught:
        error, reason = caught, caught.strerror or error_text(caught)
    fix = "check the path; `asyncrl ls` lists the runs of a folder"
    raise refused(path, f"{kind.what} cannot be read: {reason}", "open", fix) from error


def _table(
    path: Path, file: IO[bytes], size: int, kind: FileKind
) -> tuple[Mapping[str, Any], dict[str, _Place]]:
    """Read the metadata and the places of the arrays; their sizes add up to the file's."""
    start = file.read(_DIGEST.stop)
    if start[: _LENGTH.size] in _FORMAT_1:
        raise _another_version(path, kind, "1")
    if len(start) < _DIGEST.stop:
        raise _Damage("length", f"{size} bytes are there, a header alone has more than {_DIGEST.stop}")
    (length,) = _LENGTH.unpack_from(start)
    if start[_LENGTH.size : _LENGTH.size + 1] != _START[:1]:
        raise _Damage("header", "it is not a file that asyncrl wrote")
    if length > min(size - _LENGTH.size, MAX_HEADER_BYTES):
        most = f"{size - _LENGTH.size} are there, at most {MAX_HEADER_BYTES} are read"
        raise _Damage("length", f"the header has {length} bytes, {most}")
    try:
        table = json.loads(start[_LENGTH.size :] + file.read(_LENGTH.size + length - _DIGEST.stop))
        metadata = dict(table.pop("__metadata__"))
        if metadata["format"] != f"asyncrl {kind.name}":
            raise ValueError(f"its format is {printable(str(metadata['format']), 40)}")
        if (version := str(metadata["version"])) != FORMAT_VERSION:
            raise _another_version(path, kind, version)
        if start[_LENGTH.size : _DIGEST.start] != _START:
            raise ValueError("it does not begin with its digest")
        places = _places(table, _LENGTH.size + length)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _Damage("header", f"it is not a file that asyncrl wrote, {short(error)}") from None
    end = max((p.offset + _nbytes(p) for p in places.values()), default=_LENGTH.size + length)
    if end != size:
        raise _Damage("length", f"{size} bytes are there, {end} were written")
    return metadata, places


def _places(table: Mapping[str, Any], begin: int) -> dict[str, _Place]:
    """Places of arrays, one after the other from `begin` on. Raises an error if asyncrl writes no such table."""
    places: dict[str, _Place] = {}
    first = begin
    for name, entry in table.items():
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        if any(type(n) is not int or not 0 <= n < 1 << 48 for n in shape) or len(shape) > 32:
            raise ValueError(f"the shape of {printable(name, 40)} is {printable(str(shape), 80)}")
        places[name] = place = _Place(dtype, shape, begin)
        if entry["data_offsets"] != [begin - first, begin - first + _nbytes(place)]:
            raise ValueError(f"{printable(name, 40)} has another size or place than its shape")
        begin += _nbytes(place)
    return places


def _nbytes(place: _Place) -> int:
    return math.prod(place.shape) * place.dtype.itemsize


def _array(file: IO[bytes], place: _Place, mapped: bool) -> NDArray[Any]:
    if not _nbytes(place):
        return np.empty(place.shape, place.dtype)
    if mapped:
        return np.memmap(file, place.dtype, "r", place.offset, place.shape)
    file.seek(place.offset)
    return np.fromfile(file, place.dtype, math.prod(place.shape)).reshape(place.shape)


def _check_digest(file: IO[bytes]) -> None:
    """Compare the digest with that of all other bytes, read in chunks of 1 MiB."""
    file.seek(0)
    start = file.read(_DIGEST.stop)
    digest = hashlib.sha256(start[: _DIGEST.start] + _ZEROS.encode())
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    if digest.hexdigest().encode() != start[_DIGEST]:
        raise _Damage("SHA-256", "the bytes are not those that were written")


def _another_version(path: Path, kind: FileKind, version: str) -> CheckpointError:
    reads = f"this asyncrl {__version__} reads {FORMAT_VERSION}"
    what = f"{kind.what} has format version {printable(version, 20)}, {reads}"
    return refused(path, what, "format version", "load it with the asyncrl that wrote it")
