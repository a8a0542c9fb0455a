"""Fastest test of learning: the action must equal the observation.

An actor, a ring, the replay and a core as a trainer joins them, in one process and one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from small_records import small

from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import PlainStreams
from asyncrl.algorithms import ALGORITHMS
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import Batch
from asyncrl.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)
ENVS, ROWS_PER_UPDATE, LENGTH = 8, 2, 10


class Echo(gymnasium.Env[np.ndarray, Any]):
    """Episodes of `LENGTH` steps, each rewarded with 1 for the observation, less the squared error in a box."""

    def __init__(self, box: bool) -> None:
        self._box = box
        self.observation_space = spaces.Box(-1.0, 3.0, (2,) if box else (4,), np.float32)
        self.action_space = spaces.Box(LOW, HIGH) if box else spaces.Discrete(4, start=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = LENGTH
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(rewards(self._obs[None], np.asarray(action)[None], self._box, start=2)[0])
        self._left -= 1
        return self._observe(), reward, self._left == 0, False, {}

    def _observe(self) -> np.ndarray:
        rng = self.np_random
        if self._box:
            self._obs = rng.uniform(LOW, HIGH).astype(np.float32)
        else:
            self._obs = np.eye(4, dtype=np.float32)[rng.integers(4)]
        return self._obs


def rewards(obs: np.ndarray, action: np.ndarray, box: bool, start: int = 0) -> np.ndarray:
    """Reward of each action; errors are in units of half the range."""
    if box:
        return 1.0 - np.square(2.0 * (action - obs) / (HIGH - LOW)).sum(axis=1)
    return (action - start == obs.argmax(axis=1)).astype(np.float64)


class Loop:
    """An acting actor and a core that learns from its ring, in turn."""

    def __init__(self, algorithm: Any, envs: list[Echo], segment: Segment, mailbox: WeightMailbox) -> None:
        spec = spec_of("echo", envs[0])
        layout = RingLayout(ENVS, 512, spec)
        self.core = algorithm.make_updater(spec, "cpu", 0)
        self.policy = algorithm.make_policy(spec)
        self.mailbox = mailbox
        self.actor = Actor(
            *(PlainStreams(envs, spec), self.policy, RingWriter(segment, layout), mailbox),
            index=0,
            num_actors=1,
            seed=1,
        )
        self.replay = PrioritizedReplay(
            [RingReader(segment, layout)],
            n_step=algorithm.n_step,
            gamma=algorithm.discount,
            alpha=algorithm.alpha if algorithm.prioritized else None,
            rng=np.random.default_rng(2),
        )
        self.batch = Batch.allocate(algorithm.batch_size, spec)
        self._weights = np.empty(self.core.weight_count, np.float32)
        self.publish()
        self.actor.begin()

    def publish(self) -> None:
        self.core.write_weights(self._weights)
        self.mailbox.publish(self._weights)

    def turn(self, starts: int) -> None:
        """Act for some rows, and update once there is enough data."""
        written = 0
        while written < ROWS_PER_UPDATE:
            self.replay.grant(0, int(self.replay.published_rows()[0]) + 4)
            written += self.actor.step()
            self.replay.ingest()
        if self.replay.inserted < starts:
            return
        self.replay.sample(self.batch, 0.4)
        priorities = self.core.update(self.batch).priorities
        if priorities is not None:
            self.replay.update_priorities(self.batch.ids, priorities)
        self.publish()

    def greedy_reward(self, box: bool) -> float:
        """Mean reward of the greedy actions in 500 fresh observations."""
        rng = np.random.default_rng(11)
        obs = rng.uniform(LOW, HIGH, (500, 2)) if box else np.eye(4)[rng.integers(0, 4, 500)]
        obs = obs.astype(np.float32)
        self.policy.load_weights(self._weights)
        return float(rewards(obs, self.policy.greedy(obs), box).mean())


@contextmanager
def loop_of(algorithm: Any, box: bool) -> Iterator[Loop]:
    envs = [Echo(box) for _ in range(ENVS)]
    spec = spec_of("echo", envs[0])
    count = algorithm.make_policy(spec).weight_count
    with (
        closing(Segment.create("ring", RingLayout(ENVS, 512, spec).arrays())) as segment,
        closing(WeightMailbox.create(count)) as mailbox,
    ):
        yield Loop(algorithm, envs, segment, mailbox)


OPTIONS: dict[str, Any] = {
    "gamma": 0.5,
    "tau": 0.05,
    "learning_starts": 200,
    "exploration_steps": 1_000,
    "exploration_scale": 0.3,
    "norm_momentum": 0.9,
    "v_min": 0.0,
    "v_max": 2.0,
}
REPLAY = sorted(name for name, record in ALGORITHMS.items() if record.update_loop == "replay")


UNIFORM: dict[str, Any] = {"prioritized": False}
PRIORITIZED: dict[str, Any] = {"prioritized": True, "n_step": 2}


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, PRIORITIZED) for name in REPLAY), ("dqn", UNIFORM), ("sac", UNIFORM)],
)
def test_identity_is_learned(name: str, options: dict[str, Any]) -> None:
    box = ALGORITHMS[name].needs_bounds
    algorithm = small(name, **{**OPTIONS, **options})
    wanted, reached = 0.97 if box else 0.99, -np.inf
    with loop_of(algorithm, box) as loop:
        for turn in range(4_000):
            loop.turn(algorithm.learning_starts)
            if turn % 100 == 99:
                reached = loop.greedy_reward(box)
                if reached >= wanted:
                    break
    assert reached >= wanted
