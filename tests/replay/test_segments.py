"""Segments out of rings, against a slow reference, against poison, and against a writer in another process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles import SlowRow
from replay_rig import AGENTS_SPEC, DEFAULT_SPEC, EXTRAS, FRAMES_SPEC, RandomActor
from waiting import PATIENCE_SECONDS

from asyncrl import interfaces as core
from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import RESET, DiscreteAction, EnvSpec, FieldSpec
from asyncrl.replay import SegmentQueue
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from asyncrl.shm.ring_layout import PUBLISHED
from asyncrl.shm.segment import POISON


@dataclass
class SlowQueue:
    """The same queue over lists of rows that are kept permanently."""

    rows: list[list[SlowRow]]
    length: int
    num_agents: int = 1
    seen: list[int] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)  # (ring, index of the segment), by arrival
    taken: list[tuple[int, int]] = field(default_factory=list)
    released: list[tuple[int, int]] = field(default_factory=list)
    inserted: int = 0

    def __post_init__(self) -> None:
        self.seen = [0] * len(self.rows)

    def steps(self, ring: int, index: int) -> int:
        part = self.rows[ring][index * self.length : (index + 1) * self.length]
        groups = (row.flags.reshape(-1, self.num_agents) for row in part)
        return sum(any(not flag & RESET for flag in group) for row in groups for group in row.tolist())

    def poll(self) -> int:
        """Return the first new segment of every ring, then the second of every ring, ..."""
        new = []
        for ring, rows in enumerate(self.rows):
            before, now = self.seen[ring] // self.length, len(rows) // self.length
            new += [(index - before, ring, index) for index in range(before, now)]
            self.seen[ring] = len(rows)
        steps = 0
        for _, ring, index in sorted(new):
            self.waiting.append((ring, index))
            steps += self.steps(ring, index)
        self.inserted += steps
        return steps

    def take(self, count: int) -> list[tuple[int, int]]:
        keys, self.waiting = self.waiting[:count], self.waiting[count:]
        self.taken += keys
        return keys

    def take_one_of_each(self) -> list[tuple[int, int]]:
        keys = [next(k for k in self.waiting if k[0] == ring) for ring in range(len(self.rows))]
        self.waiting = [k for k in self.waiting if k not in keys]
        self.taken += keys
        return keys

    def released_rows(self) -> list[int]:
        return [self.length * sum(ring == r for ring, _ in self.released) for r in range(len(self.rows))]


@dataclass
class Rig:
    """A queue, its slow reference, and the actors that feed both."""

    queue: SegmentQueue
    twin: SlowQueue
    actors: list[RandomActor]

    def grant(self, ring: int, position: int) -> None:
        self.queue.grant(ring, position)
        self.actors[ring].poison()

    def grant_all(self) -> None:
        """Grant as much as allowed, and poison all slots that may be overwritten."""
        for ring, released in enumerate(self.queue.released.tolist()):
            self.grant(ring, released + self.queue.rings[0].num_slots)

    def check(self, segment: core.Segment) -> None:
        """Check that a segment is bitwise equal to the actor's rows."""
        actor, first, stop = self.actors[segment.ring], segment.first, segment.first + self.queue.length
        rows = actor.rows[first:stop]
        after = actor.rows[stop].obs if stop < len(actor.rows) else actor.next_obs
        np.testing.assert_array_equal(segment.obs, np.stack([r.obs for r in rows], 1), strict=True)
        np.testing.assert_array_equal(segment.last_obs, after, strict=True)
        if actor.next_state is None:
            assert segment.state is segment.last_state is None
        else:
            then = actor.rows[stop].state if stop < len(actor.rows) else actor.next_state
            np.testing.assert_array_equal(segment.state, np.stack([r.state for r in rows], 1), strict=True)
            np.testing.assert_array_equal(segment.last_state, then, strict=True)
        np.testing.assert_array_equal(segment.action, np.stack([r.action for r in rows], 1), strict=True)
        np.testing.assert_array_equal(segment.reward, np.stack([r.reward for r in rows], 1), strict=True)
        np.testing.assert_array_equal(segment.flags, np.stack([r.flags for r in rows], 1), strict=True)
        assert segment.version.tolist() == [r.version for r in rows]
        assert segment.policy_updates.tolist() == [r.policy_updates for r in rows]
        assert segment.version.dtype == segment.policy_updates.dtype == np.int64
        assert segment.extras.keys() == rows[0].extras.keys()
        for name, values in segment.extras.items():
            expected = np.stack([r.extras[name] for r in rows], 1)
            np.testing.assert_array_equal(values, expected.astype(values.dtype), strict=True)
        np.testing.assert_array_equal(segment.weight, np.ones(self.queue.length, np.float32), strict=True)
        np.testing.assert_array_equal(segment.staleness, np.zeros(self.queue.length, np.int64), strict=True)
        assert segment.steps == self.twin.steps(segment.ring, first // self.queue.length)
        assert segment.fresh


@contextmanager
def rig(
    seed: int = 0,
    *,
    rings: int = 1,
    envs: int = 2,
    slots: int = 16,
    length: int = 4,
    spec: EnvSpec = DEFAULT_SPEC,
    extras: tuple[FieldSpec, ...] = (),
    states: int = 0,
) -> Iterator[Rig]:
    rng = np.random.default_rng(seed)
    layout = RingLayout(envs, slots, spec, extras, state_values=states)
    memory = [Segment.create(f"ring {r}", layout.arrays(), poison=True) for r in range(rings)]
    try:
        queue = SegmentQueue([RingReader(m, layout) for m in memory], length=length)
        twin = SlowQueue([[] for _ in memory], length, spec.num_agents)
        actors = [RandomActor(RingWriter(m, layout), twin.rows[r], rng) for r, m in enumerate(memory)]
        yield Rig(queue, twin, actors)
    finally:
        for m in memory:
            m.close()


def restart(actor: RandomActor) -> None:
    """Begin a new life whose first row is a RESET row at the last observation of the old life."""
    actor.incarnation += 1
    actor.gone[:] = True  # so that the next row is a RESET row


# ---- random operations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "length", "rings", "spec", "extras"),
    [
        (16, 4, 1, DEFAULT_SPEC, ()),
        (32, 8, 3, DEFAULT_SPEC, EXTRAS),
        (16, 5, 3, FRAMES_SPEC, EXTRAS),
        (8, 7, 2, DEFAULT_SPEC, EXTRAS),
        (8, 1, 2, FRAMES_SPEC, ()),
        (16, 5, 2, AGENTS_SPEC, EXTRAS),
    ],
)
def test_random_operations_agree_with_a_queue_of_lists(slots, length, rings, spec, extras):
    rng = np.random.default_rng(slots + length)
    options: dict[str, Any] = {"spec": spec, "extras": extras, "states": 3 if spec.agents else 0}
    streams = 2 * spec.num_agents
    with rig(slots, rings=rings, envs=streams, slots=slots, length=length, **options) as r:
        queue, twin = r.queue, r.twin
        held: list[core.Segment] = []
        each = 0
        for round_ in range(1500):
            kind = rng.integers(7)
            ring = int(rng.integers(rings))
            if kind == 0:
                r.actors[ring].version, r.actors[ring].policy_updates = round_, 3 * round_
                r.actors[ring].write(int(rng.integers(1, 2 * length + 2)))
            elif kind == 1:
                assert queue.poll() == twin.poll()
            elif kind == 2:
                count = int(rng.integers(0, queue.ready + 1))
                segments, keys = queue.take(count), twin.take(count)
                assert [(s.ring, s.first // length) for s in segments] == keys
                held += segments
            elif kind == 3 and queue.each_ready:
                segments, keys = queue.take_one_of_each(), twin.take_one_of_each()
                assert [(s.ring, s.first // length) for s in segments] == keys
                held += segments
                each += 1
            elif kind == 4 and held:
                of = held[int(rng.integers(len(held)))].ring
                first = next(s for s in held if s.ring == of)
                queue.release(first)
                twin.released.append((first.ring, first.first // length))
                held = [s for s in held if s is not first]
            elif kind == 5:
                low, high = queue.rings[ring].granted, int(queue.released[ring]) + slots
                r.grant(ring, int(rng.integers(low, high + 1)))
            elif rng.random() < 0.2 and r.actors[ring].rows:
                restart(r.actors[ring])
            for segment in held:
                r.check(segment)
            assert queue.ready == len(twin.waiting)
            assert queue.each_ready == all(any(k[0] == i for k in twin.waiting) for i in range(rings))
            assert queue.released.tolist() == twin.released_rows()
            assert queue.published_rows().tolist() == twin.seen
            assert queue.next_wake().tolist() == [(s // length + 1) * length for s in twin.seen]
        wrapped = sum(1 for _, i in twin.taken if i * length % slots + length > slots)
        assert (wrapped > 0) == (slots % length > 0)
        assert len(twin.taken) > 25 and each > 0


# ---- by hand -------------------------------------------------------------------------------------


def test_arrival_across_rings_and_across_polls():
    with rig(rings=3, slots=16) as r:
        r.grant_all()
        r.actors[2].write(4)
        r.queue.poll()
        r.actors[0].write(9)
        r.actors[1].write(4)
        r.actors[2].write(3)
        r.queue.poll()
        assert r.queue.ready == 4
        assert r.queue.next_wake().tolist() == [12, 8, 8]
        taken = r.queue.take(4)
        assert [(s.ring, s.first) for s in taken] == [(2, 0), (0, 0), (1, 0), (0, 4)]


def test_taking_of_each_leaves_the_rest_in_order():
    with rig(rings=2, slots=16) as r:
        r.grant_all()
        r.actors[1].write(12)
        r.queue.poll()
        assert (r.queue.ready, r.queue.each_ready) == (3, False)
        with pytest.raises(ValueError, match="every ring must have a complete segment, got none in ring 0"):
            r.queue.take_one_of_each()
        r.actors[0].write(8)
        r.queue.poll()
        assert [(s.ring, s.first) for s in r.queue.take_one_of_each()] == [(0, 0), (1, 0)]
        assert [(s.ring, s.first) for s in r.queue.take(3)] == [(1, 4), (1, 8), (0, 4)]


def test_env_steps_leave_reset_rows_out():
    with rig(envs=2, slots=8, length=2) as r:
        r.grant_all()
        actor = r.actors[0]
        actor.write(1)
        restart(actor)  # row 1 is a RESET row of both environments
        actor.write(1)
        steps = sum(int((row.flags & RESET == 0).sum()) for row in actor.rows)
        assert steps == 2
        assert r.queue.poll() == 2
        assert r.queue.take(1)[0].steps == 2


# ---- views and copies ----------------------------------------------------------------------------


def inside(array: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> bool:
    pointer = torch.from_numpy(array).data_ptr()
    return whole.ctypes.data <= pointer < whole.ctypes.data + whole.nbytes


def test_segments_that_do_not_wrap_are_read_where_they_lie():
    with rig(slots=16, length=4, spec=FRAMES_SPEC, extras=EXTRAS) as r:
        ring = r.queue.rings[0]
        for _ in range(12):  # thrice around
            r.grant_all()
            r.actors[0].write(4)
            r.queue.poll()
            (segment,) = r.queue.take(1)
            pairs = [(getattr(segment, n), getattr(ring, n)) for n in ("obs", "action", "reward", "flags")]
            pairs += [(segment.last_obs, ring.obs), (segment.version, ring.version)]
            pairs += [(segment.extras[name], ring.extras[name]) for name in ring.extras]
            for view, whole in pairs:
                assert np.shares_memory(view, whole)
                assert inside(view, whole)
            r.queue.release(segment)


def test_a_segment_that_wraps_is_copied_and_its_last_observation_is_not():
    with rig(slots=8, length=3, extras=EXTRAS) as r:
        ring = r.queue.rings[0]
        copied = []
        for index in range(16):
            r.grant_all()
            r.actors[0].write(3)
            r.queue.poll()
            (segment,) = r.queue.take(1)
            r.check(segment)
            wraps = index * 3 % 8 > 5
            copied.append(wraps)
            for view, whole in ((segment.obs, ring.obs), (segment.version, ring.version)):
                assert np.shares_memory(view, whole) != wraps
            assert np.shares_memory(segment.last_obs, ring.obs)
            r.queue.release(segment)
        assert sum(copied) == 4


# ---- release and grant ---------------------------------------------------------------------------


def test_released_rows_are_overwritten_and_unreleased_ones_never():
    with rig(slots=8, length=4) as r:
        r.grant_all()
        r.actors[0].write(8)
        assert len(r.actors[0].rows) == 7  # the eighth would need the slot after it, which is row 0's
        r.queue.poll()
        (first,) = r.queue.take(1)
        with pytest.raises(ValueError, match=r"position must be at most released \+ num_slots = 8, got 9"):
            r.queue.grant(0, 9)
        r.check(first)
        last = first.last_obs.copy()
        r.queue.release(first)
        r.check(first)  # released, not granted yet
        r.queue.grant(0, 12)
        r.actors[0].poison()  # rows 7 .. 11, the observation of row 7 apart
        poison = np.full(4, POISON, np.uint8).view(np.float32)[0]
        assert (first.reward == poison).all()
        assert (first.obs == poison).all()
        np.testing.assert_array_equal(first.last_obs, last)  # row 4: it is not released
        with pytest.raises(ValueError, match=r"released \+ num_slots = 12, got 13"):
            r.queue.grant(0, 13)
        r.actors[0].write(1)
        r.queue.poll()
        r.check(r.queue.take(1)[0])


def test_an_actor_completes_a_segment_only_with_the_row_after_it():
    with rig(slots=8, length=4) as r:
        r.grant(0, 4)
        r.actors[0].write(4)
        assert len(r.actors[0].rows) == 3
        r.grant(0, 5)
        r.actors[0].write(4)
        assert r.queue.poll() > 0
        (segment,) = r.queue.take(1)
        np.testing.assert_array_equal(segment.last_obs, r.actors[0].next_obs)


def test_a_life_that_begins_after_a_segment_keeps_its_last_observation():
    with rig(slots=8, length=4) as r:
        r.grant_all()
        actor = r.actors[0]
        actor.write(4)
        r.queue.poll()
        (segment,) = r.queue.take(1)
        last = actor.next_obs.copy()
        restart(actor)
        actor.write(2)
        assert (actor.rows[4].flags == RESET).all()
        np.testing.assert_array_equal(segment.last_obs, last)


def test_release_is_in_order_and_once():
    with rig(rings=2, slots=16) as r:
        r.grant_all()
        for actor in r.actors:
            actor.write(8)
        r.queue.poll()
        a, b, c, _ = r.queue.take(4)
        assert [(s.ring, s.first) for s in (a, b, c)] == [(0, 0), (1, 0), (0, 4)]
        with pytest.raises(ValueError, match="in order, the next of ring 0 starts at row 0, got 4"):
            r.queue.release(c)
        r.queue.release(a)
        with pytest.raises(ValueError, match="in order, the next of ring 0 starts at row 4, got 0"):
            r.queue.release(a)
        r.queue.release(c)
        with pytest.raises(ValueError, match="must be taken and not released, got none of ring 0 in use"):
            r.queue.release(c)
        a.ring = 2
        with pytest.raises(ValueError, match="segment must be of one of 2 rings, got ring 2"):
            r.queue.release(a)
        assert r.queue.released.tolist() == [8, 0]
        r.queue.released[:] = 99
        assert r.queue.released.tolist() == [8, 0]


def test_wrong_calls_change_nothing():
    with rig(slots=16) as r:
        r.grant_all()
        r.actors[0].write(4)
        r.queue.poll()
        with pytest.raises(ValueError, match="count must be between 0 and the 1 ready, got 2"):
            r.queue.take(2)
        with pytest.raises(ValueError, match="count must be between 0 and the 1 ready, got -1"):
            r.queue.take(-1)
        assert r.queue.ready == 1
        with pytest.raises(ValueError, match="position must not move back from 16, got 15"):
            r.queue.grant(0, 15)
        assert r.queue.take(0) == []


@pytest.mark.parametrize("published", [1000, 3, -1])
def test_a_ring_that_cannot_be_trusted_is_left_alone_and_the_others_are_not(published):
    with rig(rings=2, slots=16) as r:
        length = r.queue.length
        r.grant_all()
        for actor in r.actors:
            actor.write(length + 1)
        r.queue.poll()
        assert r.queue.ready == 2
        r.actors[1].write(length)
        liar, sound = r.queue.rings
        liar.header[PUBLISHED] = published
        r.queue.poll()
        assert liar.fault and not sound.fault
        assert r.queue.ready == 3
        with pytest.raises(RingCorrupt):
            r.queue.grant(0, 16)
        liar.abandoned = True
        assert r.queue.complete_rows(0) == length
        r.queue.begin_again(0, 16)
        writer = RingWriter(liar.segment, liar.layout)
        assert (writer.published, writer.granted) == (length, 16), (
            "the row after the segment is written again"
        )
        r.actors[0].writer = writer
        r.actors[0].restart()
        r.actors[0].write(length)
        r.queue.poll()
        assert [segment.ring for segment in r.queue.take(4)] == [0, 1, 1, 0]


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="rings must hold at least one ring, got none"):
        SegmentQueue([], length=4)
    with rig(slots=8) as a, rig(slots=16) as b:
        ring, other = a.queue.rings[0], b.queue.rings[0]
        with pytest.raises(ValueError, match="rings must have one layout, got another in ring 1"):
            SegmentQueue([ring, other], length=4)
        with pytest.raises(ValueError, match="length must be at least 1 row, got 0"):
            SegmentQueue([ring], length=0)
        with pytest.raises(ValueError, match=r"num_slots must be at least length \+ 1 = 9 .*, got 8"):
            SegmentQueue([ring], length=8)
        assert SegmentQueue([ring], length=7).length == 7


# ---- two processes -------------------------------------------------------------------------------

COUNTING = RingLayout(
    num_envs=2,
    num_slots=64,
    spec=EnvSpec("counting", (128,), "int64", DiscreteAction(2)),
    extra_fields=(FieldSpec("log_prob", (3,), "float32"),),
)
FOREVER = 1 << 40


@contextmanager
def writer(memory: Segment, life: int) -> Iterator[None]:
    """Process that writes counting rows as fast as grants allow, killed at the end."""
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests.parent), str(tests / "shm")])
    code = f"import shm_processes; shm_processes.write_in_kernel({memory.fd}, {life}, {FOREVER}, False)"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[memory.fd],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield
        assert child.poll() is None, "the writer ended by itself"
    finally:
        child.kill()
        child.wait(PATIENCE_SECONDS)


def bad_parts(segment: core.Segment) -> list[str]:
    """Parts of a counting segment that differ from the writer's rows (see `tests/shm`)."""
    rows = segment.first + np.arange(segment.num_rows)
    e = np.arange(2)[:, np.newaxis]
    pixel = np.arange(128)
    expected = {
        "obs": rows[:, np.newaxis] * 1000 + e[:, :, np.newaxis] * 500 + pixel,
        "last_obs": (rows[-1] + 1) * 1000 + e * 500 + pixel,
        "action": rows * 4 + e,
        "reward": ((rows * 4 + e) & 0xFFFFF).astype(np.float32),
        "flags": (rows + e) & 7,
        "version": rows * 3,
        "policy_updates": rows * 5,
    }
    bad = [name for name, values in expected.items() if not np.array_equal(getattr(segment, name), values)]
    extra = ((rows * 2 + e) & 0xFFFFF).astype(np.float32)[:, :, np.newaxis]
    return bad if (segment.extras["log_prob"] == extra).all() else [*bad, "log_prob"]


@pytest.mark.parametrize("length", [16, 24])
def test_a_real_writer_never_reaches_what_is_not_released(length):
    """Two lives of a writer at full speed; segments are checked when taken and again before their release."""
    rng = np.random.default_rng(length)
    with Segment.create("counting", COUNTING.arrays(), poison=True) as memory:
        queue = SegmentQueue([RingReader(memory, COUNTING)], length=length)
        held: list[core.Segment] = []
        steps = taken = seen = 0
        for life in (1, 2):
            target = seen + 250
            with writer(memory, life):
                deadline = time.monotonic() + PATIENCE_SECONDS
                while seen < target:
                    assert time.monotonic() < deadline
                    queue.grant(0, int(queue.released[0]) + COUNTING.num_slots)
                    steps += queue.poll()
                    if not queue.ready:
                        os.sched_yield()
                    for segment in queue.take(queue.ready):
                        assert segment.first == seen * length, "every segment once, in order"
                        assert bad_parts(segment) == []
                        held.append(segment)
                        taken += segment.steps
                        seen += 1
                    while held and (len(held) * length + length >= COUNTING.num_slots or rng.random() < 0.5):
                        assert bad_parts(held[0]) == [], "overwritten before it was released"
                        queue.release(held.pop(0))
        assert queue.rings[0].incarnation.max() == 2
        flags = (np.arange(seen * length)[:, np.newaxis] + np.arange(2)) & 7
        assert taken == np.count_nonzero(flags & RESET == 0) and steps >= taken
