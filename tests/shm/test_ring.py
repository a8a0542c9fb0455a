"""The ring in one process: rules, counters, refusals, and random operations against a slow reference."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from shm_processes import COUNTING, first_bad_row, rows_of, write_observation, write_row

from asyncrl.envs.checks import SUCCEEDED
from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import DiscreteAction, EnvSpec, FieldSpec
from asyncrl.shm import Doorbell, DoorbellWriter, RingLayout, RingReader, RingWriter, Segment, ring_health
from asyncrl.shm import ring as ring_module
from asyncrl.shm import ring_protocol as module
from asyncrl.shm.atomics import load_word_last
from asyncrl.shm.ring_layout import (
    CURRENT_ENV,
    EPISODE_LOG,
    EPISODES,
    GRANTED,
    HEADER_WORDS,
    HEARTBEAT_NS,
    LOGGING,
    PUBLISHED,
    RUNNING,
    STATE,
    STEPS,
    WAIT_NS,
    WAITING,
    WAKE_AT,
    RingStatistics,
)

SPEC = EnvSpec("test", (3,), "float32", DiscreteAction(2))
LAYOUT = RingLayout(num_envs=2, num_slots=8, spec=SPEC, extra_fields=(FieldSpec("value", (), "float32"),))


@pytest.fixture
def ring() -> Iterator[tuple[RingWriter, RingReader]]:
    with Segment.create("test", LAYOUT.arrays(), poison=True) as segment:
        writer, reader = RingWriter(segment, LAYOUT), RingReader(segment, LAYOUT)
        yield writer, reader
        writer.close()
        reader.close()


# ---- layout --------------------------------------------------------------------------------------


def record(writer: RingWriter, episode_return: float, length: int) -> None:
    """Log a finished episode."""
    module.record_episode(writer.header, writer.episode_return, writer.episode_length, episode_return, length)


def test_layout_is_stream_major_and_travels():
    layout = pickle.loads(pickle.dumps(LAYOUT))
    assert layout == LAYOUT
    shapes = {a.name: (a.shape, a.dtype) for a in layout.arrays()}
    assert shapes == {
        "header": ((HEADER_WORDS,), "int64"),
        "obs": ((2, 8, 3), "float32"),
        "action": ((2, 8), "int64"),
        "reward": ((2, 8), "float32"),
        "flags": ((2, 8), "uint8"),
        "value": ((2, 8), "float32"),
        "version": ((8,), "int64"),
        "policy_updates": ((8,), "int64"),
        "incarnation": ((8,), "int32"),
        "episode_return": ((EPISODE_LOG,), "float64"),
        "episode_length": ((EPISODE_LOG,), "int64"),
        "episode_success": ((EPISODE_LOG,), "int8"),
    }
    assert layout.bytes_per_row() == 2 * (3 * 4 + 8 + 4 + 1 + 4) + 8 + 8 + 4
    assert layout.nbytes() >= 8 * layout.bytes_per_row()


def test_words_of_different_writers_are_128_bytes_apart():
    actor, learner, handshake = PUBLISHED, GRANTED, WAITING
    assert (learner - actor, handshake - learner) == (16, 16)
    assert WAKE_AT // 16 == GRANTED // 16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_slots": 12}, "num_slots must be a power of two, at least 2, got 12"),
        ({"num_slots": 1}, "num_slots must be a power of two, at least 2, got 1"),
        ({"extra_fields": (FieldSpec("reward", (), "int8"),)}, "names of their own, got reward twice"),
        ({"extra_fields": (FieldSpec("a", (), "int8"),) * 2}, "names of their own, got a twice"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(change, text):
    with pytest.raises(ValueError, match=text):
        RingLayout(**({"num_envs": 2, "num_slots": 8, "spec": SPEC} | change))


def test_an_end_refuses_memory_of_another_layout():
    other = Segment.create("test", COUNTING.arrays())
    with other, pytest.raises(ValueError, match=r"must be laid out by layout.arrays\(\), got another"):
        RingReader(other, LAYOUT)


# ---- publish, retire, grant ----------------------------------------------------------------------


def test_nothing_may_be_written_before_the_first_grant(ring):
    writer, reader = ring
    assert writer.writable() == 0 and reader.published() == 0 and reader.retired == 0
    with pytest.raises(ValueError, match="rows must be between 1 and the 0 granted, got 1"):
        writer.publish()
    assert reader.published() == 0 and (reader.reward < -2e36).all()


def test_publish_shows_rows_and_counts_steps(ring):
    writer, reader = ring
    reader.grant(8)
    writer.reward[:, 0] = [1.5, 2.5]
    writer.extras["value"][:, 0] = 3
    writer.publish(steps=2)
    writer.publish(3, steps=5)
    assert reader.published() == writer.published == 4
    assert reader.reward[:, 0].tolist() == [1.5, 2.5] and reader.extras["value"][1, 0] == 3
    assert reader.statistics().env_steps == 7
    assert writer.writable() == 4


@pytest.mark.parametrize("rows", [0, -1, 9])
def test_publish_refuses_rows_that_were_not_granted(ring, rows):
    writer, reader = ring
    reader.grant(8)
    with pytest.raises(ValueError, match=f"rows must be between 1 and the 8 granted, got {rows}"):
        writer.publish(rows)
    assert reader.published() == writer.published == 0


def test_grant_moves_forward_and_never_over_unpublished_rows(ring):
    writer, reader = ring
    reader.grant(8)
    with pytest.raises(ValueError, match="position must not move back from 8, got 7"):
        reader.grant(7)
    with pytest.raises(ValueError, match=r"position must be at most published \+ num_slots = 8, got 9"):
        reader.grant(9)
    writer.publish(5)
    reader.grant(13)
    assert (reader.granted, reader.retired, writer.writable()) == (13, 5, 8)
    with pytest.raises(ValueError, match=r"at most published \+ num_slots = 13, got 14"):
        reader.grant(14)


def test_a_new_writer_goes_on_where_the_last_one_published(ring):
    writer, reader = ring
    reader.grant(8)
    writer.publish(3)
    successor = RingWriter(writer.segment, LAYOUT)
    assert successor.published == 3
    successor.publish(2)
    assert reader.published() == 5


@pytest.mark.parametrize(("published", "granted"), [(-1, 8), (9, 8), (3, 16), (1 << 62, 8)])
def test_positions_that_cannot_be_are_reported(ring, published, granted):
    _, reader = ring
    reader.header[GRANTED] = granted
    reader.header[PUBLISHED] = published
    for _ in range(2):
        with pytest.raises(RingCorrupt, match=r"ASYNC023.*overwritten from outside") as caught:
            reader.published()
        assert f"published is {published}, granted {granted}" in caught.value.facts["header"]
    statistics = reader.statistics()
    assert max(0, granted - reader.num_slots) <= statistics.published <= granted
    assert 0 <= statistics.fill <= 1


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (STATE, 77),
        (STATE, -1),
        (STEPS, -1),
        (STEPS, 1 << 40),
        (EPISODES, 1 << 62),
        (LOGGING, 1 << 62),
        (CURRENT_ENV, LAYOUT.num_envs),
        (WAIT_NS, -5),
        (GRANTED, 9),
        (GRANTED, 7),
        (PUBLISHED, 9),
        (WAITING, 2),
    ],
)
def test_every_word_that_cannot_be_true_is_a_fault(ring, word, value):
    writer, reader = ring
    reader.grant(8)
    writer.publish(3)
    assert reader.check_header() and reader.fault == ""
    reader.header[word] = value
    assert not reader.check_header()
    assert str(value) in reader.fault
    reader.statistics()


def test_rows_that_are_granted_and_written_during_the_check_are_no_fault(ring, monkeypatch):
    writer, reader = ring

    def load_and_move(words, i):
        granted = load_word_last(words, i)
        reader.grant(granted + 4)
        writer.publish(3)
        writer.add_times(1, 2, 3, rows=3)
        record(writer, 1.0, 2)
        return granted

    monkeypatch.setattr(ring_health, "load_word_last", load_and_move)
    assert reader.check_header(), reader.fault
    assert reader.check_header(), reader.fault
    assert reader.published() == 6


def test_a_fault_keeps_a_ring_from_being_read_or_granted_until_it_is_begun_again(ring):
    writer, reader = ring
    reader.grant(8)
    writer.publish(3)
    assert reader.reached(3) and not reader.reached(4)
    record(writer, 1.0, 2)
    assert reader.episodes_since(0)[0] == 1
    writer.header[:] = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, writer.header.shape[0])
    with pytest.raises(RingCorrupt, match="rows were published"):
        writer.publish()
    assert reader.reached(100), "a fault that is found now is worth a look"
    assert reader.fault and not reader.reached(0)
    with pytest.raises(RingCorrupt):
        reader.published()
    with pytest.raises(RingCorrupt):
        reader.grant(9)
    count, returns, lengths, _ = reader.episodes_since(1)
    assert (count, returns.size, lengths.size) == (1, 0, 0)
    with pytest.raises(ValueError, match="ring must be abandoned"):
        reader.begin_again(3, 8)
    reader.abandoned = True
    assert reader.reached(0), "it is to be begun again"
    reader.begin_again(3, 8)
    assert reader.check_header() and not reader.abandoned
    successor = RingWriter(writer.segment, LAYOUT)
    assert (successor.published, successor.writable()) == (3, 5)
    assert reader.statistics().state == "starting"
    assert reader.episodes_since(1)[0] == 1
    successor.publish(2)
    reader.grant(9)
    assert reader.published() == 5


def test_an_episode_count_that_moved_back_is_a_fault(ring):
    _, reader = ring
    assert reader.episodes_since(5)[0] == 5
    assert "0 episodes are counted, and 5 were before" in reader.fault


def test_a_ring_begun_again_while_episodes_are_read_has_no_new_fault(ring, monkeypatch):
    """The learner's thread begins it again, with a count of episodes that is 0 meanwhile; the event loop reads."""
    writer, reader = ring
    reader.grant(8)
    writer.publish(3)
    record(writer, 1.0, 2)
    assert reader.episodes_since(0)[0] == 1
    reader.set_fault("found before")
    reader.abandoned = True

    def load_meanwhile(header, word):
        reader.begin_again(3, 8)
        return 0

    monkeypatch.setattr(ring_module, "load_word", load_meanwhile)
    assert reader.episodes_since(1)[0] == 1
    assert reader.fault in ("", "found before")


def test_random_operations_agree_with_a_twin_that_keeps_every_row():
    rng = np.random.default_rng(5)
    with Segment.create("test", COUNTING.arrays(), poison=True) as segment:
        writer, reader = RingWriter(segment, COUNTING), RingReader(segment, COUNTING)
        published = granted = 0
        for _ in range(3000):
            kind = rng.integers(4)
            if kind == 0:  # write some of what is granted; the last of it holds only an observation
                for row in range(published, published + rng.integers(0, max(1, granted - published))):
                    if row == 0:
                        for e in range(COUNTING.num_envs):
                            write_observation(writer.obs, e, 0, 0)
                    write_row(*rows_of(writer), row, 1)
                    writer.publish()
                    published += 1
            elif kind == 1:
                granted += int(rng.integers(0, published + COUNTING.num_slots - granted + 1))
                reader.grant(granted)
            elif kind == 2:
                refused = granted - published + int(rng.integers(1, 5))
                with pytest.raises(ValueError, match="rows must be between"):
                    writer.publish(refused)
            else:
                writer = RingWriter(segment, COUNTING)
            retired = max(0, granted - COUNTING.num_slots)
            assert (writer.published, reader.published()) == (published, published)
            assert (reader.granted, writer.writable(), reader.retired) == (
                granted,
                granted - published,
                retired,
            )
            assert first_bad_row(*rows_of(reader), retired, published) == -1
        assert published > 20 * COUNTING.num_slots


# ---- sleeping and waking -------------------------------------------------------------------------


def test_an_actor_that_sleeps_is_woken_once_per_sleep(ring):
    writer, reader = ring
    assert not reader.take_waiting()
    assert writer.must_sleep(1)
    reader.grant(4)
    assert reader.take_waiting() and not reader.take_waiting()
    writer.slept(2_000_000_000)
    assert reader.statistics().wait_seconds == 2
    assert not writer.must_sleep(4), "granted meanwhile"
    assert not reader.take_waiting(), "and so nobody has to be woken"


def test_a_successor_of_an_actor_killed_asleep_is_awake(ring):
    writer, reader = ring
    assert writer.must_sleep(1)
    RingWriter(writer.segment, LAYOUT)
    assert not reader.take_waiting()


def test_the_bell_rings_only_for_a_sleeper_and_from_its_position_on():
    with Segment.create("test", LAYOUT.arrays()) as segment:
        bell = Doorbell.create()
        writer_bell = DoorbellWriter.attach(*map(os.dup, bell.writer_fds()))
        writer, reader = RingWriter(segment, LAYOUT, writer_bell), RingReader(segment, LAYOUT)
        reader.grant(8)
        writer.publish()
        assert not bell.wait(0), "the consumer is awake"
        reader.wake_at(4)
        bell.arm()
        writer.publish(2)
        assert not bell.wait(0) and bell.armed, "3 rows are not 4"
        writer.publish()
        assert bell.wait(0) and not bell.armed
        writer.publish()
        assert bell.drain() == 1, "one bell per sleep"
        writer_bell.close()
        bell.close()


# ---- counters ------------------------------------------------------------------------------------


def test_statistics_show_what_the_actor_said(ring):
    writer, reader = ring
    reader.grant(8)
    writer.publish(4, steps=7)
    writer.set_state(RUNNING)
    writer.set_incarnation(3)
    writer.set_exploration(0.125)
    writer.heartbeat(12345)
    writer.slept(1_500_000_000)
    record(writer, 10.0, 10)
    assert reader.statistics() == RingStatistics(
        published=4,
        fill=0.5,
        env_steps=7,
        episodes=1,
        wait_seconds=1.5,
        state="running",
        incarnation=3,
        exploration_rate=0.125,
    )
    assert reader.header[HEARTBEAT_NS] == 12345
    writer.heartbeat()
    assert reader.header[HEARTBEAT_NS] > 12345


def test_episodes_are_read_once_and_in_order(ring):
    writer, reader = ring
    reader.grant(8)
    count, returns, lengths, _ = reader.episodes_since(0)
    assert (count, returns.size, lengths.size) == (0, 0, 0)
    record(writer, 1.5, 10)
    record(writer, 2.5, 20)
    count, returns, lengths, _ = reader.episodes_since(count)
    assert (count, returns.tolist(), lengths.tolist()) == (2, [1.5, 2.5], [10, 20])
    record(writer, 3.5, 30)
    count, returns, lengths, _ = reader.episodes_since(count)
    assert (count, returns.tolist(), lengths.tolist()) == (3, [3.5], [30])


def test_a_reader_that_comes_late_gets_the_newest_episodes(ring):
    writer, reader = ring
    reader.header[GRANTED] = EPISODE_LOG
    for i in range(EPISODE_LOG + 100):
        record(writer, i, i)
    count, returns, lengths, _ = reader.episodes_since(50)
    assert count == EPISODE_LOG + 100
    # The oldest entry is left out: the actor may be overwriting it at this moment.
    assert returns.tolist() == lengths.tolist() == list(range(101, EPISODE_LOG + 100))


def test_successes_that_are_logged_before_their_episodes_are_counted_are_not_those_of_older_ones(ring):
    """The successes of all episodes that end in a row are logged first, over entries that are still in the log."""
    writer, reader = ring
    reader.header[GRANTED] = EPISODE_LOG
    for i in range(EPISODE_LOG):
        record(writer, i, i)
    writer.log_successes(np.full(3, SUCCEEDED, np.int8))
    count, returns, _, successes = reader.episodes_since(0)
    assert count == EPISODE_LOG and returns.tolist() == list(range(3, EPISODE_LOG))
    assert (successes != SUCCEEDED).all()
    for i in range(3):
        record(writer, EPISODE_LOG + i, 1)
    count, returns, _, successes = reader.episodes_since(count)
    assert count == EPISODE_LOG + 3 and len(returns) == 3 and (successes == SUCCEEDED).all()


# ---- the kernels as plain Python -----------------------------------------------------------------


def test_kernels_mean_the_same_as_plain_python(monkeypatch):
    """`publish_rows` and the check of positions, compiled and interpreted, on random headers."""
    compiled = (module.publish_rows, module.published_or_corrupt, module.take_bell)
    monkeypatch.setattr(module, "load_acquire", lambda a, i: a[i])
    monkeypatch.setattr(module, "store_release", lambda a, i, v: a.__setitem__(i, v))
    monkeypatch.setattr(module, "fence", lambda: None)
    monkeypatch.setattr(module, "take_bell", lambda armed: bool(compiled[2](armed)))
    rng = np.random.default_rng(0)
    for _ in range(2000):
        header, armed = np.zeros(HEADER_WORDS, np.int64), np.zeros(16, np.int64)
        header[[PUBLISHED, GRANTED, WAKE_AT]] = rng.integers(-2, 12, 3)
        armed[0] = rng.integers(2)
        rows = int(rng.integers(-1, 5))
        twin_header, twin_armed = header.copy(), armed.copy()
        outcome = compiled[0](header, armed, rows, 3)
        assert outcome == compiled[0].py_func(twin_header, twin_armed, rows, 3)
        assert (header == twin_header).all() and (armed == twin_armed).all()
        assert compiled[1](header, 8) == compiled[1].py_func(twin_header, 8)


def test_padding_lies_between_streams_and_is_never_written() -> None:
    spec = EnvSpec("padded", (2,), "float32", DiscreteAction(2))
    layout = RingLayout(3, 8, spec, padding=5)
    segment = Segment.create("ring", layout.arrays(), poison=True)
    try:
        writer, reader = RingWriter(segment, layout), RingReader(segment, layout)
        assert writer.obs.shape == (3, 8, 2) and writer.reward.shape == (3, 8)
        assert writer.reward.strides == (13 * 4, 4)
        untouched = segment["reward"][:, 8:].copy()
        writer.obs[:], writer.reward[:] = 1, 2
        assert segment["reward"][:, 8:].tobytes() == untouched.tobytes()
        assert (reader.obs == 1).all() and (reader.reward == 2).all()
        del untouched
        writer.close(), reader.close()
    finally:
        segment.close()
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        RingLayout(3, 8, spec, padding=-1)
