"""Agents as streams: rows, flags, rewards and episodes against a slow twin that steps the environments by their API."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest
from actors_rig import Rig, until
from fakes import RandomPolicy
from several_agents import NAMES, Parallel, Together, WithState

from asyncrl.actors.actor import Actor
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.streams import AgentStreams, make_streams
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.checks import spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.errors import EnvironmentFailed
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, environment_steps
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

SEEDS = list(range(40, 52))
ENVS, AGENTS, ROWS = 4, len(NAMES), 300


def streams_of(env: Any = Parallel, count: int = ENVS) -> AgentStreams:
    source = EnvSource.from_user(env)
    spec = spec_of("agents", source.build())
    made = make_streams(source, spec, count * spec.num_agents)
    assert isinstance(made, AgentStreams)
    return made


def rows_of(streams: AgentStreams, actions: np.ndarray[Any, Any], parts: int = 1) -> dict[str, Any]:
    """obs `[T + 1, E, 4]`, rewards and flags `[T, E]`; every row is stepped in `parts` parts."""
    count = streams.num_envs
    obs = np.full((len(actions) + 1, count, 4), np.nan, np.float32)
    rewards, flags = np.full((len(actions), count), np.nan), np.zeros((len(actions), count), np.uint8)
    streams.reset(SEEDS[:count], obs[0])
    size = count // parts
    for t, row in enumerate(actions):
        for first in range(0, count, size):
            events = streams.step(row[first : first + size], obs[t + 1], rewards[t], first)
            assert (np.diff(events[:, 0]) > 0).all()
            flags[t, events[:, 0]] = events[:, 1]
        assert streams.current == -1 and np.array_equal(streams.newest, obs[t + 1])
    streams.close()
    return {"obs": obs, "rewards": rewards, "flags": flags}


def slow_rows(actions: np.ndarray[Any, Any], count: int = ENVS) -> dict[str, Any]:
    """The same by PettingZoo's API alone, agent by agent, and the episodes of every environment."""
    total = count * AGENTS
    obs = np.zeros((len(actions) + 1, total, 4), np.float32)
    rewards, flags = np.zeros((len(actions), total)), np.full((len(actions), total), RESET, np.uint8)
    episodes: list[list[tuple[list[float], int]]] = []
    for e in range(count):
        env, log = Parallel(), []
        seen, _ = env.reset(seed=SEEDS[e * AGENTS])
        for n, name in enumerate(NAMES):
            obs[0, e * AGENTS + n] = seen.get(name, np.zeros(4))
        returns, length = [0.0] * AGENTS, 0
        for t, row in enumerate(actions):
            here = slice(e * AGENTS, (e + 1) * AGENTS)
            if not env.agents:
                log.append((returns, length))
                returns, length = [0.0] * AGENTS, 0
                seen, _ = env.reset()
                obs[t + 1, here] = [seen.get(name, np.zeros(4)) for name in NAMES]
                continue
            acting = list(env.agents)
            by_name = dict(zip(NAMES, row[here], strict=True))
            seen, reward, terminated, truncated, _ = env.step({name: by_name[name] for name in acting})
            length += 1
            obs[t + 1, here] = obs[t, here]
            for n, name in enumerate(NAMES):
                if name in acting:
                    at = e * AGENTS + n
                    obs[t + 1, at], rewards[t, at] = seen[name], reward[name]
                    flags[t, at] = TERMINATED * terminated[name] + TRUNCATED * truncated[name]
                    returns[n] += reward[name]
        if not env.agents:
            log.append((returns, length))
        episodes.append(log)
    return {"obs": obs, "rewards": rewards, "flags": flags, "episodes": episodes}


def random_actions(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 5, (ROWS, ENVS * AGENTS))


@pytest.mark.parametrize("parts", [1, 2, ENVS])
def test_rows_are_those_of_the_slow_twin(parts: int) -> None:
    actions = random_actions()
    ours, slow = rows_of(streams_of(), actions, parts), slow_rows(actions)
    for name in ("obs", "rewards", "flags"):
        np.testing.assert_array_equal(ours[name], slow[name], name)
    flags = slow["flags"].reshape(ROWS, ENVS, AGENTS)
    waits = (flags == RESET) & (flags != RESET).any(axis=2, keepdims=True)
    assert waits.sum() > 100 and {TERMINATED, TRUNCATED, 3} <= set(np.unique(flags)), "the twin has the cases"
    assert (slow["obs"].reshape(ROWS + 1, ENVS, AGENTS, 4)[0] == 0).all(axis=2).any(), "an agent took no part"


@pytest.mark.parametrize("interpreted", [False, True])
def test_steps_and_episodes_are_counted_by_environment(interpreted: bool) -> None:
    """Compiled and as Python; the log wraps around nowhere here, and its writer publishes one entry at a time."""
    from asyncrl.shm.ring_layout import EPISODES, HEADER_WORDS
    from asyncrl.shm.row_counts import count_agents_row

    actions, streams = random_actions(1), streams_of()
    slow = slow_rows(actions)
    total = ENVS * AGENTS
    obs, rewards = np.zeros((total, 4), np.float32), np.zeros(total)
    returns, began_at = np.zeros(total), np.zeros(total, np.int64)
    ring_flags, ring_rewards = np.zeros((total, 8), np.uint8), np.zeros((total, 8), np.float32)
    header, log = np.zeros(HEADER_WORDS, np.int64), (np.zeros((4096, AGENTS)), np.zeros(4096, np.int64))
    counted = count_agents_row.py_func if interpreted else count_agents_row
    streams.reset(SEEDS, obs)
    taken = 0
    for t, row in enumerate(actions):
        events = streams.step(row, obs, rewards)
        slot = t % 8
        taken += counted(
            streams.live,
            events,
            rewards,
            returns,
            began_at,
            t + 1,
            ring_flags,
            ring_rewards,
            slot,
            header,
            *log,
        )
        np.testing.assert_array_equal(ring_flags[:, slot], slow["flags"][t])
        np.testing.assert_array_equal(ring_rewards[:, slot], slow["rewards"][t].astype(np.float32))
    lengths = [length for log_of_env in slow["episodes"] for _, length in log_of_env]
    resets = (slow["flags"].reshape(ROWS, ENVS, AGENTS) == RESET).all(axis=2).sum()
    assert taken == ROWS * ENVS - resets == environment_steps(slow["flags"].T, AGENTS)
    assert header[EPISODES] == len(lengths) > 100
    entries = sorted(
        (tuple(r), n) for r, n in zip(log[0][: len(lengths)].tolist(), log[1].tolist(), strict=False)
    )
    wanted = sorted((tuple(r), n) for log_of_env in slow["episodes"] for r, n in log_of_env)
    assert entries == wanted, "returns of every agent and the length of every episode"


def test_environments_in_mid_episode_are_pickled() -> None:
    actions = random_actions(2)
    whole = rows_of(streams_of(), actions)
    first = streams_of()
    obs, rewards = np.zeros((ENVS * AGENTS, 4), np.float32), np.zeros(ENVS * AGENTS)
    first.reset(SEEDS, obs)
    for row in actions[:100]:
        first.step(row, obs, rewards)
    second = AgentStreams(pickle.loads(pickle.dumps(first.envs)), spec_of("agents", first.envs[0]))
    assert np.array_equal(second.live, first.live)
    for t, row in enumerate(actions[100:], 100):
        second.step(row, obs, rewards)
        np.testing.assert_array_equal(obs, whole["obs"][t + 1])
        np.testing.assert_array_equal(rewards, whole["rewards"][t])


def test_messages_name_agent_and_environment() -> None:
    streams = streams_of(Together)
    assert streams.place_of(5) == "Agent blue of environment 1"
    assert isinstance(streams.envs[0], AgentsEnv)


class Failing(Together):
    """Environment 1 of an actor fails in its third step, as `kind` says."""

    def __init__(self, place: int, kind: str) -> None:
        super().__init__()
        self.fails, self.kind = place == 1, kind

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        returned = super().step(actions)
        if self.fails and self.steps == 3:
            if self.kind == "raises":
                raise KeyError("no such wall")
            returned[1]["blue"] = float("nan")
        return returned


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("raises", "Environment 1 of actor 0 raised KeyError in step"),
        ("pays", "Agent blue of environment 1 of actor 0 returned a reward that is NaN"),
    ],
)
def test_a_failed_step_is_reported_with_what_repeats_it(kind: str, text: str) -> None:
    """Seed and actions are those of the environment, whichever of its agents failed."""
    spec, envs = spec_of("agents", AgentsEnv("agents", Together())), 3
    layout = RingLayout(envs * AGENTS, 32, spec)
    segment = Segment.create("ring", layout.arrays())
    reader, mailbox = RingReader(segment, layout), WeightMailbox.create(3)
    mailbox.publish(np.zeros(3, np.float32), 0)
    streams = AgentStreams([AgentsEnv("agents", Failing(e, kind)) for e in range(envs)], spec)
    actor = Actor(
        streams, RandomPolicy(5), RingWriter(segment, layout), mailbox, index=0, num_actors=1, seed=3
    )
    reader.grant(10)
    actor.begin()
    assert actor.step() and actor.step()
    with pytest.raises(EnvironmentFailed, match=text) as told:
        actor.step()
    facts = told.value.facts
    assert (facts["env index"], facts["episode step"]) == (1, 2)
    assert facts["seed"] == actor._env_seeds[AGENTS], "of the environment's first stream"
    assert len(str(facts["action"]).split()) == AGENTS
    reader.close()
    mailbox.close()


def test_every_group_of_streams_is_an_environment() -> None:
    flags = np.zeros((6, 4), np.uint8)
    flags[:3, 1] = RESET
    flags[3:, 2] = [RESET, RESET, 0]
    assert environment_steps(flags, 3) == 7
    assert environment_steps(flags, 1) == 19


class Checker:
    """Checks every row of a ring of `Parallel`, in place, as the rows arrive."""

    def __init__(self, ring: Any) -> None:
        self.ring, self.checked, self.lives, self.waits = ring, 0, 0, 0

    def check(self) -> None:
        ring = self.ring
        for position in range(self.checked, ring.published() - 1):
            slot, after = position % ring.num_slots, (position + 1) % ring.num_slots
            flags, seen, then = ring.flags[:, slot], ring.obs[:, slot], ring.obs[:, after]
            if ring.incarnation[after] != ring.incarnation[slot]:
                assert (ring.flags[:, after] == RESET).all(), "a death cuts the rows of all agents"
                self.lives += 1
            fresh = (
                position > 0 and ring.incarnation[slot] != ring.incarnation[(position - 1) % ring.num_slots]
            )
            acted = flags & RESET == 0
            self.check_states(then, acted & (flags == 0), after)
            assert (ring.reward[~acted, slot] == 0).all()
            steps, actions = seen[acted, 2] + 1, ring.action[acted, slot]
            np.testing.assert_array_equal(then[acted, 1:], np.stack([seen[acted, 1], steps, actions], axis=1))
            np.testing.assert_array_equal(
                ring.reward[acted, slot], np.flatnonzero(acted) % 3 + steps / 8 - actions / 64
            )
            ended = (flags & (TERMINATED | TRUNCATED)) != 0
            for first in range(0, ring.num_envs, 3):
                streams = slice(first, first + 3)
                if acted[streams].any():
                    waits = ~acted[streams]
                    self.waits += int(waits.sum())
                    np.testing.assert_array_equal(then[streams][waits], seen[streams][waits])
                    if not fresh:
                        assert not (ended[streams] & waits).any()
                else:
                    began = then[streams]
                    assert (began[:, 2] == 0).all() and len(set(began[began.any(axis=1), 1])) <= 1
        self.checked = max(self.checked, ring.published() - 1)

    def check_states(self, then: Any, goes_on: Any, after: int) -> None:
        """The state in the slot of the next observations is of their time, also after an episode's last step."""
        for e, state in enumerate(self.ring.global_state[:, after]):
            streams = slice(3 * e, 3 * e + 3)
            step = then[streams, 2].max()
            began = step == 0  # agents that take no part have no observation
            live = (then[streams, 3] == -1) if began else goes_on[streams]
            assert state.tolist() == [then[streams, 1].max(), step, live.sum()]


def test_killed_actors_leave_whole_rows_of_all_agents(server: ForkServer) -> None:
    async def story() -> None:
        options: dict[str, Any] = {"num_slots": 1024, "max_restarts": 100, "states": True}
        async with Rig(server, WithState, num_actors=2, num_envs=6, **options) as rig:
            checkers = [Checker(ring) for ring in rig.pool.rings]
            rig.publish_weights()
            for kill in range(1, 9):
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
            for checker, actor in zip(checkers, rig.pool.statistics(), strict=True):
                checker.check()
                assert actor.restarts == 8 == checker.lives and checker.waits > 100
                flags, published = checker.ring.flags, checker.ring.published()
                assert actor.env_steps == environment_steps(flags[:, :published], AGENTS)
            assert not rig.failures

    asyncio.run(story())
