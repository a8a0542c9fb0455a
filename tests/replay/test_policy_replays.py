"""Replays of several policies: each samples the rows of its own agents, as a replay of rings of theirs alone would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_rig import EPS, RandomActor

from asyncrl.interfaces import (
    RESET,
    Agent,
    AgentPolicy,
    Batch,
    DiscreteAction,
    EnvSpec,
    FieldSpec,
    environment_steps,
)
from asyncrl.replay import PrioritizedReplay
from asyncrl.replay.policy_replays import PolicyBatch, PolicyReplays
from asyncrl.replay.replay_state import priorities_of, restore_empty_replay, restore_replay
from asyncrl.saved_state import saved
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from asyncrl.shm.ring_layout import PUBLISHED

AGENTS = tuple(Agent(name) for name in "abcd")
ROW = EnvSpec("four", (3,), "float32", DiscreteAction(4), agents=AGENTS)
POLICIES = (
    AgentPolicy("ends", "a|d", (0, 3), replace(ROW, agents=(AGENTS[0], AGENTS[3]))),
    AgentPolicy("middle", "b", (1,), replace(ROW, observation_shape=(2,), agents=AGENTS[1:2])),
    AgentPolicy("last", "c", (2,), replace(ROW, agents=AGENTS[2:3])),
)
NEIGHBOURS = (
    AgentPolicy("first", "[abc]", (0, 1, 2), replace(ROW, agents=AGENTS[:3])),
    AgentPolicy("last", "d", (3,), replace(ROW, agents=AGENTS[3:])),
)
EXTRAS = (FieldSpec("extra", (2,), "float32"),)
ENVS, SLOTS, N_STEP = 2, 32, 3
OPTIONS: dict[str, Any] = {"n_step": N_STEP, "gamma": 0.5, "alpha": 1.0, "priority_eps": EPS}


class World:
    """Two rings with actors, the replays of several policies over them, and copies of the rings for each policy."""

    def __init__(self, policies: tuple[AgentPolicy, ...], seed: int, segments: list[Segment]) -> None:
        self.policies, self.spec = policies, replace(ROW, policies=policies)
        self.actors, self.readers = [], []
        self.layout = RingLayout(ENVS * 4, SLOTS, self.spec, EXTRAS)
        self.segments = segments
        for ring in range(2):
            segment = self.memory(self.layout)
            self.readers.append(RingReader(segment, self.layout))
            rows: list[Any] = []
            self.actors.append(
                RandomActor(RingWriter(segment, self.layout), rows, np.random.default_rng((seed, ring)))
            )
        self.rng = np.random.default_rng(seed)
        self.replays, self.batch = self.make(np.random.default_rng(7), self.readers)

    def memory(self, layout: RingLayout) -> Segment:
        self.segments.append(Segment.create("ring", layout.arrays()))
        return self.segments[-1]

    def make(self, rng: np.random.Generator, readers: list[RingReader]) -> tuple[PolicyReplays, PolicyBatch]:
        replays = PolicyReplays(
            readers,
            self.policies,
            lambda views, policy: PrioritizedReplay(views, **OPTIONS, rng=rng),
            rng,
        )
        row = replace(ROW, agents=())
        return replays, PolicyBatch(self.policies, [Batch.allocate(8, row, EXTRAS) for _ in self.policies])

    def step(self) -> None:
        """Grant, write, and sometimes begin a new life."""
        for ring, actor in enumerate(self.actors):
            position = min(
                int(self.replays.published_rows()[ring]) + int(self.rng.integers(1, 9)),
                int(self.replays.published_rows()[ring]) + SLOTS,
            )
            if position > self.readers[ring].granted:
                self.replays.grant(ring, position)
            actor.poison()
            actor.write(int(self.rng.integers(0, 8)))
            if self.rng.random() < 0.1:
                actor.restart()
            actor.policy_updates = actor.version = actor.version + int(self.rng.integers(0, 2))

    def streams(self, policy: AgentPolicy) -> list[int]:
        return [e * 4 + n for e in range(ENVS) for n in policy.members]

    def twin_of(
        self, policy: AgentPolicy, rng: np.random.Generator
    ) -> tuple[PrioritizedReplay, list[RingReader]]:
        """A replay over new rings that hold the rows of the policy's streams alone, at the same positions."""
        streams = self.streams(policy)
        spec = replace(ROW, agents=())
        layout = RingLayout(len(streams), SLOTS, spec, EXTRAS)
        readers = []
        for ring in self.readers:
            copy = RingReader(self.memory(layout), layout)
            for name in ("obs", "action", "reward", "flags"):
                getattr(copy, name)[...] = getattr(ring, name)[streams]
            copy.extras["extra"][...] = ring.extras["extra"][streams]
            for name in ("version", "policy_updates", "incarnation", "header"):
                getattr(copy, name)[...] = getattr(ring, name)
            readers.append(copy)
        twin = PrioritizedReplay(readers, **OPTIONS, rng=rng)
        for index, reader in enumerate(readers):
            twin.cursors[index] = reader.retired
        twin.ingest()
        return twin, readers


@contextmanager
def world(policies: tuple[AgentPolicy, ...] = POLICIES, seed: int = 0) -> Iterator[World]:
    segments: list[Segment] = []
    try:
        yield World(policies, seed, segments)
    finally:
        for segment in segments:
            segment.close()


def rows_by_content(batch: Any) -> list[tuple[float, ...]]:
    """Rows of a batch as they are known by their content, sorted."""
    columns = [
        np.reshape(a, (len(batch.reward), -1))
        for a in (batch.obs, batch.action, batch.reward, batch.discount)
    ]
    return sorted(map(tuple, np.concatenate(columns, axis=1).tolist()))


@pytest.mark.parametrize("policies", [POLICIES, NEIGHBOURS])
def test_a_policy_can_sample_what_a_replay_of_its_streams_alone_can(
    policies: tuple[AgentPolicy, ...],
) -> None:
    with world(policies, seed=1) as w:
        counted = 0
        for _ in range(60):
            w.step()
            counted += w.replays.ingest()
            for policy, own in zip(policies, w.replays.replays, strict=True):
                twin, readers = w.twin_of(policy, np.random.default_rng(0))
                assert own.sampleable == twin.sampleable
                del readers
        steps = sum(environment_steps(np.stack([r.flags for r in a.rows], axis=1), 4) for a in w.actors)
        assert counted == steps and w.replays.published_rows().min() > 2 * SLOTS
        assert w.replays.stored_steps == w.replays.sampleable == sum(o.sampleable for o in w.replays.replays)


@pytest.mark.parametrize("policies", [POLICIES, NEIGHBOURS])
def test_samples_are_rows_of_the_policys_agents_as_they_were_written(
    policies: tuple[AgentPolicy, ...],
) -> None:
    with world(policies) as w:
        turns: list[int] = []
        for _ in range(80):
            w.step()
            w.replays.ingest()
            if not w.replays.sampleable:
                continue
            w.replays.sample(w.batch, 0.5)
            batch, policy = w.batch, policies[w.batch.policy]
            turns.append(batch.policy)
            streams, values = w.streams(policy), policy.spec.observation_shape[0]
            known = {}
            for actor in w.actors:
                for row in actor.rows:
                    for stream in streams:
                        known[tuple(row.obs[stream])] = (
                            row.action[stream],
                            row.extras["extra"][stream],
                            row.version,
                        )
            assert batch.own.obs.shape == (8, values) and batch.rows[batch.policy].obs.shape == (8, 3)
            for i in range(8):
                action, extra, version = known[tuple(batch.rows[batch.policy].obs[i])]
                assert batch.own.action[i] == action and batch.version[i] == version
                np.testing.assert_array_equal(batch.own.extras["extra"][i], extra)
            w.replays.update_priorities(batch.ids, np.abs(batch.reward).astype(np.float32))
        counts = np.bincount(turns, minlength=len(policies))
        expected = len(turns) * np.array([len(p.members) for p in policies]) / 4
        assert (np.abs(counts - expected) <= 1).all(), "turns in proportion to the agents"


def test_turns_are_spread_and_a_policy_without_rows_is_left_out() -> None:
    with world(NEIGHBOURS) as w:
        for _ in range(12):
            w.step()
            w.replays.ingest()
        turns = []
        for _ in range(8):
            w.replays.sample(w.batch, 0.0)
            turns.append(w.batch.policy)
        assert turns == [0, 0, 1, 0, 0, 0, 1, 0]
        first = w.replays.replays[0]
        for view in range(len(first.rings)):
            first.retire(view, 10**6)
        assert first.sampleable == 0 < w.replays.sampleable
        for _ in range(3):
            w.replays.sample(w.batch, 0.0)
            assert w.batch.policy == 1
        assert (np.abs(w.replays.behind) < 8).all(), "it does not catch up"


def test_a_faulty_ring_is_given_up_for_all_policies_and_begun_again() -> None:
    with world() as w:
        for _ in range(12):
            w.step()
            w.replays.ingest()
        good = int(w.replays.published_rows()[0])
        w.readers[0].header[PUBLISHED] = good - 1
        assert w.replays.ingest() >= 0
        assert "rows were published" in w.readers[0].fault
        before = w.replays.sampleable
        assert 0 < w.replays.give_up(0) < before
        for policy, own in enumerate(w.replays.replays):
            views = priorities_of(own)[list(w.replays.views_of_ring(policy, 0))]
            assert not views.any() and priorities_of(own).any()
        other = int(w.replays.published_rows()[1])
        w.replays.grant(1, max(w.readers[1].granted, other + 2))
        w.actors[1].write(1)
        w.replays.ingest()
        assert w.replays.published_rows()[1] == other + 1, "the other ring goes on meanwhile"
        granted = w.readers[0].granted
        w.readers[0].abandoned = True
        w.replays.begin_again(0, granted)
        actor = w.actors[0]
        actor.writer.published = good
        actor.restart()
        for _ in range(6):
            w.step()
            w.replays.ingest()
        assert not w.readers[0].fault and w.replays.published_rows()[0] > good
        assert priorities_of(w.replays)[0].any()


def test_what_was_saved_goes_on_with_the_same_samples() -> None:
    with world(seed=3) as w:
        for _ in range(20):
            w.step()
            w.replays.ingest()
            if w.replays.sampleable:
                w.replays.sample(w.batch, 0.5)
                w.replays.update_priorities(w.batch.ids, np.abs(w.batch.reward).astype(np.float32))
        state, kept = saved(w.replays), priorities_of(w.replays).copy()
        firsts = [reader.retired for reader in w.readers]
        published = w.replays.published_rows()
        priorities = [
            (first, kept[i][np.arange(first, end) & (SLOTS - 1)])
            for i, (first, end) in enumerate(zip(firsts, published.tolist(), strict=True))
        ]
        rng = np.random.default_rng()
        rng.bit_generator.state = w.replays._rng.bit_generator.state
        again, batch = w.make(rng, w.readers)
        restore_replay(again, state, priorities)
        assert again.sampleable == w.replays.sampleable
        np.testing.assert_array_equal(priorities_of(again), kept)
        for _ in range(12):
            for replays, into in ((w.replays, w.batch), (again, batch)):
                replays.sample(into, 0.5)
            assert batch.policy == w.batch.policy
            assert rows_by_content(batch.own) == rows_by_content(w.batch.own)
            np.testing.assert_array_equal(batch.weight, w.batch.weight)
            np.testing.assert_array_equal(batch.ids, w.batch.ids)
        empty, _ = w.make(rng, w.readers)
        restore_empty_replay(empty, state)
        assert empty.sampleable == 0 and empty.ingest() == 0
        np.testing.assert_array_equal(empty.published_rows(), published)


def test_discarded_steps_are_those_of_environments() -> None:
    """Four rows of two environments, by hand: a reset of all agents is no step, one agent that acts makes one."""
    with world() as w:
        for ring in range(2):
            w.replays.grant(ring, SLOTS)
        actor = w.actors[0]
        actor.write(4)
        actor.writer.flags[:, :4] = 0
        actor.writer.flags[:4, 1] = actor.writer.flags[1:4, 2] = (
            RESET  # environment 0: a reset, then one that acts
        )
        actor.writer.flags[4:7, 3] = RESET
        actor.writer.policy_updates[:4] = [0, 1, 2, 3]
        w.replays.ingest()
        assert w.replays.retire_older_than(2) == 2 + 1 == w.replays.discarded_steps
        assert w.replays.retire_older_than(2) == 0
        assert w.replays.retire_older_than(4) == 4 and w.replays.discarded_steps == 7
        actor.policy_updates = 3  # older than the bound when they arrive
        actor.write(2)
        actor.writer.flags[:, 4:6] = 0
        w.replays.ingest()
        assert w.replays.discarded_steps == 7 + 4
        again, _ = w.make(np.random.default_rng(1), w.readers)
        restore_empty_replay(again, saved(w.replays))
        assert again.discarded_steps == 11
