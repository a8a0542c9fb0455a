"""Connect Four, a game of two players, `asyncrl/ConnectFour-v0`, for self-play.

Players put stones into columns by turns; the first with four in a line wins: reward 1, and -1 for the other. A full
board is a draw, reward 0. Both players act in every step, but the one that is not on move has one legal action, without
effect, as its mask says. So the game of turns is one of agents that act at once, which PettingZoo's
`connect_four_v3` (its AEC API) is not.

The first player wins a perfect game from the empty board of 6 rows and 7 columns (Allis, 1988, "A Knowledge-based
Approach of Connect-Four").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, Tuple
from numpy.typing import NDArray

Observation = dict[str, NDArray[np.int8]]
CELL = 24
"""Pixels of a cell's side in `render`."""
COLOURS = ((235, 235, 235), (214, 60, 50), (240, 190, 40))
"""Colours of an empty cell and of the stones of both players."""


class ConnectFour(gymnasium.Env[tuple[Observation, ...], tuple[np.int64, ...]]):
    """Connect Four; see the module.

    Observations of each player are a Dict of `observation`, int8 `[rows, columns, 3]`, and of `action_mask`, int8
    `[columns]`. The channels are its own stones, those of the other, and 1 in every cell if it is on move; the first
    row is the lowest. The board is a grid, so that convolutions are the default network. A move into a full column,
    which the mask forbids, loses.

    Args:
        rows, columns: size of the board.
        length: stones of a winning line.
        render_mode: None or `"rgb_array"`.

    Raises:
        ValueError: no line fits the board.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 (as gymnasium's)

    def __init__(
        self, rows: int = 6, columns: int = 7, length: int = 4, render_mode: str | None = None
    ) -> None:
        if not 1 < length <= max(rows, columns) or min(rows, columns) < 1:
            raise ValueError(
                f"length must be from 2 to the longer side of the board, got {length} for {rows} x {columns}"
            )
        own = Dict({"observation": MultiBinary((rows, columns, 3)), "action_mask": MultiBinary(columns)})
        self.observation_space: Any = Tuple((own, own))
        self.action_space: Any = Tuple((Discrete(columns), Discrete(columns)))
        self.render_mode = render_mode
        self._rows, self._columns, self._length = rows, columns, length
        self._begin()

    def _begin(self) -> None:
        self._stones = np.zeros((self._rows, self._columns, 2), np.int8)
        self._boards = [0, 0]  # the same as bits, with a row without stones on top of every column
        self._heights = [0] * self._columns
        self._on_move = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[Observation, ...], dict[str, Any]]:
        """Empty the board; the first player is on move."""
        super().reset(seed=seed)
        self._begin()
        return self._observations(), {}

    def step(self, action: Sequence[Any]) -> tuple[tuple[Observation, ...], Any, bool, bool, dict[str, Any]]:
        """Let the player on move put a stone into its column; the other's action has no effect."""
        player, column = self._on_move, int(action[self._on_move])
        height = self._heights[column]
        winner = None
        if height == self._rows:
            winner = 1 - player
        else:
            self._stones[height, column, player] = 1
            self._boards[player] |= 1 << (column * (self._rows + 1) + height)
            self._heights[column] += 1
            self._on_move = 1 - player
            if self._has_line(self._boards[player]):
                winner = player
        ended = winner is not None or min(self._heights) == self._rows
        rewards = (0.0, 0.0) if winner is None else (1.0, -1.0) if winner == 0 else (-1.0, 1.0)
        return self._observations(), rewards, ended, False, {}

    def _has_line(self, board: int) -> bool:
        for shift in (1, self._rows, self._rows + 1, self._rows + 2):  # up, and sideways: down, level, up
            line = board
            for stones in range(1, self._length):
                line &= board >> (stones * shift)
            if line:
                return True
        return False

    def _observations(self) -> tuple[Observation, ...]:
        return self._seen_by(0), self._seen_by(1)

    def _seen_by(self, player: int) -> Observation:
        moves = player == self._on_move
        seen = np.empty((self._rows, self._columns, 3), np.int8)
        seen[..., 0], seen[..., 1], seen[..., 2] = (
            self._stones[..., player],
            self._stones[..., 1 - player],
            moves,
        )
        mask = np.array([moves and height < self._rows for height in self._heights], np.int8)
        if not mask.any():  # it waits, or the board is full
            mask[0] = 1
        return {"observation": seen, "action_mask": mask}

    def render(self) -> Any:
        """Return the board as an image `[24 rows, 24 columns, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        kinds = self._stones[..., 0] + 2 * self._stones[..., 1]
        cells = np.array(COLOURS, np.uint8)[kinds[::-1]]
        image = cells.repeat(CELL, 0).repeat(CELL, 1)
        image[::CELL], image[:, ::CELL] = 120, 120
        return image
