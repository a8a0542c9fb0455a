"""Recall, a small environment that requires memory, `asyncrl/Recall-v0`: a cue is shown once and queried later.

The first observation of an episode shows a cue, one of `cues`, and the cue light. The next `delay - 1` observations
show distractors: random cues, without a light. The observation `delay` steps after the cue has the question light and
shows no cue; the action taken there gets reward 1 if it is the cue, else -1, and the episode ends. All other actions
have no effect and reward 0. The best return is 1. A policy without memory, or with one of fewer than `delay` steps,
reaches 2 / cues - 1 (0 for two cues).

It is based on bsuite's `memory_len` (Osband et al. 2020) and the T-maze of Bakker 2002, "Reinforcement learning with
long short-term memory", with distractors.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray


class Recall(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Recall; see the module.

    Observations are float32 `[2 + cues]`: the cue light, the question light, and the cue shown, one-hot (zeros for
    none). The action is the index of the recalled cue.

    Args:
        delay: steps from the cue to the question, at least 1.
        cues: number of cues, at least 2.

    Raises:
        ValueError: an argument is below its minimum.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as gymnasium's)

    def __init__(self, delay: int = 20, cues: int = 2) -> None:
        for name, value, least in (("delay", delay, 1), ("cues", cues, 2)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.observation_space = Box(0.0, 1.0, (2 + cues,), np.float32)
        self.action_space = Discrete(cues)
        self._delay, self._cues, self._row, self._cue = delay, cues, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Show a cue."""
        super().reset(seed=seed)
        self._row, self._cue = 0, int(self.np_random.integers(self._cues))
        return self._shown(self._cue, light=0), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Show a distractor or the question; the step after the question ends the episode."""
        self._row += 1
        if self._row > self._delay:
            return self._shown(), 1.0 if int(action) == self._cue else -1.0, True, False, {}
        if self._row == self._delay:
            return self._shown(light=1), 0.0, False, False, {}
        return self._shown(int(self.np_random.integers(self._cues))), 0.0, False, False, {}

    def _shown(self, symbol: int | None = None, light: int | None = None) -> NDArray[np.float32]:
        obs = np.zeros(2 + self._cues, np.float32)
        if light is not None:
            obs[light] = 1.0
        if symbol is not None:
            obs[2 + symbol] = 1.0
        return obs
