"""Anonymous shared memory with the layout of a list of arrays.

A segment has no name that could leak. On Linux it is a memfd sealed against shrinking and growing; elsewhere, and where
memfd is refused (a container's filter), it is a POSIX shared-memory object, unlinked after it is opened. Other
processes get its file descriptor. The memory is freed when the last process that holds it has ended, however it ended.
(`multiprocessing.shared_memory` leaks when its process group is killed, is unlinked by an unrelated exit, and dies of
SIGBUS if /dev/shm is small.)

The memory is reserved when the segment is created: its size is compared with the free memory of the machine and the
control group, then every page is allocated, so that no process can run out of it later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import mmap
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import ResourceError, SharedMemoryTooSmall
from asyncrl.shm.free_memory import available_bytes
from asyncrl.shm.unnamed_file import file_size_limit

ALIGNMENT = 64
"""Alignment of the arrays in bytes, a cache line."""
POISON = 0xFB
"""Value of unwritten bytes of a poisoned segment: -2.6e36 as float32, negative as any signed integer."""


@dataclass(frozen=True)
class ArraySpec:
    """One array of a segment.

    Attributes:
        name: key of `Segment[name]`.
        shape: C order, every axis at least 1.
        dtype: NumPy dtype name.
        control: True for control words, which are valid (zero) before the first write; never poisoned.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    control: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the array, without alignment."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _offsets(arrays: Sequence[ArraySpec]) -> list[int]:
    """Offset of each array in bytes, then the size of the segment."""
    if not arrays:
        raise ValueError("arrays must hold at least one ArraySpec, got none")
    names = [a.name for a in arrays]
    if len(set(names)) != len(names):
        raise ValueError(f"array names must be distinct, got {names}")
    offsets = [0]
    for a in arrays:
        if any(n < 1 for n in a.shape):
            raise ValueError(f"every axis of {a.name} must be at least 1, got shape {a.shape}")
        if np.dtype(a.dtype).hasobject:
            raise ValueError(f"{a.name} must hold plain numbers, got dtype {a.dtype}")
        offsets.append(-(-(offsets[-1] + a.nbytes) // ALIGNMENT) * ALIGNMENT)
    return offsets


def bytes_needed(arrays: Sequence[ArraySpec]) -> int:
    """Bytes of a segment of these arrays, alignment included."""
    return _offsets(arrays)[-1]


class Segment:
    """Block of shared memory with arrays, each on its own cache lines.

    The process that owns the run creates it (`create`); processes that were given the file descriptor attach it
    (`attach`). The layout is not stored in the memory: both sides need the same list of `ArraySpec`.

    `segment[name]` is a view, never a copy. A view keeps the mapping (and with it a duplicate of the descriptor) open
    even after `close`, so drop the views before closing. On Linux, when the creator closes, the memory is freed at once
    and remaining views read zeros. The parts of a run form reference cycles: otherwise only a garbage collection would
    free its rings, and the next run would find too little memory.

    Attributes:
        fd: file descriptor for other processes; not inheritable; owned and closed by the segment.
        nbytes: bytes of the layout.
        arrays: the layout.
    """

    def __init__(
        self, fd: int, arrays: Sequence[ArraySpec], populate: bool = False, writable: bool = True
    ) -> None:
        self.fd = fd
        self._owned = False
        self.arrays = tuple(arrays)
        *starts, self.nbytes = _offsets(self.arrays)
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if populate else 0)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map: mmap.mmap | None = mmap.mmap(fd, self.nbytes, flags=flags, prot=protection)
        # `frombuffer` keeps the map open. With `ndarray(buffer=map)`, `close` would unmap live views.
        block = np.frombuffer(self._map, np.uint8)
        if not writable:
            block = np.asarray(_SaysWritable(block))
        self._views: dict[str, NDArray[Any]] = {
            a.name: np.ndarray(a.shape, a.dtype, buffer=block, offset=start)
            for a, start in zip(self.arrays, starts, strict=True)
        }

    @classmethod
    def create(
        cls, name: str, arrays: Sequence[ArraySpec], *, poison: bool = False, populate: bool = False
    ) -> Segment:
        """Reserve new memory, all zero.

        Args:
            name: purpose of the memory; shown in errors and in /proc/*/maps.
            arrays: the layout, in this order.
            poison: fill all but control words with `POISON` bytes, so that reads of unwritten memory are noticed.
            populate: map every page now (30 ms per 50 MB) instead of at its first use.

        Raises:
            SharedMemoryTooSmall: the machine or the control group has too little free memory, or `ulimit -f` is lower
                than the memory (ASYNC008).
            ResourceError: the system refuses shared memory.
            ValueError: the layout is empty, or has an empty axis, a dtype with objects or two arrays of one name.
        """
        needed, there = bytes_needed(arrays), available_bytes()
        if needed > there:
            raise _too_small(name, arrays, needed, there)
        fd = _anonymous_file(name)
        try:
            _reserve(fd, needed)
            segment = cls(fd, arrays, populate)
            segment._owned = True
        except BaseException as error:  # an interrupt too: reserving gigabytes takes seconds
            os.close(fd)
            if isinstance(error, OSError) and error.errno == errno.EFBIG and file_size_limit() is not None:
                raise _beyond_limit(name, needed) from error
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise _too_small(name, arrays, needed, there, reason=str(error)) from error
            raise
        if poison:
            for a in arrays:
                if not a.control:
                    segment[a.name].reshape(-1).view(np.uint8)[:] = POISON
        return segment

    @classmethod
    def attach(cls, fd: int, arrays: Sequence[ArraySpec], *, writable: bool = True) -> Segment:
        """Map memory that another process created; takes ownership of `fd` and closes it in `close`.

        On Linux forked children do not get the mapping: a child process of an environment that continued as the actor
        would be a second writer of its ring. It ends with SIGSEGV instead.

        Args:
            fd: file descriptor of the memory.
            arrays: the layout that it was created with.
            writable: if False, a write to the memory ends this process (SIGSEGV). The views are still flagged as
                writable for NumPy, because kernels are compiled for writable arrays only.

        Raises:
            ValueError: the memory is smaller than the layout.
        """
        size, needed = os.fstat(fd).st_size, bytes_needed(arrays)
        if size < needed:
            raise ValueError(f"segment must hold the layout's {needed} bytes, got a descriptor of {size}")
        segment = cls(fd, arrays, writable=writable)
        if segment._map is not None and hasattr(mmap, "MADV_DONTFORK"):
            segment._map.madvise(mmap.MADV_DONTFORK)
        return segment

    def __getitem__(self, name: str) -> NDArray[Any]:
        """View of the array `name`. Raises KeyError if there is none or the segment is closed."""
        return self._views[name]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.fd < 0

    def close(self) -> None:
        """Close the descriptor, drop the views, unmap the memory; a view held elsewhere delays the unmapping."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._views.clear()
        if self._map is not None:
            if self._owned and hasattr(mmap, "MADV_REMOVE"):
                with contextlib.suppress(OSError):
                    self._map.madvise(mmap.MADV_REMOVE)
            with contextlib.suppress(BufferError):  # a view held elsewhere keeps it open until it is deleted
                self._map.close()
            self._map = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit modules are partly torn down, and the system closes everything anyway.
        if not _finalizing() and hasattr(self, "_views"):
            self.close()


def drop_views(owner: object) -> None:
    """Delete the arrays among the attributes of an object, so that `Segment.close` can unmap their memory."""
    for name in [name for name, value in vars(owner).items() if isinstance(value, np.ndarray)]:
        delattr(owner, name)


class _SaysWritable:
    """Array interface that presents a read-only array as writable; keeps the array, and so the mapping, alive."""

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.block = block
        self.__array_interface__ = {**block.__array_interface__, "data": (block.ctypes.data, False)}


def _anonymous_file(name: str) -> int:
    """File descriptor of new shared memory without a name in any file system; empty, not inheritable.

    Raises:
        OSError: there are too many open files.
        ResourceError: the system refuses shared memory.
    """
    refused = "this system has none"
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            refused = str(error)
    import _posixshmem  # type: ignore[import-not-found]

    path = f"/asyncrl-{secrets.token_hex(8)}"
    try:
        fd: int = _posixshmem.shm_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ResourceError(
            f"Shared memory for {name} is refused by the system.",
            facts={"memfd_create": refused, "shm_open": str(error)},
            fix="allow memfd_create, or mount a writable /dev/shm",
        ) from error
    _posixshmem.shm_unlink(path)
    os.set_inheritable(fd, False)
    return fd


def _reserve(fd: int, nbytes: int) -> None:
    """Allocate every page, so that a later write cannot fail, and seal the size if the system can."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except AttributeError:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, nbytes)  # no reservation: only the comparison with free memory protects
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):  # a POSIX object has no seals
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _beyond_limit(name: str, needed: int) -> SharedMemoryTooSmall:
    """Error ASYNC008 for RLIMIT_FSIZE, which holds for files in memory too."""
    allowed = f"`ulimit -f` allows files of {file_size_limit():,} bytes"
    return SharedMemoryTooSmall(
        f"Shared memory for {name} needs {needed:,} bytes, but {allowed}.",
        facts={"needed": f"{needed:,} bytes"},
        fix="run `ulimit -f unlimited` in the shell before, or lower the replay capacity",
    )


def _too_small(
    name: str, arrays: Sequence[ArraySpec], needed: int, there: int, reason: str = ""
) -> SharedMemoryTooSmall:
    """Error ASYNC008 with the bytes needed, the bytes available, and the largest arrays."""
    largest = sorted(arrays, key=lambda a: a.nbytes, reverse=True)[:3]
    facts: dict[str, object] = {
        "needed": f"{needed:,} bytes",
        "available": f"{there:,} bytes",
        "largest": ", ".join(f"{a.name} {a.nbytes:,} bytes {list(a.shape)} {a.dtype}" for a in largest),
    }
    if reason:
        facts["system"] = reason
    return SharedMemoryTooSmall(
        f"Shared memory for {name} needs {needed:,} bytes, but {there:,} are available.",
        facts=facts,
        fix="lower the replay capacity, num_actors or envs_per_actor, or give the machine or container more",
    )
