"""How fast rows and weights cross from one process to another.

    python benchmarks/transport.py [--repeats 7]

Two processes on two cores: this one writes, a forked one reads. Every figure stands beside a memcpy of the same bytes
from and to the same memory, on the same core, measured next to it in the same repeat.

Rows of 4 KiB and 28 KiB: one compiled loop copies a row into the ring and publishes it, row by row; the reader polls,
checks each row's stamp, and grants at once. A row counts when the reader has seen it. Nothing is copied out: that is
how the replay reads (`in_place`). `copied_out` has the reader copy each row as well, on its own core.

Small rows: CartPole's (41 bytes). `compiled` publishes each row on its own from a compiled loop; `python` makes one
call to a compiled row writer and one to `RingWriter.publish` per row, as an actor with a Python loop does.

Weights: `publish` and `refresh` on one core, and with the reader on the other core.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
from harness import Report

from asyncrl.core import DiscreteAction, EnvSpec
from asyncrl.shm import ArraySpec, RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from asyncrl.shm.atomics import copy_words, kernel, load_acquire, store_release
from asyncrl.shm.ring_layout import GRANTED, PUBLISHED
from asyncrl.shm.ring_protocol import publish_rows

SOURCES = 16
"""Different rows that are copied from; they stay in the cache, as a fresh observation would."""
RING_BYTES = 8 << 20
WRITER_CORE, READER_CORE = 0, 1
WORDS = (ArraySpec("words", (64,), "int64", control=True),)


@kernel("void(int64[::1], uint8[:, :, ::1], int64[::1], int64[::1], uint8[:, ::1], int64)")
def write_rows(header, obs, version, armed, sources, count):
    """Copy and publish `count` rows, one by one."""
    mask, first = version.shape[0] - 1, header[PUBLISHED]
    granted = load_acquire(header, GRANTED)
    for row in range(first, first + count):
        while granted <= row:
            granted = load_acquire(header, GRANTED)
        copy_words(obs[0, row & mask], sources[row & 15])
        version[row & mask] = row
        publish_rows(header, armed, 1, 1)


@kernel("void(uint8[:, :, ::1], uint8[:, ::1], int64)")
def copy_rows(obs, sources, count):
    """The memcpy in it: the same rows to the same slots."""
    mask = obs.shape[1] - 1
    for row in range(count):
        copy_words(obs[0, row & mask], sources[row & 15])


@kernel("int64(int64[::1], uint8[:, :, ::1], int64[::1], uint8[:, ::1], int64)")
def read_rows(header, obs, version, out, count):
    """See `count` rows one by one, granting as they come; copies each to `out` if that has rows."""
    slots, first, wrong = version.shape[0], load_acquire(header, GRANTED) - version.shape[0], 0
    row = first
    while row < first + count:
        published = load_acquire(header, PUBLISHED)
        for seen in range(row, published):
            wrong += version[seen & (slots - 1)] != seen
            if out.shape[0] > 0:
                copy_words(out[seen & 15], obs[0, seen & (slots - 1)])
        if published > row:
            row = published
            store_release(header, GRANTED, row + slots)
    return wrong


_SMALL = (
    "int64[::1], float32[:, :, ::1], int64[:, ::1], float32[:, ::1], uint8[:, ::1], int64[::1], int32[::1]"
)


@kernel(f"void({_SMALL}, int64)")
def write_small_row(header, obs, action, reward, flags, version, incarnation, row):
    """All fields of one row of one environment."""
    slot = row & (version.shape[0] - 1)
    for i in range(obs.shape[2]):
        obs[0, slot, i] = row
    action[0, slot] = row & 1
    reward[0, slot] = 1
    flags[0, slot] = 0
    version[slot] = row
    incarnation[slot] = 1


@kernel(f"void({_SMALL}, int64[::1], int64)")
def write_small_rows(header, obs, action, reward, flags, version, incarnation, armed, count):
    """Write and publish `count` rows, each on its own."""
    first, granted = header[PUBLISHED], load_acquire(header, GRANTED)
    for row in range(first, first + count):
        while granted <= row:
            granted = load_acquire(header, GRANTED)
        write_small_row(header, obs, action, reward, flags, version, incarnation, row)
        publish_rows(header, armed, 1, 1)


@kernel("int64(int64[::1], int64[::1], int64)")
def see_rows(header, version, count):
    """As `read_rows`, without the payload."""
    slots, first, wrong = version.shape[0], load_acquire(header, GRANTED) - version.shape[0], 0
    row = first
    while row < first + count:
        published = load_acquire(header, PUBLISHED)
        for seen in range(row, published):
            wrong += version[seen & (slots - 1)] != seen
        if published > row:
            row = published
            store_release(header, GRANTED, row + slots)
    return wrong


@kernel("void(int64[::1], int64, int64)")
def wait_for(words, index, value):
    """Spin until the word has reached the value."""
    while load_acquire(words, index) < value:
        pass


@kernel("void(int64[::1], int64, int64)")
def tell(words, index, value):
    """Release the word."""
    store_release(words, index, value)


@contextmanager
def reader_process(work: Callable[[], int]):
    """Fork a reader on its own core that runs `work`, which returns 0 if all was well; waited for at the end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            pin(READER_CORE)
            status = work()
        finally:
            os._exit(min(status, 1))
    try:
        yield
    finally:
        assert os.waitpid(pid, 0)[1] == 0, "the reader saw a wrong row"


def pin(core: int) -> None:
    """Keep this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Rows:
    """A ring of uint8 rows of one size, with its reader granted and its pages touched."""

    def __init__(self, row_bytes: int) -> None:
        slots = 1 << (RING_BYTES // row_bytes).bit_length() - 1
        layout = RingLayout(1, slots, EnvSpec("rows", (row_bytes,), "uint8", DiscreteAction(2)))
        self.segment = Segment.create("rows", layout.arrays(), populate=True)
        self.writer, self.reader = RingWriter(self.segment, layout), RingReader(self.segment, layout)
        self.reader.grant(slots)
        self.sources = np.random.default_rng(0).integers(0, 255, (SOURCES, row_bytes), np.uint8)
        self.armed = np.zeros(16, np.int64)
        copy_rows(self.writer.obs, self.sources, slots)

    def through_ring(self, count: int, copied_out: bool) -> float:
        """Rows per second, from the first copy to the last row seen."""
        out = np.empty((SOURCES if copied_out else 0, self.sources.shape[1]), np.uint8)
        reader, writer = self.reader, self.writer
        last = reader.granted + count

        def work() -> int:
            return read_rows(reader.header, reader.obs, reader.version, out, count)

        with reader_process(work):
            start = time.perf_counter()
            write_rows(writer.header, writer.obs, writer.version, self.armed, self.sources, count)
            wait_for(writer.header, GRANTED, last)
            elapsed = time.perf_counter() - start
        return count / elapsed

    def by_memcpy(self, count: int) -> float:
        """Rows per second of the copies alone."""
        return count / seconds(lambda: copy_rows(self.writer.obs, self.sources, count))


def measure_rows(report: Report, repeats: int) -> None:
    for name, row_bytes, count in (("4_KiB", 4096, 200_000), ("28_KiB", 28 * 1024, 40_000)):
        rows = Rows(row_bytes)
        in_place, copied_out, plain = [], [], []
        for _ in range(repeats):
            before = rows.by_memcpy(count)
            in_place.append(rows.through_ring(count, copied_out=False))
            copied_out.append(rows.through_ring(count, copied_out=True))
            plain.append((before + rows.by_memcpy(count)) / 2)
        for key, values in (("memcpy", plain), ("in_place", in_place), ("copied_out", copied_out)):
            report.add(f"rows_of_{name}/{key}", [v * row_bytes / 1e9 for v in values], "GB/s")
        report.add_ratio(f"rows_of_{name}/in_place_to_memcpy", in_place, plain, goal="at least 0.8")
        report.add_ratio(f"rows_of_{name}/copied_out_to_memcpy", copied_out, plain)


def measure_small_rows(report: Report, repeats: int) -> None:
    layout = RingLayout(1, 4096, EnvSpec("small", (4,), "float32", DiscreteAction(2)))
    segment = Segment.create("small", layout.arrays(), populate=True)
    writer, reader = RingWriter(segment, layout), RingReader(segment, layout)
    reader.grant(layout.num_slots)
    fields = (writer.header, writer.obs, writer.action, writer.reward, writer.flags)
    fields = (*fields, writer.version, writer.incarnation)
    armed = np.zeros(16, np.int64)

    def compiled(count: int) -> None:
        write_small_rows(*fields, armed, count)
        writer.published += count

    def python(count: int) -> None:
        for row in range(writer.published, writer.published + count):
            while writer.writable() < 1:
                pass
            write_small_row(*fields, row)
            writer.publish(1, 1)

    def positions_only(count: int) -> None:
        publish = writer.publish
        for _ in range(count):
            publish(1, 1)

    def rate(write: Callable[[int], None], count: int) -> float:
        last = reader.granted + count
        with reader_process(lambda: see_rows(reader.header, reader.version, count)):
            start = time.perf_counter()
            write(count)
            wait_for(writer.header, GRANTED, last)
            elapsed = time.perf_counter() - start
        return count / elapsed

    report.note("small_row_bytes", layout.bytes_per_row())
    report.add(
        "small_rows/compiled", [rate(compiled, 4_000_000) for _ in range(repeats)], "rows/s", "over 1e6"
    )
    report.add("small_rows/python", [rate(python, 200_000) for _ in range(repeats)], "rows/s")
    writer.header[GRANTED] = 1 << 40
    calls = [seconds(lambda: positions_only(200_000)) / 200_000 * 1e9 for _ in range(repeats)]
    report.add("small_rows/publish_call", calls, "ns", "200 to 300")


def measure_weights(report: Report, repeats: int) -> None:
    for name, count, rounds in (("100_KB", 25_000, 20_000), ("5_MB", 1_250_000, 300)):
        mailbox = WeightMailbox.create(count)
        values, out = np.random.default_rng(0).random(count, np.float32), np.empty(count, np.float32)
        buffers = mailbox.segment["values"]

        def ours(rounds: int = rounds, mailbox=mailbox, values=values, out=out) -> None:
            for _ in range(rounds):
                mailbox.refresh(out, mailbox.publish(values) - 1)

        def plain(rounds: int = rounds, buffers=buffers, values=values, out=out) -> None:
            for i in range(rounds):
                np.copyto(buffers[i & 1], values)
                np.copyto(out, buffers[i & 1])

        alone, copies, across, copies_across = [], [], [], []
        for _ in range(repeats):
            copies.append(seconds(plain) / rounds * 1e6)
            alone.append(seconds(ours) / rounds * 1e6)
            copies_across.append(across_cores(mailbox, values, rounds, plain=True) * 1e6)
            across.append(across_cores(mailbox, values, rounds, plain=False) * 1e6)
        report.add(f"weights_of_{name}/memcpy_twice", copies, "us")
        report.add(f"weights_of_{name}/publish_and_refresh", alone, "us")
        report.add_ratio(f"weights_of_{name}/to_memcpy", alone, copies, goal="at most 2")
        report.add(f"weights_of_{name}/memcpy_twice_across_cores", copies_across, "us")
        report.add(f"weights_of_{name}/publish_and_refresh_across_cores", across, "us")
        report.add_ratio(f"weights_of_{name}/to_memcpy_across_cores", across, copies_across, goal="at most 2")
        mailbox.close()


def across_cores(mailbox: WeightMailbox, values: np.ndarray, rounds: int, plain: bool) -> float:
    """Seconds from the start of a publication until the process on the other core has the weights."""
    words_segment = Segment.create("words", WORDS)
    words, buffers, first = words_segment["words"], mailbox.segment["values"], mailbox.version

    def work() -> int:
        out, have = np.empty_like(values), first
        for i in range(1, rounds + 1):
            wait_for(words, 0, i)
            if plain:
                np.copyto(out, buffers[i & 1])
            else:
                have = mailbox.refresh(out, have)
            tell(words, 32, i)
        return int(not plain and have != first + rounds) + int((out != values).any())

    with reader_process(work):
        start = time.perf_counter()
        for i in range(1, rounds + 1):
            if plain:
                np.copyto(buffers[i & 1], values)
            else:
                mailbox.publish(values)
            tell(words, 0, i)
            wait_for(words, 32, i)
        elapsed = time.perf_counter() - start
    return elapsed / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=7, help="repeats of each measurement; medians are reported"
    )
    repeats = parser.parse_args().repeats
    pin(WRITER_CORE)
    report = Report("transport")
    report.note("repeats", repeats)
    measure_rows(report, repeats)
    measure_small_rows(report, repeats)
    measure_weights(report, repeats)
    print(report.write())


if __name__ == "__main__":
    main()
