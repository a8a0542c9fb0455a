"""Disk space: an estimate, before the first step, of what a run's checkpoints need; the error of a file that fails."""

from __future__ import annotations

import contextlib
import errno
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigurationError, LittleDiskSpace, ResourceError

_HEADER_BYTES = 16_384
"""What a file has beside its arrays, amply: the header, and the names in the payload."""

DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of the machine's; all others (no such folder, no permission) are of the path that was given."""


@contextlib.contextmanager
def error_of_file(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError into `ResourceError` where the disk is full or fails, else into `ConfigurationError`.

    Args:
        what: what is written, such as "the picture".
        path: where.
    """
    try:
        yield
    except OSError as error:
        text, facts = f"{what} cannot be written: {error.strerror or error}", {"file": path}
        if error.errno in DISK_FAILS:
            raise ResourceError(text, facts=facts, fix="make space, or name another file") from error
        raise ConfigurationError(text, facts=facts, fix="name a file that can be written") from error


def state_bytes(state: Any) -> int:
    """Bytes of all arrays and tensors in nested dicts, lists and tuples."""
    if isinstance(state, Mapping):
        return sum(state_bytes(item) for item in state.values())
    if isinstance(state, list | tuple):
        return sum(state_bytes(item) for item in state)
    return int(getattr(state, "nbytes", 8))


def warn_of_little_space(
    directory: Path, kept: int, state: Mapping[str, Any], weight_count: int, rows_bytes: int = 0
) -> None:
    """ASYNC044 where the disk of `directory` has no room for all checkpoints that a run holds at one time.

    These are `kept` by their step, the best one where it is older than these, and the one that is being written.

    Args:
        directory: the run's.
        kept: option `checkpoints_kept`.
        state: what the learner's state is before its first update, which has the size of every later one.
        weight_count: of the acting policy, whose weights stand in the file by themselves.
        rows_bytes: of all rings, where checkpoints hold them: once, and once more while they are written.
    """
    each = state_bytes(state) + 4 * weight_count + _HEADER_BYTES
    needed = (kept + 2) * each + 2 * rows_bytes
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return  # writing will tell
    if needed > free:
        text = (
            f"[ASYNC044] the checkpoints need {needed / 1e6:,.1f} MB ({kept + 2} files of {each / 1e6:,.1f} MB"
            f"{f', 2 of {rows_bytes / 1e6:,.1f} MB' if rows_bytes else ''}), and "
            f"the disk of {directory} has {free / 1e6:,.1f} MB free; make space, lower checkpoints_kept, or give "
            "another run_dir; training begins, and a checkpoint that does not fit is told when it is written"
        )
        warnings.warn(LittleDiskSpace(text), stacklevel=2)
