"""Catch, a small environment with image observations, `asyncrl/Catch-v0`; simple enough to test a learner.

A ball of 3 x 3 pixels falls from the top of a 21 x 21 image, two rows a step, and drifts sideways, bouncing off the
walls. A paddle of 7 x 2 pixels in the last rows moves two pixels a step. The episode ends after 9 steps with reward 1
if the ball's middle is on the paddle, else -1; all other rewards are 0. The best return is 1.

It is based on the game of Mnih et al. 2014, "Recurrent models of visual attention", and bsuite's `catch`, with drift.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

SIDE, SPEED, LIGHT = 21, 2, 255
"""Pixels per side, speed of ball and paddle in pixels per step, and the value of a lit pixel."""
BALL, PADDLE = 1, 3
"""Pixels of the ball and of the paddle on each side of their middles."""
GROUND = SIDE - 2
"""Row of the ball's middle at the end of the episode."""
SCALE = 12
"""Enlargement factor of `render`."""


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
        """Begin with the ball at the top in a random column, with a random drift, and the paddle in the middle."""
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
        """Return the enlarged image `[252, 252, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        return np.repeat(self._image().repeat(SCALE, 0).repeat(SCALE, 1)[:, :, None], 3, axis=2)

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((SIDE, SIDE), np.uint8)
        image[GROUND:, self._paddle - PADDLE : self._paddle + PADDLE + 1] = LIGHT
        image[self._row - BALL : self._row + BALL + 1, self._column - BALL : self._column + BALL + 1] = LIGHT
        return image
