"""Self-play in an actor: who acts with which weights, what is marked, counted and logged, and what a death leaves."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fakes
import numpy as np
import pytest
from actors_rig import Rig, until
from several_agents import NAMES, Parallel

from asyncrl.actors.actor_state import restore_actor, state_frame
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.self_play import (
    DECAY,
    Payoffs,
    PolicyWithOpponents,
    SelfPlayActor,
    probabilities,
    score_of,
)
from asyncrl.actors.streams import AgentStreams
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import FROZEN, RESET, TERMINATED, TRUNCATED, FieldSpec, SelfPlay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from asyncrl.shm.past_weights import PastWeights

AGENTS, ENVS, LEAGUE = len(NAMES), 4, 3
FIELDS = (FieldSpec("echo", (2,), "float32"),)


def test_probabilities_are_those_worked_by_hand() -> None:
    rates = [0.5, 0.75, 0.0]
    assert probabilities("newest", rates).tolist() == [0, 0, 1]
    assert probabilities("uniform", rates) == pytest.approx([1 / 3] * 3)
    assert probabilities("prioritized", rates) == pytest.approx(np.array([4, 1, 16]) / 21)
    for sampling in ("newest", "uniform", "prioritized"):
        assert probabilities(sampling, [0.9]).tolist() == [1]


def test_payoffs_are_those_worked_by_hand() -> None:
    payoffs = Payoffs()
    assert payoffs.win_rate(7) == 0.5
    for score in (1.0, 0.5, 0.0):
        payoffs.add(7, score)
    games, points = DECAY**2 + DECAY + 1, DECAY**2 + 0.5 * DECAY
    assert payoffs.games[7] == pytest.approx(games) and payoffs.points[7] == pytest.approx(points)
    assert payoffs.win_rate(7) == pytest.approx((points + 1) / (games + 2))
    payoffs.add(9, 1.0)
    assert payoffs.win_rate(9) == 2 / 3, "one game won does not exclude a version from being drawn"
    payoffs.keep([9, 11])
    assert payoffs.games.keys() == {9} == payoffs.points.keys()


def test_the_score_compares_the_learner_with_the_mean_of_the_others() -> None:
    whole = np.ones(3, np.bool_)
    assert [score_of(np.array(returns), 1, whole) for returns in ([1.0, 2, 1], [1, 2, 3], [4, 2, 3])] == [
        1,
        0.5,
        0,
    ]
    assert score_of(np.array([1.0, -1.0]), 0, whole[:2]) == 1
    assert score_of(np.array([1.0, -1.0]), 1, whole[:2]) == 0
    assert score_of(np.array([-1.0, -2.0, 0.0]), 0, np.array([True, True, False])) == 1, (
        "0 is of one who is absent"
    )


class Bench:
    """A self-play actor and both ends of its ring, with the policy that echoes its weights and streams."""

    def __init__(self, sampling: Any = "uniform", env: type[Parallel] = Parallel, **options: int) -> None:
        self.made = env
        self.self_play = SelfPlay(sampling, LEAGUE, **{"interval": 10, "kept": 4, **options})
        self.spec = spec_of("agents", self.env())
        self.layout = RingLayout(ENVS * AGENTS, 1024, self.spec, FIELDS, frozen_streams=LEAGUE * (AGENTS - 1))
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = PastWeights.create_for(3, self.self_play)

    def close(self) -> None:
        self.reader.close()
        self.mailbox.close()

    def env(self) -> AgentsEnv:
        return AgentsEnv("agents", self.made())

    def actor(self, incarnation: int = 0) -> SelfPlayActor:
        policies: list[Any] = [fakes.EchoPolicy() for _ in range(LEAGUE + 1)]
        return SelfPlayActor(
            AgentStreams([self.env() for _ in range(ENVS)], self.spec),
            PolicyWithOpponents(policies[0], policies[1:], AGENTS),
            RingWriter(self.segment, self.layout),
            self.mailbox,
            self.self_play,
            index=0,
            num_actors=1,
            seed=3,
            incarnation=incarnation,
        )

    def publish(self, updates: int) -> None:
        """Weights that are equal to their updates."""
        self.mailbox.publish(np.full(3, updates, np.float32), updates)

    def run(self, actor: SelfPlayActor, rows: int, every: int = 20) -> None:
        """Make rows; further weights are published every `every` of them."""
        for _ in range(rows):
            published = self.reader.published()
            if published % every == 0:
                self.publish(published // every * 5)
            self.reader.grant(published + 2)
            assert actor.step()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def rows_of(bench: Bench, start: int = 0) -> Iterator[tuple[int, Any, Any, Any]]:
    """(newest version, flags, weights that acted, streams that the policy took itself for) of every row."""
    reader = bench.reader
    for slot in range(start, reader.published()):
        echo = reader.extras["echo"][:, slot]
        yield int(reader.policy_updates[slot]), reader.flags[:, slot], echo[:, 0], echo[:, 1]


def test_opponents_act_with_past_versions_and_are_marked(bench: Bench) -> None:
    actor = bench.actor()
    actor.begin()
    assert not actor.step(), "no weights yet"
    bench.run(actor, 600)
    acting: list[Any] = [None] * LEAGUE
    learners: list[list[int]] = [[] for _ in range(LEAGUE)]
    versions: Counter[float] = Counter()
    for newest, flags, weights, streams in rows_of(bench):
        frozen = flags & FROZEN != 0
        assert not frozen[LEAGUE * AGENTS :].any() and (weights[~frozen] == newest).all()
        assert (streams[~frozen] == np.flatnonzero(~frozen)).all()
        for e in range(LEAGUE):
            own = slice(e * AGENTS, (e + 1) * AGENTS)
            (learner,) = np.flatnonzero(~frozen[own])
            (version,) = set(weights[own][frozen[own]].tolist())
            assert (streams[own][frozen[own]] == e * AGENTS + np.arange(AGENTS - 1)).all()
            if acting[e] is None:  # an episode begins
                if learners[e]:
                    turns = (learners[e][-1] + 1 + np.arange(AGENTS)) % AGENTS
                    takes_part = flags[own] & RESET == 0
                    assert learner == turns[takes_part[turns]][0], "agents learn in turn, but absent ones"
                learners[e].append(int(learner))
                versions[version] += 1
                past = list(range(0, newest + 1, 10))[-4:]
                assert version in past, f"{version} is not kept when the newest is {newest}"
            else:
                assert acting[e] == (learner, version), "they stay for the whole episode"
            acting[e] = None if (flags[own] & RESET).all() else (learner, version)
    for seats in learners:
        assert len(seats) > 50, seats
    assert len(versions) > 10 and min(versions.values()) >= 1


def test_ends_and_resets_are_flagged_as_without_opponents(bench: Bench) -> None:
    """The environments' course does not depend on actions, so only FROZEN may differ."""
    actor = bench.actor()
    actor.begin()
    bench.run(actor, 300)
    found = np.array([flags for _, flags, _, _ in rows_of(bench)]) & ~np.uint8(FROZEN)
    streams = AgentStreams([bench.env() for _ in range(ENVS)], bench.spec)
    obs, rewards = np.zeros((ENVS * AGENTS, 4), np.float32), np.zeros(ENVS * AGENTS)
    streams.reset(actor._env_seeds, obs)
    wanted = np.zeros_like(found)
    for row in wanted:
        events = streams.step(np.zeros(ENVS * AGENTS, np.int64), obs, rewards)
        row[events[:, 0]] = events[:, 1]
    np.testing.assert_array_equal(found, wanted)
    assert {RESET, TERMINATED, TRUNCATED} <= set(np.unique(found))
    steps = (found.reshape(-1, ENVS, AGENTS) & RESET == 0).any(axis=2).sum()
    assert bench.reader.statistics().env_steps == steps, "steps of opponents alone are steps too"


def test_games_are_logged_with_their_opponents(bench: Bench) -> None:
    actor = bench.actor()
    actor.begin()
    bench.run(actor, 300)
    count, returns, lengths, _, opponents = bench.reader.episodes_since(0)
    assert count == len(returns) == len(lengths) == len(opponents) > 150
    logged = iter(zip(returns.tolist(), opponents.tolist(), strict=True))
    totals, played = np.zeros(ENVS * AGENTS), np.zeros(ENVS * AGENTS, np.bool_)
    payoffs, frozen_at_last = Payoffs(), np.zeros(ENVS * AGENTS, np.bool_)
    reader = bench.reader
    for slot, (_, flags, weights, _) in enumerate(rows_of(bench)):
        by_env = (flags & RESET).reshape(ENVS, AGENTS) != 0
        totals += reader.reward[:, slot]
        played |= flags & RESET == 0
        after = reader.flags[:, slot + 1] if slot + 1 < reader.published() else None
        for e in range(ENVS):
            own = slice(e * AGENTS, (e + 1) * AGENTS)
            over = not by_env[e].all() and after is not None and (after[own] & RESET).all()
            ends = (flags[own] & (TERMINATED | TRUNCATED) != 0) | by_env[e]
            if not (over and ends.all()):
                continue
            returned, (version, points) = next(logged)
            np.testing.assert_allclose(returned, totals[own])
            frozen = flags[own] & FROZEN != 0
            if e < LEAGUE:
                score = score_of(totals[own], int(np.flatnonzero(~frozen)[0]), played[own])
                assert version == weights[own][frozen][0] and points / 2 == score
                payoffs.add(version, score)
            else:
                assert version == -1 and not frozen.any()
            totals[own], played[own] = 0, False
        frozen_at_last = flags & FROZEN != 0
    assert frozen_at_last.sum() == LEAGUE * (AGENTS - 1) == bench.layout.frozen_streams
    for version in actor._payoffs.games.keys() & set(bench.mailbox.versions()):
        assert actor._payoffs.games[version] == pytest.approx(payoffs.games[version], rel=0.1)


class Alone(Parallel):
    """Every second episode has one agent, which is another one each time; no agent earns anything while others do."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed)
        self.agents = [NAMES[self.episode // 2 % AGENTS]] if self.episode % 2 else list(NAMES)
        return {name: self.observe(name, -1) for name in self.agents}, {name: {} for name in self.agents}


def test_an_episode_without_opponents_is_no_game() -> None:
    bench = Bench(env=Alone)
    try:
        actor = bench.actor()
        actor.begin()
        bench.run(actor, 300)
        count, returns, _, _, games = bench.reader.episodes_since(0)
        alone = (returns != 0).sum(axis=1) == 1
        assert count > 100 and abs(alone.sum() - (~alone).sum()) <= ENVS
        assert (games[alone, 0] == -1).all() and (games[~alone, 0] >= 0).sum() > 30
        assert set(games[~alone & (games[:, 0] >= 0), 1]) == {0, 2}
    finally:
        bench.close()


@pytest.mark.parametrize(("sampling", "wanted"), [("newest", {30: 1.0}), ("prioritized", {10: 0.9, 30: 0.9})])
def test_opponents_are_drawn_by_the_option(sampling: str, wanted: dict[int, float]) -> None:
    """Against versions 0 and 20 nearly all games were won; the two others share what is left."""
    bench = Bench(sampling)
    try:
        for updates in (0, 10, 20, 30):
            bench.publish(updates)
        actor = bench.actor()
        actor.begin()
        bench.reader.grant(2)
        assert actor.step()
        for version in (0, 20):
            actor._payoffs.games[version], actor._payoffs.points[version] = 98.0, 97.0
        drawn = Counter()
        for _ in range(400):
            actor._draw_opponent(1)
            drawn[int(actor._versions[1])] += 1
            assert (actor.policy.opponents[1].weights == actor._versions[1]).all()
        if sampling == "newest":
            assert drawn.keys() == {30}
        else:
            assert drawn[0] + drawn[20] < 20 and min(drawn[10], drawn[30]) > 140
        assert drawn.keys() >= wanted.keys()
    finally:
        bench.close()


def test_a_version_that_is_replaced_during_its_copy_is_drawn_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(0)
    actor = bench.actor()
    copies = []

    def copy(updates: int, out: Any) -> bool:
        copies.append(updates)
        if len(copies) == 1:
            bench.publish(10)
            return False
        return PastWeights.copy_version(bench.mailbox, updates, out)

    monkeypatch.setattr(bench.mailbox, "copy_version", copy)
    actor._draw_opponent(0)
    assert len(copies) == 2 and actor._versions[0] == copies[1]
    assert (actor.policy.opponents[0].weights == copies[1]).all()


def test_the_only_version_is_drawn_after_it_was_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish(0)
    actor, found, pauses = bench.actor(), [[], [0]], list[float]()
    monkeypatch.setattr(bench.mailbox, "versions", lambda: found.pop(0))
    monkeypatch.setattr("asyncrl.actors.self_play.sleep", pauses.append)
    actor._draw_opponent(0)
    assert actor._versions[0] == 0 and not found
    assert len(pauses) == 1, "it leaves the core to the learner, which is writing"


def test_a_state_between_two_rows_goes_on_exactly() -> None:
    whole, halves = Bench("prioritized"), Bench("prioritized")
    try:
        actor = whole.actor()
        actor.begin()
        whole.run(actor, 400)
        first = halves.actor()
        first.begin()
        halves.run(first, 217)
        state = pickle.loads(pickle.dumps(state_frame(first)["state"]))
        second = halves.actor()
        restore_actor(second, state)
        halves.run(second, 183)
        for name in ("flags", "action", "reward", "obs"):
            ours, theirs = getattr(halves.reader, name)[:, :400], getattr(whole.reader, name)[:, :400]
            np.testing.assert_array_equal(ours, theirs, name)
        np.testing.assert_array_equal(
            halves.reader.extras["echo"][:, :400], whole.reader.extras["echo"][:, :400]
        )
        assert second._payoffs.games == actor._payoffs.games
    finally:
        for bench in (whole, halves):
            bench.close()


def test_a_killed_actor_leaves_whole_rows_and_finds_all_versions_again(server: ForkServer) -> None:
    async def story() -> None:
        self_play = SelfPlay("uniform", 2, interval=1, kept=8)
        options: dict[str, Any] = {"num_actors": 2, "num_envs": 9, "num_slots": 1024, "max_restarts": 100}
        async with Rig(
            server, Parallel, policy=fakes.EchoPolicy(), extra_fields=FIELDS, self_play=self_play, **options
        ) as rig:
            for updates in range(8):
                rig.mailbox.publish(np.full(3, updates, np.float32), updates)
            for kill in range(1, 5):
                rig.grant(101)
                await rig.rows(100 * kill - 30)
                for actor in rig.pool.statistics():
                    os.kill(actor.pid, signal.SIGKILL)
                await until(lambda n=kill: len(rig.deaths) == 2 * n, "deaths")
            rig.grant(101)
            rings = rig.pool.rings
            await until(
                lambda: all(ring.published() == ring.granted - 1 for ring in rings), "all granted rows"
            )
            for ring in rings:
                published = ring.published()
                flags, weights = ring.flags[:, :published], ring.extras["echo"][:, :published, 0]
                first = np.flatnonzero(np.diff(ring.incarnation[:published])) + 1
                assert len(first) == 4 and (flags[:, first] == RESET).all(), "a death cuts all agents' rows"
                lived = np.setdiff1d(np.arange(published), first)
                frozen = flags[:, lived] & FROZEN != 0
                assert (frozen.sum(axis=0) == 2 * (AGENTS - 1)).all()
                assert (weights[:, lived][~frozen] == 7).all()
                last = np.arange(published)[first[-1] + 1 :]
                of_last_life = weights[:, last][flags[:, last] & FROZEN != 0]
                assert set(of_last_life.tolist()) == set(range(8)), "no version is lost with an actor"
            assert not rig.failures

    asyncio.run(story())
