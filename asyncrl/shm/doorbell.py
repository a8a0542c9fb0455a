"""Doorbell: wake-up of the one consumer by any actor, only while the consumer sleeps.

All actors share one pipe and one word. The consumer sets the word before it sleeps (`Doorbell.arm`), checks every ring
once more, and sleeps on the pipe. After publishing, an actor reads the word. If the consumer sleeps and the ring has
reached the consumer's wake-up position, the actor clears the word and writes one byte.

Both sides store, fence, load:

    consumer                          actor
    wake_at = p                       published = q          (release)
    armed = 1                         fence
    fence                             if armed and q >= wake_at and compare_exchange(armed, 1, 0):
    if published < wake_at: sleep         write one byte

Without the fences each side may load before its own store is visible. Then both see the other's old value, and the
wake-up is lost (17 % of handshakes; the fence costs 5 ns). With the fences at least one side sees the other's store.

A consumer that goes back to sleep after each row would be woken for each row. The consumer prevents this with
`RingReader.wake_at`, or polls again after a millisecond while rows arrive quickly.

**A wake-up can be lost.** If an actor is killed between clearing the word and writing the byte, the consumer sleeps
while the word says that it is awake. The consumer cannot detect this. Therefore it also polls all rings when a process
dies and every 100 ms. Both sides write the word (the consumer arms it, an actor clears it), and an actor only by
compare-and-exchange.
"""

from __future__ import annotations

import contextlib
import os
import select

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, load_word, store_release
from asyncrl.shm.kernel import kernel
from asyncrl.shm.segment import ArraySpec, Segment

_ARRAYS = (ArraySpec("armed", (16,), "int64", control=True),)


@kernel("void(int64[::1], int64)", nogil=False)
def set_armed(armed: NDArray[np.int64], value: int) -> None:
    """Store 1 (the consumer sleeps) or 0 (it does not), then fence. For kernels."""
    store_release(armed, 0, value)
    fence()


@kernel("boolean(int64[::1])", nogil=False)
def take_bell(armed: NDArray[np.int64]) -> bool:
    """Clear the word if it is set; returns whether it was, so that the caller must ring. For kernels."""
    return load_acquire(armed, 0) == 1 and compare_exchange(armed, 0, 1, 0)  # type: ignore[no-any-return]


class Doorbell:
    """Consumer's end of the doorbell; one consumer at a time.

    Loop of a consumer:

        bell.arm()
        if nothing_new():           # check every ring again, after arming
            sleep on bell.fileno(), at most 100 ms
        bell.disarm()
        bell.drain()
    """

    def __init__(self, segment: Segment, read_fd: int, write_fd: int) -> None:
        self._segment = segment
        self._armed: NDArray[np.int64] = segment["armed"]
        self._read_fd = read_fd
        self._write_fd = write_fd

    @classmethod
    def create(cls) -> Doorbell:
        """Create a pipe and a word. Raises `SharedMemoryTooSmall`, or OSError if no file descriptor is free."""
        segment = Segment.create("doorbell", _ARRAYS)
        read_fd, write_fd = os.pipe()
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        return cls(segment, read_fd, write_fd)

    def fileno(self) -> int:
        """Read end of the pipe, readable after a ring. For `loop.add_reader` or `select`."""
        return self._read_fd

    def writer_fds(self) -> tuple[int, int]:
        """File descriptors (segment, pipe) for `DoorbellWriter.attach`; still owned by this object."""
        return self._segment.fd, self._write_fd

    @property
    def armed(self) -> bool:
        """Whether the next actor that publishes up to the wake-up position will ring."""
        return load_word(self._armed, 0) == 1

    def arm(self) -> None:
        """Ask actors to ring. The consumer must check all rings once more before it sleeps."""
        set_armed(self._armed, 1)

    def disarm(self) -> None:
        """Ask actors to stop ringing."""
        set_armed(self._armed, 0)

    def drain(self) -> int:
        """Empty the pipe; returns the number of bytes read. Never blocks."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_fd, 4096):
                count += len(chunk)
        return count

    def wait(self, timeout_seconds: float) -> bool:
        """Block until the bell rings (True) or the timeout ends (False); for threads without an event loop."""
        poller = select.poll()
        poller.register(self._read_fd, select.POLLIN)
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def close(self) -> None:
        """Close both ends of the pipe and the segment; idempotent."""
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1
        vars(self).pop("_armed", None)
        self._segment.close()


class DoorbellWriter:
    """Actor's end of the doorbell.

    Attributes:
        armed: int64 `[16]`, a view with the shared word at index 0; read by the kernel that publishes.
    """

    def __init__(self, segment: Segment, pipe_fd: int) -> None:
        self._segment = segment
        self._pipe_fd = pipe_fd
        self.armed: NDArray[np.int64] = segment["armed"]

    @classmethod
    def attach(cls, segment_fd: int, pipe_fd: int) -> DoorbellWriter:
        """Take ownership of both file descriptors; `close` closes them."""
        return cls(Segment.attach(segment_fd, _ARRAYS), pipe_fd)

    def ring(self) -> None:
        """Write one byte; never blocks. Called only after clearing the word."""
        # A full pipe wakes the consumer anyway. A broken pipe has no consumer: the actor's socket reports that.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe_fd, b"\0")

    def close(self) -> None:
        """Close the pipe and the segment; idempotent. Close a `RingWriter` made with it first."""
        if self._pipe_fd >= 0:
            os.close(self._pipe_fd)
            self._pipe_fd = -1
        vars(self).pop("armed", None)
        self._segment.close()
