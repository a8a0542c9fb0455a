"""Positions of the rings in checkpoints."""

from __future__ import annotations

import pytest

from asyncrl.run.saving import shares


@pytest.mark.parametrize(
    ("total", "rows"),
    [
        (608, [14, 24]),
        (607, [14, 24]),
        (5, [2, 2, 2]),
        (96, [3, 3]),
        (0, [0, 0]),
        (16, [0, 1]),
        (11, [7, 5, 3]),
    ],
)
def test_steps_are_shared_among_rings_without_loss(total: int, rows: list[int]) -> None:
    found = shares(total, rows)
    assert sum(found) == total
    # `begin_at` takes no more steps of a ring than its rows hold.
    assert all(0 <= steps <= 16 * own for steps, own in zip(found, rows, strict=True))


def test_the_first_ring_gets_no_more_than_its_rows_hold() -> None:
    assert max(shares(5, [2, 2, 2])) == 2
