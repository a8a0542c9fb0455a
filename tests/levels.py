"""Environments with a level, a keyword argument that every observation shows. Actors import this module by name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Level(gymnasium.Env[Any, Any]):
    """Observation (level, builds of this object's episodes, step); an episode of level n has 3 + n steps.

    Args:
        level: shown in observations.
        wide: whether observations have a number more, which a run does not allow.
    """

    def __init__(self, level: int = 0, wide: bool = False) -> None:
        self.level, self.episode, self.steps = level, 0, 0
        self.observation_space = Box(-1, 1e6, (4 if wide else 3,), np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.seen(), float(self.np_random.random()), self.steps >= 3 + self.level, False, {}

    def seen(self) -> Any:
        row = np.zeros(self.observation_space.shape or (), np.float32)
        row[:3] = self.level, self.episode, self.steps
        return row


class Settable(Level):
    """The same with a method for its keyword arguments, which counts from the next reset on."""

    def __init__(self, level: int = 0) -> None:
        super().__init__(level)
        self.next_level = level

    def set_env_kwargs(self, level: int) -> None:
        self.next_level = level

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = self.next_level
        return super().reset(seed=seed)


class SettableVector(SyncVectorEnv):
    """Two of them in a vector with the method."""

    def __init__(self) -> None:
        super().__init__([Settable, Settable], autoreset_mode=AutoresetMode.NEXT_STEP)

    def set_env_kwargs(self, level: int) -> None:
        for env in self.envs:
            env.set_env_kwargs(level)  # type: ignore[attr-defined]


def plain_vector() -> Any:
    return SyncVectorEnv([Level, Level], autoreset_mode=AutoresetMode.NEXT_STEP)


class Pictured(Level):
    """The same with a picture: a bar that grows by ten pixels a step on a screen of 400 x 300."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as gymnasium's)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(level=20)
        self.render_mode = render_mode

    def render(self) -> Any:
        assert self.render_mode == "rgb_array", "training and evaluations render nothing"
        screen = np.full((300, 400, 3), 255, np.uint8)
        screen[100:200, : 10 * (self.steps + 1)] = (30, 90, 200)
        return screen


class PicturedChoice(Pictured):
    """The same, whose reward is the action."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest
