"""File of a checkpoint's rows, beside the checkpoint: experience rings, priorities and the actors' states.

    ring<i>/<name>  the rows of a ring, see `shm/ring_rows.py`, and their priorities
    actor<i>        U8, state of an actor: a pickle, which only that actor's next incarnation unpickles

Rows are written directly from shared memory, piece by piece, and read by mapping the file, so that a replay of
gigabytes is never copied in memory.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from asyncrl.storage.tensor_file import FileKind, StoredArray, read_tensors, write_tensors

SUFFIX = ".replay"
_WITHOUT_ROWS = (
    "go on from another checkpoint, without its rows: checkpoint=..., on the command line --checkpoint"
)
REPLAY = FileKind("replay", "the replay of the checkpoint", lambda path: _WITHOUT_ROWS)


def write_rows(path: Path, arrays: Sequence[StoredArray]) -> None:
    """Write a file atomically, see `write_tensors`.

    Raises:
        OSError: it does not fit on the disk (checked before the first byte), or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)  # the run directory may have been removed
    needed, free = sum(array.nbytes for array in arrays), shutil.disk_usage(path.parent).free
    if needed > free:
        text = f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free"
        raise OSError(errno.ENOSPC, text)
    write_tensors(path, REPLAY, {}, arrays)


def read_rows(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, mapped read-only.

    Raises:
        CheckpointError: the file is missing or damaged (ASYNC019).
    """
    return read_tensors(path, REPLAY, lambda header, shapes: None, mapped=True)[1]


def split_rings(arrays: Mapping[str, NDArray[Any]]) -> list[dict[str, NDArray[Any]]]:
    """Group arrays with names such as `ring3/obs` by ring, in the order of the rings."""
    rings: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        where, _, what = name.partition("/")
        if where.startswith("ring") and where[4:].isdecimal():
            rings.setdefault(int(where[4:]), {})[what] = array
    return [rings[index] for index in sorted(rings)]
