"""The ring between two processes: every row once, in order and complete, whenever the writer dies."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from shm_processes import COUNTING, WORDS, first_bad_row, rows_of
from waiting import PATIENCE_SECONDS as FIRST_ROW_SECONDS

from asyncrl.shm import Doorbell, RingReader, Segment
from asyncrl.shm.ring import PUBLISHED

KILLS = 200
KILLS_WITH_ROWS_IN_PYTHON = 60
KILLS_OF_A_WRONG_WRITER = 500
LONGEST_LIFE_SECONDS = 0.004
FOREVER = 1 << 40


class Consumer:
    """Reads every row immediately, checks it against arithmetic, and grants its slot again."""

    def __init__(self, segment: Segment) -> None:
        self.reader = RingReader(segment, COUNTING)
        self.reader.grant(COUNTING.num_slots)
        self.seen = 0
        self.bad = 0

    def look(self) -> int:
        """Check the new rows; returns their number."""
        published = self.reader.published()
        if published == self.seen:
            return 0
        rows, start = rows_of(self.reader), self.seen
        while (bad := first_bad_row(*rows, start, published)) >= 0:
            self.bad += 1
            start = bad + 1
        count = published - self.seen
        self.seen = published
        self.reader.grant(published + COUNTING.num_slots)
        return count


@pytest.fixture
def segment():
    with Segment.create("test", COUNTING.arrays(), poison=True) as segment:
        yield segment


def live_and_die(nursery, consumer, function, args, fds, seconds, *, after_rows=0):
    """Let a writer live for a time while its rows are read, kill it, and read the rows that it left.

    The time begins at its fork or after that many rows, however long the machine takes to get there.
    """
    before = consumer.seen
    pid = nursery.fork(function, *args, fds=fds)
    deadline = time.monotonic() + FIRST_ROW_SECONDS
    while consumer.seen < before + after_rows and time.monotonic() < deadline:
        consumer.look()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        consumer.look()
    nursery.kill(pid)
    consumer.look()


def test_a_writer_killed_anywhere_leaves_whole_rows_and_a_successor_goes_on(nursery, segment):
    consumer, rng, productive = Consumer(segment), np.random.default_rng(1), 0
    for life in range(KILLS):
        before = consumer.seen
        seconds = rng.uniform(0, LONGEST_LIFE_SECONDS)
        args = (life, FOREVER, False), (segment.fd,), seconds
        live_and_die(nursery, consumer, "write_in_kernel", *args, after_rows=int(life % 2 == 0))
        assert consumer.bad == 0, f"torn, lost or doubled rows after life {life}"
        productive += consumer.seen > before
    assert productive >= KILLS // 2, "many lives must end while rows are written"
    assert consumer.reader.statistics().env_steps // COUNTING.num_envs == pytest.approx(
        consumer.seen, abs=KILLS
    )


def test_rows_written_through_python_survive_kills_too(nursery, segment):
    consumer, rng, bell = Consumer(segment), np.random.default_rng(2), Doorbell.create()
    fds = (segment.fd, *bell.writer_fds())
    for life in range(KILLS_WITH_ROWS_IN_PYTHON):
        bell.arm()
        args = (life, FOREVER), fds, rng.uniform(0, 0.008)
        live_and_die(nursery, consumer, "write_in_python", *args, after_rows=3 * (life % 2))
        assert consumer.bad == 0
    assert consumer.seen > KILLS_WITH_ROWS_IN_PYTHON
    bell.close()


def test_the_test_sees_a_position_that_is_published_before_its_data(nursery, segment):
    """Negative control: the same loop must detect torn rows of a wrong writer."""
    consumer, rng = Consumer(segment), np.random.default_rng(3)
    for life in range(KILLS_OF_A_WRONG_WRITER):
        seconds = rng.uniform(0.001, LONGEST_LIFE_SECONDS)
        args = (life, FOREVER, True), (segment.fd,), seconds
        live_and_die(nursery, consumer, "write_in_kernel", *args, after_rows=1)
        if consumer.bad >= 5:
            return
    pytest.fail(
        f"{KILLS_OF_A_WRONG_WRITER} kills of a writer that publishes first tore {consumer.bad} rows: the test is blind"
    )


def test_every_row_arrives_once_and_lives_do_not_mix(nursery, segment):
    """Two lives end by themselves; both counts and the incarnations on the rows must be consistent."""
    consumer, bell = Consumer(segment), Doorbell.create()
    counts = []
    for life, until in ((1, 700), (2, 1500)):
        pid = nursery.fork("write_in_python", life, until, fds=(segment.fd, *bell.writer_fds()))
        while consumer.seen < until:
            bell.arm()
            if not consumer.look():
                bell.wait(0.1)
            bell.disarm()
            bell.drain()
        newest = (until - 1) & (COUNTING.num_slots - 1)
        assert consumer.reader.incarnation[newest] == life
        counts.append(nursery.join(pid))
    assert counts == [700, 800] and consumer.bad == 0
    assert consumer.reader.header[PUBLISHED] == 1500
    bell.close()


def test_no_sleeper_is_missed_between_store_and_load(nursery, segment):
    """Store-load litmus test of the other direction: go to sleep and read against grant and read."""
    with Segment.create("words", WORDS) as words:
        fds = (segment.fd, words.fd)
        sleeping = nursery.fork("sleeping_side", fds=fds)
        rounds, lost = nursery.join(nursery.fork("granting_side", 200_000, 3.0, fds=fds))
        nursery.join(sleeping)
    assert rounds >= 100 and lost == 0


def test_an_actor_without_space_sleeps_until_it_is_woken(nursery, segment):
    """The actor sleeps without a time-out, so that one lost wake-up would hang the test."""
    reader, until = RingReader(segment, COUNTING), 3000
    commands, orders = os.pipe()
    pid = nursery.fork("sleep_for_grants", until, fds=(segment.fd, commands))
    deadline = time.monotonic() + FIRST_ROW_SECONDS
    while (published := reader.published()) < until and time.monotonic() < deadline:
        reader.grant(min(published + 2, until))
        if reader.take_waiting():
            os.write(orders, b"S")
    assert reader.published() == until
    assert nursery.join(pid) > 0
    os.close(commands)
    os.close(orders)
