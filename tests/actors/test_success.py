"""Successes of episodes: from `info` through the ring's log, and of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from actors_rig import run_episodes
from fakes import RandomPolicy

from asyncrl.actors.actor import Actor
from asyncrl.actors.episodes import EpisodePlayer
from asyncrl.actors.streams import make_streams
from asyncrl.envs.checks import FAILED, SUCCEEDED, UNKNOWN, spec_of, success_of, success_rate
from asyncrl.envs.source import EnvSource
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


@pytest.mark.parametrize("make", [Third, lambda: Third("success"), vector])
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
