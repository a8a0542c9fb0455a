"""Successes of episodes: from `info` through the ring's log, and of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from actors_rig import run_episodes
from fakes import RandomPolicy
from several_agents import Parallel, Tuples

from asyncrl.actors.actor import Actor
from asyncrl.actors.episodes import EpisodePlayer
from asyncrl.actors.streams import make_streams
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.checks import (
    FAILED,
    SUCCEEDED,
    UNKNOWN,
    share_of_agents,
    spec_of,
    success_of,
    success_rate,
)
from asyncrl.envs.source import EnvSource
from asyncrl.envs.vectors import NextStep, SameStep
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox


class Third(gymnasium.Env[Any, Any]):
    """Episodes of two steps; every third one succeeds, and the first step says the opposite."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, key: str = "is_success") -> None:
        self.key, self.episode, self.step_of_episode = key, -1, 0

    def reset(self, **kwargs: Any) -> Any:
        self.episode, self.step_of_episode = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.step_of_episode += 1
        over = self.step_of_episode == 2
        return np.zeros(1, np.float32), 1.0, False, over, {self.key: over == (self.episode % 3 == 0)}


def vector() -> Any:
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    return gymnasium.vector.SyncVectorEnv([Third, Third], autoreset_mode=mode)


def vector_of_the_same_step() -> Any:
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return SameStep(gymnasium.vector.SyncVectorEnv([Third, Third], autoreset_mode=mode))


class Listed(gymnasium.vector.VectorWrapper[Any, Any, Any]):
    """A vector with a list of infos, as SuperSuit's."""

    def step(self, actions: Any) -> Any:
        *result, info = super().step(actions)
        return *result, [{key: info[key][i] for key in info if key[0] != "_"} for i in range(2)]


MAKERS = [
    Third,
    lambda: Third("success"),
    vector,
    vector_of_the_same_step,
    lambda: NextStep(Listed(vector())),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_log_has_the_success_of_every_episode(make: Callable[[], Any]) -> None:
    source = EnvSource.from_user(make)
    built: Any = source.build()
    spec = spec_of("third", built)
    streams = make_streams(source, spec, 2)
    layout = RingLayout(2, 64, spec)
    with Segment.create("ring", layout.arrays(), poison=True) as memory:
        reader, mailbox = RingReader(memory, layout), WeightMailbox.create(RandomPolicy().weight_count)
        reader.grant(60)
        mailbox.publish(np.zeros(RandomPolicy().weight_count, np.float32))
        actor = Actor(
            streams, RandomPolicy(), RingWriter(memory, layout), mailbox, index=0, num_actors=1, seed=0
        )
        actor.begin()
        for _ in range(18):
            assert actor.step()
        count, _, _, successes = reader.episodes_since(0)
        assert count == 12
        assert successes.tolist() == [SUCCEEDED, SUCCEEDED, *[FAILED] * 4] * 2
        actor.close()
        mailbox.close()


def test_an_evaluation_has_its_success_rate() -> None:
    player = EpisodePlayer(EnvSource.from_user(Third), RandomPolicy(), max_envs=1)
    player.play(6, seed=0)
    assert player.successes.tolist() == [SUCCEEDED, FAILED, FAILED] * 2
    assert success_rate(player.successes) == 1 / 3
    player.close()


def test_an_environment_that_does_not_say_has_no_success_rate() -> None:
    returns, _ = run_episodes("CartPole-v1", RandomPolicy(), 2, 0)
    player = EpisodePlayer(EnvSource.from_user("CartPole-v1"), RandomPolicy(), 2)
    player.play(2, seed=0)
    assert len(returns) == 2 and success_rate(player.successes) is None
    assert success_of({"success": np.array([True, False]), "_success": np.array([False, True])}, 0) == UNKNOWN
    assert success_of(None) == UNKNOWN
    player.close()


@pytest.mark.parametrize(
    "value",
    [np.array([True, False]), [True, False], {"task": True}, "no", None, np.nan, np.float32("nan"), object()],
    ids=["array", "list", "dict", "text", "none", "nan", "float32 nan", "object"],
)
def test_a_success_that_is_not_one_number_is_unknown(value: Any) -> None:
    """Such as one for each task of an episode, whose truth NumPy does not say."""
    assert success_of({"success": value}) == UNKNOWN
    several = np.empty(2, object)
    several[0] = value
    assert success_of({"success": several}, 0) == UNKNOWN


def test_the_success_of_a_vector_that_is_not_one_for_each_environment_is_unknown() -> None:
    assert [success_of({"success": value}, 1) for value in (True, [True], {"a": [True]})] == [UNKNOWN] * 3


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.int8, np.float32, np.array, torch.tensor])
def test_one_number_of_any_kind_says_whether_an_episode_succeeded(kind: Callable[[Any], Any]) -> None:
    assert [success_of({"is_success": kind(value)}) for value in (True, False)] == [SUCCEEDED, FAILED]
    assert success_of({"is_success": np.array([True])}) == SUCCEEDED


class Shares(Parallel):
    """Green and blue say at their end whether they succeeded, red says nothing; records what each episode is worth."""

    ended: ClassVar[list[float | None]] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.said: list[bool] = []
        return super().reset(seed)

    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        for name in [name for name in infos if name not in self.agents and name != "red"]:
            infos[name]["is_success"] = (self.episode + self.possible_agents.index(name)) % 3 == 0
            self.said.append(infos[name]["is_success"])
        if not self.agents:
            Shares.ended.append(sum(self.said) / len(self.said) if self.said else None)
        return (*rest, infos)


def codes(shares: list[float | None]) -> list[int]:
    return [UNKNOWN if share is None else FAILED + round(120 * share) for share in shares]


def test_an_episode_of_several_agents_is_worth_the_mean_over_those_that_say() -> None:
    Shares.ended.clear()
    source = EnvSource.from_user(Shares)
    spec = spec_of("shares", source.build())
    streams = make_streams(source, spec, 2 * 3)
    layout = RingLayout(6, 128, spec)
    with Segment.create("ring", layout.arrays(), poison=True) as memory:
        reader, mailbox = RingReader(memory, layout), WeightMailbox.create(RandomPolicy().weight_count)
        reader.grant(120)
        mailbox.publish(np.zeros(RandomPolicy().weight_count, np.float32))
        writer = RingWriter(memory, layout)
        actor = Actor(streams, RandomPolicy(), writer, mailbox, index=0, num_actors=1, seed=0)
        actor.begin()
        for _ in range(100):
            assert actor.step()
        count, _, _, successes = reader.episodes_since(0)
        assert successes.tolist() == codes(Shares.ended) and count == len(Shares.ended) > 20
        assert {0.0, 0.5, 1.0} <= set(Shares.ended), "all cases came"
        actor.close()
        mailbox.close()


def test_an_evaluation_of_several_agents_has_its_success_rate() -> None:
    Shares.ended.clear()
    player = EpisodePlayer(EnvSource.from_user(Shares), RandomPolicy(), max_envs=1)
    player.play(9, seed=0)
    assert player.successes.tolist() == codes(Shares.ended)
    known = [share for share in Shares.ended if share is not None]
    assert success_rate(player.successes) == pytest.approx(sum(known) / len(known))
    player.close()


def test_a_gymnasium_environment_speaks_for_all_its_agents() -> None:
    class Succeeds(Tuples):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"success": self.steps == 4}

    env = EnvSource.from_user(Succeeds).build()
    assert isinstance(env, AgentsEnv)
    env.reset(seed=0)
    while not env.over:
        assert env.successes.tolist() == [UNKNOWN] * 3
        env.step([0, 0, 0])
    assert env.successes.tolist() == [SUCCEEDED] * 3
    env.reset()
    assert env.successes.tolist() == [UNKNOWN] * 3


@pytest.mark.parametrize("agents", range(1, 7))
def test_the_share_of_few_agents_is_exact(agents: int) -> None:
    for succeeded in range(agents + 1):
        each = np.array([SUCCEEDED] * succeeded + [FAILED] * (agents - succeeded) + [UNKNOWN], np.int8)
        assert success_rate(np.array([share_of_agents(each)], np.int8)) == succeeded / agents
