import math

import numpy as np
import pytest
from trajectories import Rows, pieces, random_rows

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.losses.advantages import gae, gae_kernel


def slow_gae(rows: Rows, gamma: float, lam: float) -> np.ndarray:
    """Schulman et al. 2016, eq. 16: A_t = sum over l of (gamma lambda)^l delta^V_{t+l}, one trajectory at a time."""
    advantage = np.zeros(rows.reward.shape)
    for e in range(rows.reward.shape[0]):
        seen = [*map(float, rows.value[e]), float(rows.last_value[e])]  # V(o_0) .. V(o_T)
        for piece, terminated in pieces(rows.flags[e]):
            ahead = [seen[t + 1] for t in piece]
            if terminated:
                ahead[-1] = 0.0
            delta = [
                float(rows.reward[e, t]) + gamma * v - seen[t] for t, v in zip(piece, ahead, strict=True)
            ]
            for i, t in enumerate(piece):
                terms = ((gamma * lam) ** k * d for k, d in enumerate(delta[i:]))
                advantage[e, t] = math.fsum(terms)
    return advantage


def columns(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def run(reward, value, last, flags, gamma=0.5, lam=0.5):  # type: ignore[no-untyped-def]
    array = np.array([flags], np.uint8)
    a, target = gae(columns(*reward), columns(*value), np.array([last], np.float32), array, gamma, lam)
    return a[0].tolist(), target[0].tolist()


def test_by_hand() -> None:
    # delta = 1 + 4/2 - 2, 2 + 6/2 - 4, 3 + 10/2 - 6 = 1, 1, 2; gamma lambda = 1/4: 2, 1 + 2/4, 1 + 1.5/4
    assert run([1, 2, 3], [2, 4, 6], 10, [0, 0, 0]) == ([1.375, 1.5, 2.0], [3.375, 5.5, 8.0])


@pytest.mark.parametrize(
    ("first", "delta"),
    [
        (TERMINATED, 1 - 2),  # nothing follows
        (TERMINATED | TRUNCATED, 1 - 2),
        (TRUNCATED, 1 + 4 / 2 - 2),  # the RESET row's observation is the true final one
        (0, 1 + 4 / 2 - 2),  # an actor's death truncates just the same
    ],
)
def test_what_an_end_bootstraps(first: int, delta: float) -> None:
    # The row behind the RESET row is another episode: 3 + 10/2 - 6 = 2
    advantage, target = run([1, 0, 3], [2, 4, 6], 10, [first, RESET, 0])
    assert advantage == [delta, 0.0, 2.0]
    assert target == [delta + 2, 0.0, 8.0]


@pytest.mark.parametrize(("last", "delta"), [(TERMINATED, 3 - 6), (TRUNCATED, 3 + 10 / 2 - 6), (0, 2)])
def test_what_the_last_row_bootstraps(last: int, delta: float) -> None:
    assert run([3], [6], 10, [last])[0] == [delta]


def test_an_end_cuts_by_itself() -> None:
    # No RESET row behind it, as actors never write it: still nothing flows back over an end.
    assert run([1, 3], [2, 6], 10, [TERMINATED, 0])[0] == [1 - 2, 2]
    assert run([1, 3], [2, 6], 10, [TRUNCATED, 0])[0] == [1 + 6 / 2 - 2, 2]


def test_a_segment_of_reset_rows_is_zero() -> None:
    assert run([0, 0], [5, 6], 7, [RESET, RESET]) == ([0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_is_the_papers_sum(seed: int, lam: float) -> None:
    rows = random_rows(seed)
    advantage, target = gae(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, lam)
    assert advantage.dtype == target.dtype == np.float32
    expected = slow_gae(rows, 0.97, lam)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-6)
    acted = rows.flags & RESET == 0
    np.testing.assert_allclose(target[acted], (expected + rows.value)[acted], rtol=1e-5, atol=1e-6)
    assert not advantage[~acted].any() and not target[~acted].any()


def test_kernel_is_its_python() -> None:
    rows = random_rows(9, envs=4)
    expected = gae(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, 0.9)
    got = np.empty_like(expected[0]), np.empty_like(expected[0])
    gae_kernel.py_func(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, 0.9, *got)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_views_into_a_ring_are_read_in_place_and_nothing_is_written() -> None:
    rows = random_rows(3)
    expected = gae(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, 0.9)
    reward, flags = np.empty((12, 64), np.float32), np.empty((12, 64), np.uint8)
    reward[:, 20:37], flags[:, 20:37] = rows.reward, rows.flags
    for array in (reward, flags, rows.value, rows.last_value):
        array.flags.writeable = False
    got = gae(reward[:, 20:37], rows.value, rows.last_value, flags[:, 20:37], 0.97, 0.9)
    np.testing.assert_array_equal(got, expected)


def test_axes_are_checked() -> None:
    one, flags = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.uint8)
    for value, last, marks in (
        (one[:, :2], one[:, 0], flags),
        (one, one[0], flags),
        (one, one[:, 0], flags[:1]),
    ):
        with pytest.raises(AssertionError):
            gae(one, value, last, marks, 0.9, 0.9)
