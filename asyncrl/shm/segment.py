"""Anonymous shared memory, laid out from a list of arrays.

A segment has no name that could be leaked: on Linux it is a memfd sealed against shrinking and growing,
elsewhere a POSIX shared-memory object unlinked as soon as it is open. Whoever shall see it is handed the file
descriptor. When the last process that holds it is gone, however it died, so is the memory.
(`multiprocessing.shared_memory` leaks when its process group is killed, is unlinked by an unrelated exit, and
dies of SIGBUS where /dev/shm is small.)

Memory is found and reserved when the segment is made: first by arithmetic against what the machine and the
control group have left, then by allocating every page, so that no process can fail for want of it later.
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

from asyncrl.errors import SharedMemoryTooSmall
from asyncrl.shm.free_memory import available_bytes

ALIGNMENT = 64
"""Bytes; every array begins on a cache line of its own."""
POISON = 0xFB
"""What fills unwritten bytes of a poisoned segment: -2.6e36 as float32, negative as any signed integer."""


@dataclass(frozen=True)
class ArraySpec:
    """One array of a segment.

    Attributes:
        name: how `Segment[name]` finds it.
        shape: C order, every axis at least 1.
        dtype: NumPy dtype name.
        control: True for words that mean something (zero) before anybody wrote them; never poisoned.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    control: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _offsets(arrays: Sequence[ArraySpec]) -> list[int]:
    """Where each array begins, and at the end where the segment ends."""
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
    """Bytes a segment of these arrays takes, alignment included."""
    return _offsets(arrays)[-1]


class Segment:
    """A block of shared memory and the arrays laid out in it, each on cache lines of its own.

    Made once by the process that owns the run (`create`), attached by those that were handed the descriptor
    (`attach`). The layout is not stored in it: both sides are given the same list of `ArraySpec`.

    `segment[name]` is a view, never a copy, and keeps the mapping (and with it a duplicate of the descriptor)
    open for as long as it lives, also past `close`: who closes lets go of its views first. Where the owner closes,
    the memory is given back at once, on Linux, and views that are left see zeros: the parts of a run know each other,
    so that only a garbage collection would free its rings, and the next run would find too little memory.

    Attributes:
        fd: the descriptor to hand on; not inheritable; owned and closed by the segment.
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
        # `frombuffer` holds the map open; `ndarray(buffer=map)` does not: `close` would unmap live views.
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
            name: what the memory is for, in words; shown in errors and in /proc/*/maps.
            arrays: what to lay out, in this order.
            poison: fill all but control words with `POISON` bytes, so that reading what nobody wrote shows.
            populate: map every page now (30 ms per 50 MB) instead of at its first use.

        Raises:
            SharedMemoryTooSmall: the machine or the control group has less left than that (ASYNC008).
            ValueError: the layout is empty, or has an empty axis or two arrays of one name.
        """
        needed, there = bytes_needed(arrays), available_bytes()
        if needed > there:
            raise _too_small(name, arrays, needed, there)
        fd = _anonymous_file(name)
        try:
            _reserve(fd, needed)
            segment = cls(fd, arrays, populate)
            segment._owned = True
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise _too_small(name, arrays, needed, there, reason=str(error)) from error
            raise
        if poison:
            for a in arrays:
                if not a.control:
                    segment[a.name].reshape(-1).view(np.uint8)[:] = POISON
        return segment

    @classmethod
    def attach(cls, fd: int, arrays: Sequence[ArraySpec], *, writable: bool = True) -> Segment:
        """Map memory that another process created; takes `fd` over and closes it in `close`.

        A process that forks keeps the mapping to itself, on Linux: a child of an environment that goes on as if it
        were the actor would be a second writer of its ring. It ends with SIGSEGV instead.

        Args:
            fd: its descriptor.
            arrays: the layout that it was created with.
            writable: False has the system end this process (SIGSEGV) where anything in it writes there. NumPy is
                not told, since kernels are compiled for writable arrays only: the flag of a view still says so.

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
        """The array of that name: a view. Raises KeyError where there is none or the segment is closed."""
        return self._views[name]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.fd < 0

    def close(self) -> None:
        """Close the descriptor, drop the views, free the memory; the mapping goes with the last view held elsewhere."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._views.clear()
        if self._map is not None:
            if self._owned and hasattr(mmap, "MADV_REMOVE"):
                with contextlib.suppress(OSError):
                    self._map.madvise(mmap.MADV_REMOVE)
            with contextlib.suppress(
                BufferError
            ):  # a view elsewhere holds the map, and unmaps it when it dies
                self._map.close()
            self._map = None

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter exit modules are half gone, and the system closes everything anyway.
        if not _finalizing() and hasattr(self, "_views"):
            self.close()


class _SaysWritable:
    """The memory of a read-only array, offered as writable; keeps the array, and with it the mapping, alive."""

    def __init__(self, block: NDArray[np.uint8]) -> None:
        self.block = block
        self.__array_interface__ = {**block.__array_interface__, "data": (block.ctypes.data, False)}


def _anonymous_file(name: str) -> int:
    """A descriptor of shared memory that has no name in any file system; empty, not inheritable."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import _posixshmem  # type: ignore[import-not-found]

    path = f"/asyncrl-{secrets.token_hex(8)}"
    fd: int = _posixshmem.shm_open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    _posixshmem.shm_unlink(path)
    os.set_inheritable(fd, False)
    return fd


def _reserve(fd: int, nbytes: int) -> None:
    """Allocate every page, so that a later write cannot fail, and seal the size where the system can."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except AttributeError:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, nbytes)  # a kernel that cannot reserve: arithmetic alone has decided
    if hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _too_small(
    name: str, arrays: Sequence[ArraySpec], needed: int, there: int, reason: str = ""
) -> SharedMemoryTooSmall:
    """ASYNC008: bytes needed by what, bytes there."""
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
