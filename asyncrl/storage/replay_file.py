"""File of a checkpoint's rows, beside the checkpoint: experience rings, priorities and the actors' states.

    offset   bytes  what
         0       8  magic, "ASYNCRR" and a zero byte
         8      32  SHA-256 of everything after it
        40       8  length h of the header
        48       h  header: JSON (UTF-8), every array's name, dtype, shape
      48+h          the arrays, one after the other, without gaps

Rows are written directly from shared memory, piece by piece, and read by mapping the file, so that a replay of
gigabytes is never copied in memory. The file gets its name by a rename, after its bytes are synced. Reading it executes
no code; an actor's state is a pickle, which only that actor's next incarnation unpickles.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import CheckpointError
from asyncrl.storage.checkpoint_format import DIGEST_END, digest_of, replaced_atomically

MAGIC = b"ASYNCRR\0"
SUFFIX = ".replay"
_PREFIX = struct.Struct("<8s32sQ")
_MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class RowArray:
    """One array of the file.

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


def write_rows(path: Path, arrays: list[RowArray]) -> None:
    """Write a file atomically, see `replaced_atomically`.

    Raises:
        OSError: it does not fit on the disk (checked before the first byte), or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)  # the run directory may have been removed
    needed, free = sum(array.nbytes for array in arrays), shutil.disk_usage(path.parent).free
    if needed > free:
        text = f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
        raise OSError(errno.ENOSPC, text)
    with replaced_atomically(path) as file:
        _write(file, arrays)


def _write(file: Any, arrays: list[RowArray]) -> None:
    listed = [{"name": a.name, "dtype": a.dtype, "shape": a.shape} for a in arrays]
    header = json.dumps(listed).encode()
    digest = hashlib.sha256()
    file.write(_PREFIX.pack(MAGIC, b"", len(header)))
    for chunk in (_PREFIX.pack(MAGIC, b"", len(header))[DIGEST_END:], header):
        digest.update(chunk)
    file.write(header)
    for array in arrays:
        written = 0
        for piece in array.pieces():
            block = np.ascontiguousarray(piece).data.cast("B")
            digest.update(block)
            file.write(block)
            written += block.nbytes
        assert written == array.nbytes, f"{array.name} has {written} bytes, {array.nbytes} were promised"
    file.seek(len(MAGIC))
    file.write(digest.digest())


def read_rows(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, mapped read-only.

    Raises:
        CheckpointError: the file is missing or damaged (ASYNC019).
    """
    try:
        with path.open("rb") as file:
            magic, digest, header_length = _PREFIX.unpack(file.read(_PREFIX.size))
            if magic != MAGIC or header_length > _MAX_HEADER_BYTES:
                raise _damaged(path, "magic")
            if digest_of(file) != digest:
                raise _damaged(path, "SHA-256")
            file.seek(_PREFIX.size)
            header = json.loads(file.read(header_length))
        return _mapped(path, header, _PREFIX.size + header_length)
    except OSError as error:
        raise CheckpointError(
            f"the replay of the checkpoint cannot be read: {error.strerror}",
            facts={"file": path, "failed check": "open"},
            fix="go on from another checkpoint, without its rows: checkpoint=..., on the command line --checkpoint",
        ) from error
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, "header") from error


def _mapped(path: Path, header: Any, offset: int) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for entry in header:
        dtype, shape = np.dtype(entry["dtype"]), tuple(map(int, entry["shape"]))
        if dtype.hasobject or min(shape, default=0) < 0:
            raise _damaged(path, "header")
        size = math.prod(shape) * dtype.itemsize
        mapped = np.memmap(path, dtype, "r", offset, shape) if size else np.empty(shape, dtype)
        arrays[str(entry["name"])] = mapped
        offset += size
    return arrays


def _damaged(path: Path, check: str) -> CheckpointError:
    return CheckpointError(
        "the replay of the checkpoint is damaged",
        facts={"file": path, "failed check": check},
        fix="go on from another checkpoint, without its rows: checkpoint=..., on the command line --checkpoint",
    )


def split_rings(arrays: Mapping[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Group arrays with names such as `ring3/obs` by ring, in the order of the rings."""
    rings: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        where, _, what = name.partition("/")
        if where.startswith("ring") and where[4:].isdecimal():
            rings.setdefault(int(where[4:]), {})[what] = array
    return [rings[index] for index in sorted(rings)]
