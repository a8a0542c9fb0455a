"""BitFlip, a small goal environment, `asyncrl/BitFlip-v0`: flip one of n bits per step until they are those desired.

Andrychowicz et al., "Hindsight Experience Replay", arXiv 1707.01495, section 3.1. Bits and desired bits are drawn at
the start of an episode. The reward is 0 where they are equal after a step and -1 elsewhere; an episode ends when they
are, or after n steps. Nearly no reward is seen by chance beyond a few bits: without hindsight nothing is learned.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary
from numpy.typing import NDArray

Observation = dict[str, NDArray[np.int8]]


class BitFlip(gymnasium.Env[Observation, np.int64]):
    """BitFlip; see the module.

    Observations are a Dict of `observation`, `achieved_goal` (the bits, both) and `desired_goal`, each int8 `[bits]`.
    The action is the index of the bit to flip.

    Args:
        bits: number of bits, at least 1.

    Raises:
        ValueError: `bits` is below 1.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as gymnasium's)

    def __init__(self, bits: int = 15) -> None:
        if bits < 1:
            raise ValueError(f"bits must be at least 1, got {bits}")
        keys = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: Any = Dict({key: MultiBinary(bits) for key in keys})
        self.action_space = Discrete(bits)
        self._bits, self._desired = np.zeros((2, bits), np.int8)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw bits and desired bits."""
        super().reset(seed=seed)
        self._bits, self._desired = self.np_random.integers(0, 2, (2, self._bits.size)).astype(np.int8)
        self._steps = 0
        return self._shown(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Flip a bit."""
        self._bits[action] ^= 1
        self._steps += 1
        reward = float(self.compute_reward(self._bits, self._desired, {}))
        reached = reward == 0.0
        return self._shown(), reward, reached, self._steps == self._bits.size, {"is_success": reached}

    def compute_reward(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any) -> Any:
        """Reward of goals `[bits]` or `[n, bits]`: 0 where they are equal, else -1."""
        return (achieved_goal == desired_goal).all(axis=-1) - 1.0

    def _shown(self) -> Observation:
        bits = self._bits.copy()
        return {"observation": bits, "achieved_goal": bits, "desired_goal": self._desired}
