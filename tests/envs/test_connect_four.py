"""Connect Four against a slow twin of its rules, and as an environment of two agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.envs.connect_four import CELL, ConnectFour
from asyncrl.envs.source import EnvSource, describe
from asyncrl.envs.trial import try_out


def slow_line(board: np.ndarray[Any, Any], player: int, length: int) -> bool:
    """Whether a player has a line, looked for from every cell `[row, column]` in every direction."""
    rows, columns = board.shape
    for row in range(rows):
        for column in range(columns):
            for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + n * up, column + n * right) for n in range(length)]
                if all(0 <= r < rows and 0 <= c < columns and board[r, c] == player for r, c in cells):
                    return True
    return False


@pytest.mark.parametrize("size", [(6, 7, 4), (4, 4, 3), (3, 5, 3), (2, 2, 2), (5, 4, 5)])
def test_games_are_those_of_the_slow_twin(size: tuple[int, int, int]) -> None:
    rows, columns, length = size
    env, rng = ConnectFour(rows, columns, length), np.random.default_rng(rows)
    results = set()
    for _ in range(200):
        seen, _ = env.reset()
        board, on_move, ended = np.full((rows, columns), -1), 0, False
        while not ended:
            heights = (board >= 0).sum(axis=0)
            for player in range(2):
                moves = player == on_move
                planes = (board == player, board == 1 - player, np.full(board.shape, moves))
                np.testing.assert_array_equal(seen[player]["observation"], np.stack(planes, axis=2))
                legal = heights < rows if moves else np.arange(columns) == 0
                np.testing.assert_array_equal(seen[player]["action_mask"], legal)
                assert env.observation_space[player].contains(seen[player])
            column = int(rng.choice(np.flatnonzero(heights < rows)))
            actions = [int(rng.integers(columns)) for _ in range(2)]
            actions[on_move] = column
            board[heights[column], column] = on_move
            seen, rewards, ended, truncated, _ = env.step(actions)
            won = slow_line(board, on_move, length)
            assert ended == (won or bool((board >= 0).all())) and not truncated
            assert rewards == (((1.0, -1.0), (-1.0, 1.0))[on_move] if won else (0.0, 0.0))
            results.add(rewards)
            on_move = 1 - on_move
        assert all(view["action_mask"].any() for view in seen), "a mask without an action has no policy"
    assert len(results) == (2 if size == (2, 2, 2) else 3), "both players win, and none"


def test_a_move_into_a_full_column_loses() -> None:
    env = ConnectFour(2, 3, 3)
    env.reset()
    for _ in range(2):
        assert env.step([0, 0])[1:3] == ((0.0, 0.0), False)
    assert env.step([0, 0])[1:3] == ((-1.0, 1.0), True)


@pytest.mark.parametrize("size", [(6, 7, 1), (3, 3, 4), (0, 7, 4)])
def test_a_board_without_lines_is_refused(size: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="length must be from 2 to the longer side of the board, got"):
        ConnectFour(*size)


def test_a_picture_shows_the_stones() -> None:
    assert ConnectFour().render() is None
    env = ConnectFour(render_mode="rgb_array")
    env.reset()
    env.step([3, 0])
    picture = env.render()
    assert picture.shape == (6 * CELL, 7 * CELL, 3) and picture.dtype == np.uint8
    middle = picture[CELL // 2 :: CELL, CELL // 2 :: CELL]
    differs = (middle != middle[0, 0]).any(axis=2)
    assert np.argwhere(differs).tolist() == [[5, 3]], "the stone lies at the bottom of column 3"


def test_it_is_registered_for_two_agents_with_masks_and_has_no_threshold() -> None:
    source = EnvSource.from_user("asyncrl/ConnectFour-v0")
    spec = describe(source)
    assert [agent.name for agent in spec.agents] == ["agent_0", "agent_1"]
    assert all(agent.masked for agent in spec.agents) and spec.reward_threshold is None
    assert [leaf.kind for leaf in spec.leaves] == ["values", "grid"], "the board gets convolutions"
    assert describe(EnvSource.from_user("asyncrl/Catch-v0")).reward_threshold == 0.95
    found = []
    try_out(source, 0.1, found.append)
    assert found
