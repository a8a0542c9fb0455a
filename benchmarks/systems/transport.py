"""Throughput and latency of rows and weights from one process to another.

    python -m benchmarks.systems.transport [--repeats 7]

Two processes on two cores: this one writes, a forked one reads. Every figure has a reference next to it: a memcpy of
the same bytes from and to the same memory on the same core, measured in the same repeat.

Rows of 4 KiB and 28 KiB: one compiled loop copies a row into the ring and publishes it, row by row. A row counts when
the reader has read the position, checked the row's stamp, and granted its slot again. Rings of 256 MiB, which like a
replay's are in main memory, and of 8 MiB, which fit in the third-level cache; both wrap around many times.

    polled      the reader polls every 10 microseconds or so, like a consumer with other work
    spun        the reader polls without pause, so that the position's cache line moves for every row
    copied_out  the reader polls like `polled` and copies every row; the reference is the memcpy on the reader's core of
                rows that the other core has just written. (The replay does not copy: it reads rows in place.)

Small rows: CartPole's. `compiled` publishes each row separately from a compiled loop; `python` calls a compiled row
writer and `RingWriter.publish` once per row, and checks for space when it is used up; the reader polls without pause.

Weights: `publish` and `refresh` on one core, and with the reader on the other core.

The figures depend on how often both sides access the same cache lines. Without a reader at the ring, publishing costs
about 10 % of a 4 KiB memcpy in the cache and 3 % of a 28 KiB one. A reader that polls without pause repeatedly takes
the position's cache line (a round trip takes 0.5 microseconds, as long as several 4 KiB copies): rows of 4 KiB miss the
goal of 0.8 when `spun`, and in the cache also when `polled`. asyncrl's case is `polled` on a ring as large as a
replay's. The goal is shown with every `polled` ratio, also where it is missed.

Other work on the machine keeps one of the two sides off its core for milliseconds at a time: run it on an idle machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.shm import ArraySpec, RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from asyncrl.shm.atomics import copy_words, load_acquire, store_release
from asyncrl.shm.kernel import kernel
from asyncrl.shm.prepare import prepare_quietly
from asyncrl.shm.ring_layout import GRANTED, PUBLISHED
from asyncrl.shm.ring_protocol import publish_rows
from benchmarks.harness.report import Report

Array = NDArray[Any]
SOURCES = 16
"""Number of different rows to copy from; they stay in the cache, as a new observation would."""
BYTES_PER_RUN = 1 << 29
PAUSE = 30_000
"""Reads of a private word between two polls of the ring by the reader; about 10 microseconds."""
READY, WRITTEN, NANOSECONDS = 0, 16, 32
WRITER_CORE, READER_CORE = 0, 1
WORDS = (ArraySpec("words", (64,), "int64", control=True),)


@kernel("void(int64[::1], uint8[:, :, ::1], int64[::1], int64[::1], uint8[:, ::1], int64)")
def write_rows(header: Array, obs: Array, version: Array, armed: Array, sources: Array, count: int) -> None:
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
def copy_rows(obs: Array, sources: Array, count: int) -> None:
    """Copy the same rows to the same slots: the memcpy in `write_rows`."""
    mask = obs.shape[1] - 1
    for row in range(count):
        copy_words(obs[0, row & mask], sources[row & 15])


@kernel("int64(int64[::1], uint8[:, :, ::1], int64[::1], uint8[:, ::1], int64[::1], int64, int64)")
def read_rows(
    header: Array, obs: Array, version: Array, out: Array, words: Array, pause: int, count: int
) -> int:
    """Check `count` rows and grant their slots; copy each to `out` if that has rows. Returns the wrong stamps."""
    slots, first, wrong = version.shape[0], load_acquire(header, GRANTED) - version.shape[0], 0
    row = first
    store_release(words, READY, 1)
    while row < first + count:
        published = load_acquire(header, PUBLISHED)
        for seen in range(row, published):
            wrong += version[seen & (slots - 1)] != seen
            if out.shape[0] > 0:
                copy_words(out[seen & 15], obs[0, seen & (slots - 1)])
        if published > row:
            row = published
            store_release(header, GRANTED, row + slots)
        for _ in range(pause):
            load_acquire(words, READY)
    return wrong


@kernel("void(uint8[:, ::1], uint8[:, :, ::1], int64)")
def copy_rows_out(out: Array, obs: Array, count: int) -> None:
    """Copy rows out of the ring: the memcpy of a reader that copies."""
    for row in range(count):
        copy_words(out[row & 15], obs[0, row & (obs.shape[1] - 1)])


_SMALL = (
    "int64[::1], float32[:, :, ::1], int64[:, ::1], float32[:, ::1], uint8[:, ::1], int64[::1], int32[::1]"
)


@kernel(f"void({_SMALL}, int64)")
def write_small_row(
    header: Array,
    obs: Array,
    action: Array,
    reward: Array,
    flags: Array,
    version: Array,
    incarnation: Array,
    row: int,
) -> None:
    """Write all fields of one row of one environment."""
    slot = row & (version.shape[0] - 1)
    for i in range(obs.shape[2]):
        obs[0, slot, i] = row
    action[0, slot] = row & 1
    reward[0, slot] = 1
    flags[0, slot] = 0
    version[slot] = row
    incarnation[slot] = 1


@kernel(f"void({_SMALL}, int64[::1], int64)")
def write_small_rows(
    header: Array,
    obs: Array,
    action: Array,
    reward: Array,
    flags: Array,
    version: Array,
    incarnation: Array,
    armed: Array,
    count: int,
) -> None:
    """Write and publish `count` rows, each separately."""
    first, granted = header[PUBLISHED], load_acquire(header, GRANTED)
    for row in range(first, first + count):
        while granted <= row:
            granted = load_acquire(header, GRANTED)
        write_small_row(header, obs, action, reward, flags, version, incarnation, row)
        publish_rows(header, armed, 1, 1)


@kernel("void(int64[::1], int64, int64)")
def wait_for(words: Array, index: int, value: int) -> None:
    """Spin until the word has reached the value."""
    while load_acquire(words, index) < value:
        pass


@kernel("void(int64[::1], int64, int64)")
def tell(words: Array, index: int, value: int) -> None:
    """Store the word with release order."""
    store_release(words, index, value)


@contextmanager
def reader_process(work: Callable[[], int]) -> Iterator[None]:
    """Fork a reader on its own core that runs `work`, which returns 0 on success; joined at the exit."""
    prepare_quietly()
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
    """Pin this process to one core, if the system supports it."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Rows:
    """A ring of uint8 rows of one size, all granted, with all its pages touched."""

    def __init__(self, row_bytes: int, ring_bytes: int) -> None:
        slots = 1 << (ring_bytes // row_bytes).bit_length() - 1
        layout = RingLayout(1, slots, EnvSpec("rows", (row_bytes,), "uint8", DiscreteAction(2)))
        self.segment = Segment.create("rows", layout.arrays(), populate=True)
        self.writer, self.reader = RingWriter(self.segment, layout), RingReader(self.segment, layout)
        self.reader.grant(slots)
        self.sources = np.random.default_rng(0).integers(0, 255, (SOURCES, row_bytes), np.uint8)
        self.armed = np.zeros(16, np.int64)
        self.count = max(2 * slots, BYTES_PER_RUN // row_bytes)
        self.by_memcpy()

    def through_ring(self, pause: int, copied_out: bool = False) -> float:
        """Rows per second, from the first copy to the last row granted again."""
        words = Segment.create("words", WORDS)["words"]
        reader, writer, count = self.reader, self.writer, self.count
        last = reader.granted + count

        def work() -> int:
            out = np.zeros((SOURCES if copied_out else 0, self.sources.shape[1]), np.uint8)
            copy_rows_out(out, reader.obs, reader.num_slots if copied_out else 0)
            return read_rows(reader.header, reader.obs, reader.version, out, words, pause, count)

        with reader_process(work):
            wait_for(words, READY, 1)
            start = time.perf_counter()
            write_rows(writer.header, writer.obs, writer.version, self.armed, self.sources, count)
            wait_for(writer.header, GRANTED, last)
            elapsed = time.perf_counter() - start
        return count / elapsed

    def by_memcpy(self) -> float:
        """Rows per second of the copies alone."""
        return self.count / seconds(lambda: copy_rows(self.writer.obs, self.sources, self.count))

    def by_memcpy_on_the_other_core(self) -> float:
        """Rows per second of the reader's copies alone, of rows that this core has just written."""
        words, slots = Segment.create("words", WORDS)["words"], self.reader.num_slots

        def work() -> int:
            out = np.zeros((SOURCES, self.sources.shape[1]), np.uint8)
            copy_rows_out(out, self.reader.obs, slots)
            tell(words, READY, 1)
            wait_for(words, WRITTEN, 1)
            tell(words, NANOSECONDS, round(1e9 * seconds(lambda: copy_rows_out(out, self.reader.obs, slots))))
            return 0

        with reader_process(work):
            wait_for(words, READY, 1)
            copy_rows(self.writer.obs, self.sources, slots)
            tell(words, WRITTEN, 1)
        return slots / (int(words[NANOSECONDS]) / 1e9)

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


def measure_rows(report: Report, repeats: int) -> None:
    for where, ring_bytes in (("memory", 256 << 20), ("cache", 8 << 20)):
        for size, row_bytes in (("4_KiB", 4 << 10), ("28_KiB", 28 << 10)):
            rows, name = Rows(row_bytes, ring_bytes), f"rows_of_{size}_in_{where}"
            plain, other, polled, spun, copied_out = [], [], [], [], []
            for _ in range(repeats):
                before = rows.by_memcpy()
                polled.append(rows.through_ring(PAUSE))
                plain.append((before + rows.by_memcpy()) / 2)
                spun.append(rows.through_ring(0))
                other.append(rows.by_memcpy_on_the_other_core())
                copied_out.append(rows.through_ring(PAUSE, copied_out=True))
            of = {"memcpy": plain, "polled": polled, "spun": spun}
            of |= {"memcpy_on_the_other_core": other, "copied_out": copied_out}
            for key, values in of.items():
                report.add(f"{name}/{key}", [v * row_bytes / 1e9 for v in values], "GB/s")
            report.add_ratio(f"{name}/polled_to_memcpy", polled, plain, goal="at least 0.8")
            report.add_ratio(f"{name}/spun_to_memcpy", spun, plain)
            report.add_ratio(f"{name}/copied_out_to_memcpy_on_the_other_core", copied_out, other)
            rows.close()


def measure_small_rows(report: Report, repeats: int) -> None:
    layout = RingLayout(1, 4096, EnvSpec("small", (4,), "float32", DiscreteAction(2)))
    segment = Segment.create("small", layout.arrays(), populate=True)
    writer, reader = RingWriter(segment, layout), RingReader(segment, layout)
    reader.grant(layout.num_slots)
    fields = (
        *(writer.header, writer.obs, writer.action),
        *(writer.reward, writer.flags, writer.version, writer.incarnation),
    )
    armed = np.zeros(16, np.int64)

    def compiled(count: int) -> None:
        write_small_rows(*fields, armed, count)
        writer.published += count

    def python(count: int) -> None:
        write, publish, last = write_small_row, writer.publish, writer.published + count
        while writer.published < last:
            first, space = writer.published, writer.writable()
            for row in range(first, min(first + space, last)):
                write(*fields, row)
                publish(1, 1)

    def positions_only(count: int) -> None:
        publish = writer.publish
        for _ in range(count):
            publish(1, 1)

    def rate(write: Callable[[int], None], count: int) -> float:
        words, last = Segment.create("words", WORDS)["words"], reader.granted + count
        payload = (np.zeros((1, 1, 1), np.uint8), reader.version, np.zeros((0, 1), np.uint8), words)
        with reader_process(lambda: read_rows(reader.header, *payload, 0, count)):
            wait_for(words, READY, 1)
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
    for name, count, rounds in (("100_KB", 25_000, 4_000), ("5_MB", 1_250_000, 100)):
        mailbox = WeightMailbox.create(count)
        values, out = np.random.default_rng(0).random(count, np.float32), np.empty(count, np.float32)
        buffers = mailbox.segment["values"]

        def ours(
            rounds: int = rounds, mailbox: WeightMailbox = mailbox, values: Array = values, out: Array = out
        ) -> None:
            for _ in range(rounds):
                mailbox.refresh(out, mailbox.publish(values) - 1)

        def plain(
            rounds: int = rounds, buffers: Array = buffers, values: Array = values, out: Array = out
        ) -> None:
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
    report.note("pause_between_looks", f"{PAUSE} loads of a private word")
    measure_rows(report, repeats)
    measure_small_rows(report, repeats)
    measure_weights(report, repeats)
    print(report.write())


if __name__ == "__main__":
    main()
