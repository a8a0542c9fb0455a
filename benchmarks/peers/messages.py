"""Messages/s of one transport between two processes, by message size; prints one JSON line.

    ring        asyncrl's experience ring: rows are copied in, published one by one, and copied out
    in_place    the same, read in place as the replay does: the reader looks at the position and at one byte of each row
    queue       multiprocessing.Queue: pickled, through a pipe, by a thread of the writer
    pipe        multiprocessing.Pipe: `send_bytes` and `recv_bytes_into`, which pickle nothing
    faster_fifo faster-fifo: one `put` for each message, `get_many`
    ray         Ray: a generator of an actor, whose items go through its object store; `ray.get` and a copy out
    memcpy      the limit: one copy of every message into as much memory, on one core; each end makes at least one

The writer is another process, which sends the same array again and again; this process reads. A message counts when it
is in memory of the reader's own (except `in_place`). At most `BUFFERED_BYTES` and `BUFFERED` messages are under way, as
much as each transport allows of it. Where there is nothing to read, or no space, both ends of a ring sleep for 50
microseconds; the others wait as their library does.

    python -m benchmarks.peers.messages ring --seconds 0.5
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import script_parser, usable_cores

Array = NDArray[np.uint8]
Read = Callable[[], int]
"""Reads what there is, waiting for at least one message if the transport can; returns the number of messages."""

SIZES = {
    "64_B": 64,
    "1_KiB": 1 << 10,
    "16_KiB": 1 << 14,
    "64_KiB": 1 << 16,
    "256_KiB": 1 << 18,
    "1_MiB": 1 << 20,
}
SIZES["4_MiB"] = 4 << 20
BUFFERED_BYTES, BUFFERED = 64 << 20, 1_024
SLEEP_SECONDS = 50e-6
CONTEXT: Any = multiprocessing.get_context("fork")


def buffered(size: int) -> int:
    """Messages of a size that may be under way."""
    return min(BUFFERED, BUFFERED_BYTES // size)


@contextmanager
def writer(write: Callable[[], None]) -> Iterator[None]:
    """Fork a process that writes until it is killed at the exit."""
    process = CONTEXT.Process(target=write, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def ring(size: int, in_place: bool = False) -> Iterator[Read]:
    """A ring of one stream, whose observations are the messages."""
    from asyncrl.interfaces import DiscreteAction, EnvSpec
    from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment

    slots = buffered(size)
    layout = RingLayout(1, slots, EnvSpec("messages", (size,), "uint8", DiscreteAction(2)))
    segment = Segment.create("messages", layout.arrays(), populate=True)
    reader, out, read = RingReader(segment, layout), np.zeros((slots, size), np.uint8), 0
    reader.grant(slots)

    def write() -> None:
        end, message = RingWriter(segment, layout), np.ones(size, np.uint8)
        while True:
            space = end.writable()
            if space <= 0:
                time.sleep(SLEEP_SECONDS)
            for row in range(end.published, end.published + space):
                end.obs[0, row & (slots - 1)] = message
                end.publish(1, 1)

    def take() -> int:
        nonlocal read
        first, published = read & (slots - 1), reader.published()
        if published == read:
            time.sleep(SLEEP_SECONDS)
            return 0
        rows = reader.obs[0, first : min(first + published - read, slots)]  # up to the end of the memory
        if in_place:
            assert rows[:, 0].all()
        else:
            out[: len(rows)] = rows
        read += len(rows)
        reader.grant(read + slots)
        return len(rows)

    with writer(write):
        yield take


@contextmanager
def queue(size: int) -> Iterator[Read]:
    """A queue of bytes objects, the form that it pickles fastest."""
    messages = CONTEXT.Queue(buffered(size))

    def write() -> None:
        message = bytes(size)
        while True:
            messages.put(message)

    def take() -> int:
        return int(len(messages.get()) == size)

    with writer(write):
        yield take


@contextmanager
def pipe(size: int) -> Iterator[Read]:
    """A pipe of bytes, without pickling; the kernel's buffer of it has 64 KiB."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    out = bytearray(size)

    def write() -> None:
        message = bytes(size)
        while True:
            sender.send_bytes(message)

    with writer(write):
        yield lambda: int(receiver.recv_bytes_into(out) == size)


@contextmanager
def faster_fifo(size: int) -> Iterator[Read]:
    """faster-fifo's queue of bytes objects without pickling, and its batched `get_many`."""
    from faster_fifo import Queue

    messages = Queue(max_size_bytes=buffered(size) * (size + 64), dumps=bytes, loads=bytes)

    def write() -> None:
        message = bytes(size)
        while True:
            messages.put(message, timeout=60.0)

    with writer(write):
        yield lambda: len(messages.get_many(timeout=60.0, max_messages_to_get=buffered(size)))


@contextmanager
def ray(size: int) -> Iterator[Read]:
    """A generator of a Ray actor, not more than `buffered` items ahead; needs a started Ray."""
    import ray as library

    class Writer:
        def write(self) -> Any:
            message = np.ones(size, np.uint8)
            while True:
                yield message

    actor = library.remote(Writer).remote()
    ahead = max(1, buffered(size))
    stream = actor.write.options(num_returns="streaming", _generator_backpressure_num_objects=ahead).remote()
    out = np.zeros(size, np.uint8)

    def take() -> int:
        np.copyto(out, library.get(next(stream)))
        return 1

    try:
        yield take
    finally:
        library.kill(actor)


@contextmanager
def memcpy(size: int) -> Iterator[Read]:
    """One copy of every message, into the memory that a transport would have."""
    slots, message = np.ones((buffered(size), size), np.uint8), np.zeros(size, np.uint8)

    def take() -> int:
        for slot in slots:
            slot[:] = message
        return len(slots)

    yield take


TRANSPORTS: dict[str, Callable[[int], Any]] = {
    "ring": ring,
    "in_place": lambda size: ring(size, in_place=True),
    "queue": queue,
    "pipe": pipe,
    "faster_fifo": faster_fifo,
    "ray": ray,
    "memcpy": memcpy,
}


def rate(transport: str, size: int, seconds: float) -> float:
    """Messages/s of one size, after as many messages as can be under way."""
    with TRANSPORTS[transport](size) as take:
        count = 0
        until = time.perf_counter() + 10 * seconds
        while count <= buffered(size) and time.perf_counter() < until:
            count += take()
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            count += take()
        return count / passed


def main() -> None:
    """Measure every size once."""
    parser = script_parser(__doc__)
    parser.add_argument("transport", choices=TRANSPORTS)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each size")
    arguments = parser.parse_args()
    packages = ["numpy", *{"faster_fifo": ["faster-fifo"], "ray": ["ray"]}.get(arguments.transport, [])]
    if arguments.transport == "ray":
        from benchmarks.peers.ray_start import start_ray

        start_ray()
    rates = {name: rate(arguments.transport, size, arguments.seconds) for name, size in SIZES.items()}
    versions = {name: version(name) for name in packages}
    print(json.dumps({"rates": rates, "versions": versions, "cores": usable_cores(), "environments": 1}))


if __name__ == "__main__":
    main()
