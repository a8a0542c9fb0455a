"""The doorbell: how any actor wakes the one consumer, and only when it sleeps.

One pipe and one word for all actors. The consumer says that it is about to sleep (`Doorbell.arm`), looks at
every ring once more, and sleeps on the pipe; an actor that publishes looks at the word and, if the consumer
sleeps and its ring has reached the position at which the consumer wants to be woken, takes the word back and
writes one byte.

Both sides store, fence, load:

    consumer                          actor
    wake_at = p                       published = q          (release)
    armed = 1                         fence
    fence                             if armed and q >= wake_at and compare_exchange(armed, 1, 0):
    if published < wake_at: sleep         write one byte

Without the fences each side may load before its own store is visible, both see the other's old value, and the
wake-up is lost (17 % of handshakes; the fence costs 5 ns). With them at least one side sees the other.

Suppression alone is not enough: a consumer that goes back to sleep after each row would be rung for each row.
So the consumer moderates with `RingReader.wake_at`, or polls again after a millisecond while traffic is
dense.

**A bell can be lost.** An actor killed between taking the word and writing the byte leaves a consumer that
sleeps and a word that says it does not. Nobody can tell from inside; therefore the consumer polls all rings
whenever a process dies and every 100 ms, whatever the bell says. The word is the only one in `shm` that two
sides write (armed by the consumer, taken by an actor), and only by compare-and-exchange or while nobody else
may.
"""

from __future__ import annotations

import contextlib
import os
import select

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, store_release
from asyncrl.shm.kernel import kernel
from asyncrl.shm.segment import ArraySpec, Segment

_ARRAYS = (ArraySpec("armed", (16,), "int64", control=True),)


@kernel("void(int64[::1], int64)", nogil=False)
def set_armed(armed: NDArray[np.int64], value: int) -> None:
    """Say that the consumer sleeps (1) or not (0); what is loaded afterwards is newer than that. For kernels."""
    store_release(armed, 0, value)
    fence()


@kernel("int64(int64[::1])", nogil=False)
def _armed(armed: NDArray[np.int64]) -> int:
    return load_acquire(armed, 0)  # type: ignore[no-any-return]


@kernel("boolean(int64[::1])", nogil=False)
def take_bell(armed: NDArray[np.int64]) -> bool:
    """Whether the caller must ring: the consumer was armed and no other actor took the word. For kernels."""
    return load_acquire(armed, 0) == 1 and compare_exchange(armed, 0, 1, 0)  # type: ignore[no-any-return]


class Doorbell:
    """The consumer's end; one consumer at a time.

    The loop of a consumer that sleeps:

        bell.arm()
        if nothing_new():           # look at every ring again, after arming
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
        """A new pipe and a new word. Raises `SharedMemoryTooSmall`, or OSError without descriptors."""
        segment = Segment.create("doorbell", _ARRAYS)
        read_fd, write_fd = os.pipe()
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        return cls(segment, read_fd, write_fd)

    def fileno(self) -> int:
        """Read end of the pipe: readable once the bell was rung. For `loop.add_reader` or `select`."""
        return self._read_fd

    def writer_fds(self) -> tuple[int, int]:
        """What an actor needs for `DoorbellWriter.attach`: (segment, pipe), both still owned here."""
        return self._segment.fd, self._write_fd

    @property
    def armed(self) -> bool:
        """Whether the next actor that publishes far enough will ring."""
        return _armed(self._armed) == 1

    def arm(self) -> None:
        """Say that the consumer is about to sleep. It must look at all rings once more before it does."""
        set_armed(self._armed, 1)

    def disarm(self) -> None:
        """Say that the consumer is awake; actors stop ringing."""
        set_armed(self._armed, 0)

    def drain(self) -> int:
        """Empty the pipe; returns how many bells it held. Never blocks."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._read_fd, 4096):
                count += len(chunk)
        return count

    def wait(self, timeout_seconds: float) -> bool:
        """Block until the bell rings (True) or time is over (False); for threads without an event loop."""
        poller = select.poll()
        poller.register(self._read_fd, select.POLLIN)
        return bool(poller.poll(max(0, round(timeout_seconds * 1000))))

    def close(self) -> None:
        """Close both ends of the pipe and let go of the word; idempotent."""
        for fd in (self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._read_fd = self._write_fd = -1
        vars(self).pop("_armed", None)
        self._segment.close()


class DoorbellWriter:
    """An actor's end.

    Attributes:
        armed: int64 `[16]`, the shared word at index 0: a view, for the kernel that publishes.
    """

    def __init__(self, segment: Segment, pipe_fd: int) -> None:
        self._segment = segment
        self._pipe_fd = pipe_fd
        self.armed: NDArray[np.int64] = segment["armed"]

    @classmethod
    def attach(cls, segment_fd: int, pipe_fd: int) -> DoorbellWriter:
        """Take both descriptors over (they are closed by `close`)."""
        return cls(Segment.attach(segment_fd, _ARRAYS), pipe_fd)

    def ring(self) -> None:
        """Write one byte; never blocks. Called by whoever took the word."""
        # A full pipe holds bells enough. A closed one has lost its consumer: the actor's socket tells.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe_fd, b"\0")

    def close(self) -> None:
        """Close the pipe and let go of the word; idempotent. A `RingWriter` made with it is closed before."""
        if self._pipe_fd >= 0:
            os.close(self._pipe_fd)
            self._pipe_fd = -1
        vars(self).pop("armed", None)
        self._segment.close()
