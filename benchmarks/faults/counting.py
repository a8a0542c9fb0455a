"""Environment whose every step follows from arithmetic, so that `rows.py` can recompute it.

Observation = (stream, episode mod 240, step, last action), scaled to dyadic fractions: every comparison is exact. Every
life of an actor imports this module, so it imports little.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from asyncrl.interfaces import TERMINATED, TRUNCATED

ACTIONS = 4
PERIOD = 240
SCALE = np.array([64, 256, 8, 8], np.float32)
HOW = np.array([TERMINATED, TRUNCATED, TERMINATED | TRUNCATED], np.uint8)


class CountingEnv(gymnasium.Env):
    """Episodes of 1 to 5 steps that end terminated, truncated or both in turn."""

    built = itertools.count()

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 4.0, (4,), np.float32)
        self.action_space = Discrete(ACTIONS)
        self.stream = next(CountingEnv.built)
        self.episode, self.number, self.action = -1, 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode, self.number, self.action = self.episode + 1, 0, -1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        self.number, self.action = self.number + 1, int(action)
        where = np.array([[self.stream], [self.episode % PERIOD], [self.number]])
        flags, reward = int(flags_of(*where)[0]), float(reward_of(*where)[0])
        return self._observe(), reward, bool(flags & TERMINATED), bool(flags & TRUNCATED), {}

    def _observe(self) -> Any:
        return np.array([self.stream, self.episode % PERIOD, self.number, self.action], np.float32) / SCALE


def flags_of(stream: Any, episode: Any, step: Any) -> Any:
    """Flags of a step."""
    ends = step >= 1 + (7 * stream + 3 * episode) % 5
    return np.where(ends, HOW[episode % 3], 0).astype(np.uint8)


def reward_of(stream: Any, episode: Any, step: Any) -> Any:
    """Reward of a step, exact in float32."""
    return (stream / 8 + episode / 256 - step / 8).astype(np.float32)
