"""Unnamed files that pass bytes between processes, and the limit of a file's size.

They are in memory where the system has such files. So a process is also started where the disk is full, and where no
temporary directory can be written.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO


def unnamed_file(purpose: str) -> IO[bytes]:
    """Open a new unnamed file for reading and writing.

    Args:
        purpose: shown in `/proc/*/fd`.

    Raises:
        OSError: there are too many open files; or memfd is refused, and no temporary directory can be written.
    """
    if hasattr(os, "memfd_create"):
        try:
            return os.fdopen(os.memfd_create(purpose, os.MFD_CLOEXEC), "w+b")
        except OSError:
            pass
    return tempfile.TemporaryFile()


def file_size_limit() -> int | None:
    """Limit of the size of any file that this process writes (RLIMIT_FSIZE, `ulimit -f`), None if unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft
