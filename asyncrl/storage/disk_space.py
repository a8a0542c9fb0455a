"""Disk space: an estimate of what a run's checkpoints need, made before its first step; errors of failed writes."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.errors import (
    ConfigurationError,
    FilesNotWritten,
    LittleDiskSpace,
    ResourceError,
    error_text,
    warn,
)
from asyncrl.shm.unnamed_file import file_size_limit
from asyncrl.storage.atomic_file import DISK_FAILS

_HEADER_BYTES = 16_384
"""Generous bound of a checkpoint's bytes besides its arrays: the header, and the names in the payload."""


@contextlib.contextmanager
def error_of_file(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError into `ResourceError` if the disk is full or fails, else into `ConfigurationError`.

    Args:
        what: name of what is written, such as "the picture".
        path: the file.
    """
    try:
        yield
    except OSError as error:
        text, facts = f"{what} cannot be written: {error.strerror or error}", {"file": path}
        if error.errno in DISK_FAILS:
            raise ResourceError(text, facts=facts, fix="make space, or name another file") from error
        raise ConfigurationError(text, facts=facts, fix="name a file that can be written") from error


def reason_of(error: BaseException) -> str:
    """Text of the error of a failed write, with the limit of file sizes if that is the reason."""
    limit, text = file_size_limit(), error_text(error)
    if limit is not None and isinstance(error, OSError) and error.errno == errno.EFBIG:
        return f"{text}; `ulimit -f` allows files of {limit:,} bytes"
    return text


def warn_of_file(what: str, error: Exception) -> None:
    """Warn (ASYNC040) that this file of the end of a run cannot be written."""
    text = (
        f"[ASYNC040] {what} cannot be written: {reason_of(error)}; the result holds what it would have held"
    )
    warn(FilesNotWritten(text))


def state_bytes(state: Any) -> int:
    """Bytes of all arrays and tensors in nested dicts, lists and tuples; any other leaf counts as 8."""
    if isinstance(state, Mapping):
        return sum(state_bytes(item) for item in state.values())
    if isinstance(state, list | tuple):
        return sum(state_bytes(item) for item in state)
    return int(getattr(state, "nbytes", 8))


def warn_of_little_space(
    directory: Path, kept: int, state: Mapping[str, Any], weight_count: int, rows_bytes: int = 0
) -> None:
    """Warn (ASYNC044) if the disk of `directory` has no room for all checkpoints that a run holds at one time.

    These are `kept` numbered files, the best one if it is older than these, and the one that is being written.

    Args:
        directory: the run directory.
        kept: option `checkpoints_kept`.
        state: the learner's state before its first update, which has the size of every later one.
        weight_count: number of the acting policy's weights, which the file holds separately.
        rows_bytes: bytes of all rings if checkpoints hold rows, else 0; needed once, and once more during a write.
    """
    each = state_bytes(state) + 4 * weight_count + _HEADER_BYTES
    needed = (kept + 2) * each + 2 * rows_bytes
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return  # an error shows when a checkpoint is written
    if needed > free:
        text = (
            f"[ASYNC044] the checkpoints need {needed / 1e6:,.1f} MB ({kept + 2} files of {each / 1e6:,.1f} MB"
            f"{f', 2 of {rows_bytes / 1e6:,.1f} MB' if rows_bytes else ''}), and "
            f"the disk of {directory} has {free / 1e6:,.1f} MB free; make space, lower checkpoints_kept, or give "
            "another run_dir; training begins, and a checkpoint that does not fit gives a warning of its own"
        )
        warn(LittleDiskSpace(text))
