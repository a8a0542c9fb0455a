"""Recurrent state in actors: stored with every row, reset with episodes and lives, saved with an actor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from actors_rig import run_episodes
from gymnasium.spaces import Box, Discrete

from asyncrl import PPO
from asyncrl.acting.recurrent import memory_of
from asyncrl.actors.actor import Actor
from asyncrl.actors.actor_state import restore_actor, state_frame
from asyncrl.actors.streams import PlainStreams
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import RESET
from asyncrl.replay.segments import SegmentQueue
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

ENVS, SLOTS, LENGTH = 3, 64, 8
ALGORITHM = PPO(recurrent="lstm", recurrent_size=4, hidden_sizes=(5,), segment_length=LENGTH)


class Noise(gymnasium.Env[Any, Any]):
    """Random values; episodes end terminated or truncated at random, some after one step; the reward is the action."""

    def __init__(self) -> None:
        self.observation_space = Box(-4, 4, (2,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._values(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ends = self.np_random.random(2) < 0.1
        return self._values(), float(action), bool(ends[0]), bool(ends[1]), {}

    def _values(self) -> Any:
        return self.np_random.uniform(-4, 4, 2).astype(np.float32)


SPEC = spec_of("noise", Noise())


def policy_of(seed: int = 0) -> Any:
    policy = ALGORITHM.make_policy(SPEC)
    weights = np.random.default_rng(seed).normal(size=policy.weight_count).astype(np.float32)
    policy.load_weights(weights)
    return policy


class World:
    """A ring, and successive lives of an actor that writes it."""

    def __init__(self) -> None:
        self.layout = RingLayout(ENVS, SLOTS, SPEC, ALGORITHM.extra_fields(SPEC))
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(policy_of().weight_count)
        self.mailbox.publish(policy_of().weights)
        self.lives = 0

    def begin(self) -> Actor:
        actor = Actor(
            PlainStreams([Noise() for _ in range(ENVS)], SPEC),
            policy_of(),
            RingWriter(self.segment, self.layout),
            self.mailbox,
            index=0,
            num_actors=1,
            seed=3,
            incarnation=self.lives,
        )
        actor.begin()
        self.lives += 1
        return actor

    def write(self, actor: Actor, rows: int) -> None:
        self.reader.grant(max(self.reader.granted, self.reader.published() + rows + 1))
        for _ in range(rows):
            assert actor.step()

    def close(self) -> None:
        self.segment.close()
        self.mailbox.close()


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    """One world in a list that is emptied at the end, as views of its memory must not outlive the test."""
    made = [World()]
    yield made
    made.pop().close()


def expected_states(world: World) -> tuple[np.ndarray, np.ndarray]:
    """State before each row, `[E, rows, state_size]`, of a policy whose episodes are begun by hand; and which rows
    acted.
    """
    rows = world.reader.published()
    obs, flags, lives = world.reader.obs, world.reader.flags, world.reader.incarnation
    policy = policy_of()
    memory = memory_of(policy)
    assert memory is not None
    states, acted = np.zeros((ENVS, rows, 8), np.float32), np.ones(rows, np.bool_)
    memory.forget(ENVS)
    for t in range(rows):
        if t and lives[t] != lives[t - 1]:
            memory.forget(ENVS)
            acted[t] = False
            continue
        states[:, t] = memory.state
        policy.greedy(obs[:, t])
        for e in np.flatnonzero(flags[:, t] & RESET):
            memory.begin(e)
    return states, acted


def test_rows_carry_the_state_that_was_acted_with(worlds: list[World]) -> None:
    world = worlds[0]
    for rows in (25, 20):
        actor = world.begin()
        world.write(actor, rows)
        actor.close()
    states, acted = expected_states(world)
    found = world.reader.extras["state"][:, : states.shape[1]]
    flags, t = world.reader.flags[:, : acted.size], np.flatnonzero(~acted)
    assert t.tolist() == [25] and (flags[:, 25] == RESET).all() and (found[:, 25] == 0).all()
    assert (found[:, 26] == 0).all(), "a new life has no memory"
    resets = np.argwhere((flags[:, :-1] & RESET) != 0)
    assert len(resets) > 5 and all((found[e, t + 1] == 0).all() for e, t in resets)
    assert (found[:, acted] == states[:, acted]).all()
    assert (found[:, 1] != 0).any()
    del found, flags


def test_segments_begin_with_the_stored_state(worlds: list[World]) -> None:
    world = worlds[0]
    queue = SegmentQueue([world.reader], length=LENGTH)
    actor = world.begin()
    world.write(actor, 5 * LENGTH)
    actor.close()
    queue.poll()
    states, _ = expected_states(world)
    for j, segment in enumerate(queue.take(5)):
        assert (segment.extras["state"][:, 0] == states[:, j * LENGTH]).all()


def test_a_saved_actor_goes_on_with_its_state(worlds: list[World]) -> None:
    world = worlds[0]
    actor = world.begin()
    world.write(actor, 7)
    saved = state_frame(actor)["state"]
    before = actor.policy.memory.state.copy()
    world.write(actor, 6)
    wanted = world.reader.extras["state"][:, 7:13].copy()
    actor.close()
    assert before.any()
    other = World()
    try:
        twin = other.begin()
        other.write(twin, 7)
        restore_actor(twin, saved)
        other.write(twin, 6)
        assert (other.reader.extras["state"][:, 7:13] == wanted).all()
        assert (other.reader.extras["state"][:, 7] == before).all()
        twin.close()
    finally:
        del twin
        other.close()


def played(policy: Any, episodes: int, seed: int) -> list[float]:
    """Returns of successive greedy episodes, each started without memory."""
    returns, env = [], Noise()
    for own in np.random.SeedSequence(seed).generate_state(episodes):
        obs, _ = env.reset(seed=int(own))
        policy.assign_streams(0, 1, 1)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.greedy(obs[None])[0])
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return returns


def test_evaluated_episodes_have_states_of_their_own() -> None:
    """Sequential, alternating and parallel episodes: the same seeds give the same returns."""
    expected = played(policy_of(), 12, seed=5)
    assert len(set(expected)) > 3
    for envs in (1, 3, 12):
        found, _ = run_episodes(Noise, policy_of(), 12, seed=5, max_envs=envs)
        assert found.tolist() == expected
    assert run_episodes(Noise, policy_of(1), 12, seed=5, max_envs=1)[0].tolist() != expected, (
        "the policy matters"
    )


@pytest.mark.parametrize("vector", [False, True])
def test_drawn_actions_follow_the_states_too(vector: bool) -> None:
    """Draws of a policy that is all but certain are its greedy actions."""
    env: Any = Noise
    if vector:
        made = gymnasium.vector.SyncVectorEnv(
            [Noise] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP
        )

        def env() -> Any:
            return made

    certain, uncertain = policy_of(), policy_of()
    actions, width = 3, 4
    weights = certain.weights.copy()
    weights[-actions * (width + 1) :] *= 1e6  # the head
    certain.load_weights(weights)
    greedy = run_episodes(env, certain, 12, seed=5)[0].tolist()
    assert run_episodes(env, certain, 12, seed=5, deterministic=False)[0].tolist() == greedy
    drawn = [run_episodes(env, uncertain, 12, seed=5, deterministic=False)[0].tolist() for _ in range(2)]
    assert drawn[0] == drawn[1] != run_episodes(env, uncertain, 12, seed=5)[0].tolist()


def test_vectors_are_evaluated_with_states() -> None:
    vector = gymnasium.vector.SyncVectorEnv(
        [Noise] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP
    )
    found, _ = run_episodes(lambda: vector, policy_of(), 18, seed=5)
    policy = policy_of()
    obs, _ = vector.reset(seed=5)
    policy.assign_streams(0, 3, 3)
    totals, ended, returns = np.zeros(3), np.zeros(3, np.bool_), [[], [], []]  # type: ignore[var-annotated]
    while min(map(len, returns)) < 6:
        obs, reward, terminated, truncated, _ = vector.step(policy.greedy(obs))
        for e in np.flatnonzero(ended):
            policy.memory.begin(e)
        totals = np.where(ended, 0.0, totals + reward)
        ended = terminated | truncated
        for e in np.flatnonzero(ended):
            returns[e].append(float(totals[e]))
    assert found.tolist() == [returns[k % 3][k // 3] for k in range(18)]
