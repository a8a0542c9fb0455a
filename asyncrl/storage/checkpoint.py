"""Checkpoints of a learner, each one file that is refused unless complete and valid; layout in `checkpoint_format.py`.

A file is treated as untrusted, since anybody can write one with a valid digest. Its sizes are compared with the file's
before anything of that size is read, the header has a schema, the payload holds tensors and JSON and no code
(`state_tensors.py`), and every failed check raises ASYNC019 with a short text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import CheckpointError, error_text, printable
from asyncrl.storage.checkpoint_format import (
    FORMAT_VERSION,
    MAGIC,
    PREFIX,
    digest_of,
    encode,
    is_whole,
    opened,
    refused,
    write_atomically,
)
from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json
from asyncrl.storage.state_tensors import pack, unpack
from asyncrl.version import __version__

__all__ = ["CheckpointMeta", "SavedPolicy", "load", "read_policy", "save"]

MAX_HEADER_BYTES = 16 << 20
"""Limit of the header's length: the bounds of a box of a hundred thousand actions fit."""


@dataclass(frozen=True)
class SavedPolicy:
    """Part of a checkpoint that acting needs.

    Attributes:
        meta: the checkpoint's header; `meta.options` rebuilds the algorithm, `meta.spec` its policy.
        weights: flat `[weight_count]` float32, in the policy's order.
    """

    meta: CheckpointMeta
    weights: NDArray[np.float32]


def save(path: Path, state: Mapping[str, Any], meta: CheckpointMeta) -> None:
    """Write a checkpoint atomically: at any time `path` is the complete old file or the complete new one.

    Args:
        path: the file; its directory must exist.
        state: nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, bytes and None. `read_policy`
            returns the entry `"weights"` (flat float32).
        meta: the header.

    Raises:
        OSError: the file cannot be written.
        TypeError: the state holds a value of another type.
    """
    header = json.dumps(meta_to_json(meta)).encode()
    write_atomically(path, encode(header, pack(state)))


def load(
    path: Path, *, expect_env: str | None = None, expect_algo: str | None = None
) -> tuple[dict[str, Any], CheckpointMeta]:
    """Read a checkpoint; tensors are on the CPU, and tensors and arrays are the caller's own.

    Raises:
        CheckpointError: the file is missing, damaged, of another format version, environment or algorithm
            (ASYNC019; the text names the file and the check that failed).
    """
    with opened(path, "the checkpoint") as (file, size):
        meta, payload = _decode(path, file, size)
    for what, expected, got in (("environment", expect_env, meta.env), ("algorithm", expect_algo, meta.algo)):
        if expected is not None and got != expected:
            raise refused(
                path,
                f"the checkpoint is of another {what}: {got}, not {expected}",
                what,
                f"choose a checkpoint of {expected}",
            )
    return _read_state(path, payload), meta


def read_policy(path: Path) -> SavedPolicy:
    """Read the weights of a checkpoint, and the header from which their policy is built.

    Raises:
        CheckpointError: see `load`; or the checkpoint has no weights, or they are NaN or infinite.
    """
    state, meta = load(path)
    weights = state.get("weights")
    if not isinstance(weights, np.ndarray) or weights.dtype != np.float32 or weights.ndim != 1:
        raise refused(path, "the checkpoint holds no policy weights", "weights", "choose another checkpoint")
    if not np.isfinite(weights).all():
        raise refused(path, "the checkpoint's weights are NaN or infinite", "weights", _before(path))
    return SavedPolicy(meta, weights)


def does_not_fit(path: Path, what: str) -> CheckpointError:
    """Make the error ASYNC019 for a checkpoint that does not fit the options, the environment or this version."""
    return refused(path, f"the checkpoint does not fit: {what}", "options", _before(path))


def _decode(path: Path, file: IO[bytes], size: int) -> tuple[CheckpointMeta, bytes]:
    """Read the header and the payload, after every check of the bytes, the cheapest first."""
    if size < PREFIX.size:
        raise _damaged(path, "length", f"{size} bytes are there, a header alone has {PREFIX.size}")
    magic, digest, version, header_length, payload_length = PREFIX.unpack(file.read(PREFIX.size))
    if magic != MAGIC:
        raise _damaged(path, "magic", f"it begins with {bytes(magic)!r}, a checkpoint with {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise refused(
            path,
            f"the checkpoint has format version {version}, this asyncrl {__version__} reads {FORMAT_VERSION}",
            "format version",
            "load it with the asyncrl that wrote it",
        )
    expected = PREFIX.size + header_length + payload_length
    if size != expected:
        raise _damaged(path, "length", f"{size} bytes are there, {expected} were written")
    if header_length > MAX_HEADER_BYTES:
        raise _damaged(path, "length", f"the header has {header_length} bytes, at most {MAX_HEADER_BYTES}")
    if digest_of(file) != digest:
        raise _damaged(path, "SHA-256", "the bytes are not those that were written")
    file.seek(PREFIX.size)
    meta = _read_header(path, file.read(header_length))
    return meta, file.read(payload_length)


def _read_header(path: Path, header: bytes) -> CheckpointMeta:
    try:
        return meta_from_json(json.loads(header))
    except (ValueError, TypeError, RecursionError) as error:
        raise refused(
            path,
            f"the checkpoint's header is not one that asyncrl {__version__} writes: {_short(error)}",
            "header",
            "load it with the asyncrl that wrote it",
        ) from None


def _read_state(path: Path, payload: bytes) -> dict[str, Any]:
    """Decode the payload's state; no code of it is executed, and no array is larger than the payload."""
    try:
        return unpack(payload)
    except Exception as error:
        raise refused(
            path,
            f"the checkpoint's payload is not one that asyncrl writes: {_short(error)}",
            "payload",
            "do not use a file that somebody else may have made; " + _before(path),
        ) from None


def _short(error: Exception) -> str:
    """First sentence of an exception's text, at most 200 characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    text = " ".join(error_text(error).split())
    return printable(text.split(". ")[0], 200) or type(error).__name__


def _before(path: Path) -> str:
    """Advice instead of loading `path`: the newest other numbered checkpoint beside it that is complete."""
    try:
        others = [p for p in path.parent.iterdir() if p.name.isdecimal() and not p.samefile(path)]
    except OSError:
        others = []
    for other in sorted(others, key=lambda p: int(p.name), reverse=True):
        if is_whole(other):
            return f"use the one before it, {other}"
    return "choose another checkpoint of the run"


def _damaged(path: Path, check: str, how: str) -> CheckpointError:
    return refused(path, f"the checkpoint is damaged: {how}", check, _before(path))
