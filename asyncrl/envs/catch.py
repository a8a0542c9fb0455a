"""Catch, a small environment of pixels, `asyncrl/Catch-v0`: so plain that a learner can be judged by it.

A ball of 3 x 3 pixels falls from the top of a 21 x 21 image, two rows a step, and drifts aside, bouncing off the
walls. A paddle of 7 x 2 pixels in the last rows moves two pixels a step. The episode ends after 9 steps with reward 1
where the ball's middle falls on the paddle and -1 where it does not; all other rewards are 0. The best actions reach 1.

After the game of Mnih et al. 2014, "Recurrent models of visual attention", and bsuite's `catch`, with drift.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

SIDE, SPEED, LIGHT = 21, 2, 255
"""Pixels a side, pixels that the ball falls and the paddle moves in a step, and the value of a lit pixel."""
BALL, PADDLE = 1, 3
"""Pixels of the ball and of the paddle on either side of their middles."""
GROUND = SIDE - 2
"""Row of the ball's middle in which it is caught or not."""
SCALE = 12
"""Screen pixels a pixel in `render`."""


class Catch(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Catch; see the module.

    Observations are uint8 `[21, 21]`, 255 where the ball or the paddle is. Actions: 0 left, 1 stay, 2 right.

    Args:
        render_mode: None or `"rgb_array"`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (as gymnasium's)

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = Box(0, LIGHT, (SIDE, SIDE), np.uint8)
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._row = self._column = self._paddle = self._drift = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Drop a ball at a random column, with a random drift; the paddle is in the middle."""
        super().reset(seed=seed)
        self._row, self._column = BALL, int(self.np_random.integers(BALL, SIDE - BALL))
        self._drift, self._paddle = int(self.np_random.integers(-1, 2)), SIDE // 2
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Move paddle and ball."""
        moved = self._paddle + SPEED * (int(action) - 1)
        self._paddle = min(max(moved, PADDLE), SIDE - 1 - PADDLE)
        self._row += SPEED
        if not BALL <= self._column + self._drift < SIDE - BALL:
            self._drift = -self._drift
        self._column += self._drift
        ended = self._row == GROUND
        caught = abs(self._column - self._paddle) <= PADDLE
        return self._image(), (1.0 if caught else -1.0) if ended else 0.0, ended, False, {}

    def render(self) -> Any:
        """The image, enlarged, `[252, 252, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        return np.repeat(self._image().repeat(SCALE, 0).repeat(SCALE, 1)[:, :, None], 3, axis=2)

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((SIDE, SIDE), np.uint8)
        image[GROUND:, self._paddle - PADDLE : self._paddle + PADDLE + 1] = LIGHT
        image[self._row - BALL : self._row + BALL + 1, self._column - BALL : self._column + BALL + 1] = LIGHT
        return image


def register() -> None:
    """Register `asyncrl/Catch-v0` with gymnasium; again changes nothing."""
    if "asyncrl/Catch-v0" not in gymnasium.registry:
        gymnasium.register("asyncrl/Catch-v0", "asyncrl.envs.catch:Catch", reward_threshold=0.95)
