"""V-trace and generalized advantage estimation against the papers' sums, by hand and at every end of a trajectory."""

import math

import numpy as np
import pytest
from trajectories import Rows, pieces, random_rows

from asyncrl.algorithms.returns import explained_variance, gae, standardised, vtrace, vtrace_kernel
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED

GAMMA = 0.97


def slow_vtrace(rows: Rows, lam: float, rho_bar: float, c_bar: float, pg_rho_bar: float):  # type: ignore[no-untyped-def]
    """Espeholt et al. 2018, eq. 1, term by term, and the advantage of section 4.2, one trajectory at a time."""
    shape = rows.reward.shape
    vs, advantage = np.zeros(shape), np.zeros(shape)
    for e in range(shape[0]):
        for piece, terminated in pieces(rows.flags[e]):
            n = len(piece)
            v = [float(rows.value[e, t]) for t in piece]
            after = (
                float(rows.value[e, piece[-1] + 1]) if piece[-1] + 1 < shape[1] else float(rows.last_value[e])
            )
            v.append(0.0 if terminated else after)  # V(x_n)
            r = [float(rows.reward[e, t]) for t in piece]
            ratio = [math.exp(rows.log_ratio[e, t]) for t in piece]
            rho = [min(rho_bar, x) for x in ratio]
            c = [lam * min(c_bar, x) for x in ratio]
            targets = []
            for s in range(n):
                total = v[s]
                for t in range(s, n):
                    delta = rho[t] * (r[t] + GAMMA * v[t + 1] - v[t])
                    total += GAMMA ** (t - s) * math.prod(c[s:t]) * delta
                targets.append(total)
            targets.append(v[n])  # behind the trajectory nothing is known but the value
            for s, t in enumerate(piece):
                vs[e, t] = targets[s]
                q = r[s] + GAMMA * (lam * targets[s + 1] + (1 - lam) * v[s + 1])
                advantage[e, t] = min(pg_rho_bar, ratio[s]) * (q - v[s])
    return vs, advantage


def run(rows: Rows, lam: float = 1.0, *bars: float):  # type: ignore[no-untyped-def]
    three = *bars, *(1.0,) * (3 - len(bars))
    return vtrace(rows.log_ratio, rows.reward, rows.value, rows.last_value, rows.flags, GAMMA, lam, three)


TRUNCATIONS = [(1.0, 1.0, 1.0), (1.5, 1.2, 0.7), (0.6, 0.4, 1.3), (math.inf, math.inf, math.inf)]


@pytest.mark.parametrize("bars", TRUNCATIONS)
@pytest.mark.parametrize("lam", [1.0, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_is_the_papers_sum(seed: int, lam: float, bars: tuple[float, float, float]) -> None:
    rows = random_rows(seed)
    vs, advantage = run(rows, lam, *bars)
    expected_vs, expected_advantage = slow_vtrace(rows, lam, *bars)
    np.testing.assert_allclose(vs, expected_vs, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(advantage, expected_advantage, rtol=1e-5, atol=2e-6)


def test_inputs_cross_every_truncation() -> None:
    rows = random_rows(0)
    ratio = np.exp(rows.log_ratio[rows.flags & RESET == 0])
    for bar in {bar for bars in TRUNCATIONS for bar in bars if bar < math.inf}:
        assert 0.1 < (ratio > bar).mean() < 0.9
    for flag in (TERMINATED, TRUNCATED, RESET):
        assert (rows.flags & flag).any()
    following = np.roll(rows.flags, -1, axis=1)[:, :-1] & RESET
    assert ((rows.flags[:, :-1] == 0) & (following != 0)).any(), "an actor's death is among them"


def test_by_hand() -> None:
    # ratios 2, 1/2, 1; gamma 1/2; all truncated at 1. Last row: delta = 4 + 8/2 - 2 = 6, v = 8.
    # Row 1: delta = 1/2 (1 + 2/2 - 4) = -1, v = 4 - 1 + 1/2 1/2 (8 - 2) = 4.5; A = 1/2 (1 + 8/2 - 4) = 0.5.
    # Row 0: delta = 1 (2 + 4/2 - 1) = 3, v = 1 + 3 + 1/2 (4.5 - 4) = 4.25; A = 2 + 4.5/2 - 1 = 3.25.
    ratio = np.log(np.array([[2, 0.5, 1]])).astype(np.float32)
    reward, value = np.array([[2, 1, 4]], np.float32), np.array([[1, 4, 2]], np.float32)
    last = np.array([8], np.float32)
    vs, advantage = vtrace(ratio, reward, value, last, np.zeros((1, 3), np.uint8), 0.5)
    np.testing.assert_allclose(vs, [[4.25, 4.5, 8.0]], rtol=1e-6)
    np.testing.assert_allclose(advantage, [[3.25, 0.5, 6.0]], rtol=1e-6)


def test_obeys_the_recursion_of_remark_1() -> None:
    rows = random_rows(5)
    rows.flags[:] = 0
    vs, _ = run(rows, 1.0, 1.1, 0.9)
    value = np.column_stack((rows.value, rows.last_value)).astype(np.float64)
    behind = np.column_stack((vs, rows.last_value)).astype(np.float64)
    ratio = np.exp(rows.log_ratio.astype(np.float64))
    delta = np.minimum(1.1, ratio) * (rows.reward + GAMMA * value[:, 1:] - value[:, :-1])
    expected = value[:, :-1] + delta + GAMMA * np.minimum(0.9, ratio) * (behind[:, 1:] - value[:, 1:])
    np.testing.assert_allclose(vs, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_on_policy_is_generalized_advantage_estimation(lam: float) -> None:
    rows = random_rows(6)
    rows.log_ratio[:] = 0
    vs, advantage = run(rows, lam)
    expected, target = gae(rows.reward, rows.value, rows.last_value, rows.flags, GAMMA, lam)
    np.testing.assert_allclose(advantage, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(vs, target, rtol=1e-6, atol=1e-7)


def test_a_policy_that_would_not_have_acted_so_learns_nothing_from_it() -> None:
    rows = random_rows(7)
    rows.log_ratio[:] = -200.0
    vs, advantage = run(rows)
    acted = rows.flags & RESET == 0
    np.testing.assert_array_equal(vs[acted], rows.value[acted])
    assert not advantage.any()


def test_a_huge_ratio_is_truncated() -> None:
    rows = random_rows(8)
    expected = run(rows)
    rows.log_ratio[rows.log_ratio > 0] = 2000.0  # exp overflows to infinity
    np.testing.assert_array_equal(run(rows), expected)


def test_kernel_is_its_python() -> None:
    rows = random_rows(9, envs=4)
    expected = run(rows, 0.9, 1.2, 0.8, 1.1)
    got = np.empty_like(expected[0]), np.empty_like(expected[0])
    arrays = rows.log_ratio, rows.reward, rows.value, rows.last_value, rows.flags
    vtrace_kernel.py_func(*arrays, GAMMA, 0.9, 1.2, 0.8, 1.1, *got)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_axes_are_checked() -> None:
    one, flags = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.uint8)
    for ratio, value, last in (
        (one[:1], one, one[:, 0]),
        (one, one[:, :2], one[:, 0]),
        (one, one, one[0]),
    ):
        with pytest.raises(AssertionError):
            vtrace(ratio, one, value, last, flags, 0.9)


# --- generalized advantage estimation ---


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


def row_of(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def run_gae(reward, value, last, flags, gamma=0.5, lam=0.5):  # type: ignore[no-untyped-def]
    array = np.array([flags], np.uint8)
    a, target = gae(row_of(*reward), row_of(*value), np.array([last], np.float32), array, gamma, lam)
    return a[0].tolist(), target[0].tolist()


def test_gae_by_hand() -> None:
    # delta = 1 + 4/2 - 2, 2 + 6/2 - 4, 3 + 10/2 - 6 = 1, 1, 2; gamma lambda = 1/4: 2, 1 + 2/4, 1 + 1.5/4
    assert run_gae([1, 2, 3], [2, 4, 6], 10, [0, 0, 0]) == ([1.375, 1.5, 2.0], [3.375, 5.5, 8.0])


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
    advantage, target = run_gae([1, 0, 3], [2, 4, 6], 10, [first, RESET, 0])
    assert advantage == [delta, 0.0, 2.0]
    assert target == [delta + 2, 0.0, 8.0]


@pytest.mark.parametrize(("last", "delta"), [(TERMINATED, 3 - 6), (TRUNCATED, 3 + 10 / 2 - 6), (0, 2)])
def test_what_the_last_row_bootstraps(last: int, delta: float) -> None:
    assert run_gae([3], [6], 10, [last])[0] == [delta]


def test_an_end_cuts_by_itself() -> None:
    # No RESET row behind it, as actors never write it: still nothing flows back over an end.
    assert run_gae([1, 3], [2, 6], 10, [TERMINATED, 0])[0] == [1 - 2, 2]
    assert run_gae([1, 3], [2, 6], 10, [TRUNCATED, 0])[0] == [1 + 6 / 2 - 2, 2]


def test_a_segment_of_reset_rows_is_zero() -> None:
    assert run_gae([0, 0], [5, 6], 7, [RESET, RESET]) == ([0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_gae_is_the_papers_sum(seed: int, lam: float) -> None:
    rows = random_rows(seed)
    advantage, target = gae(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, lam)
    assert advantage.dtype == target.dtype == np.float32
    expected = slow_gae(rows, 0.97, lam)
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-6)
    acted = rows.flags & RESET == 0
    np.testing.assert_allclose(target[acted], (expected + rows.value)[acted], rtol=1e-5, atol=1e-6)
    assert not advantage[~acted].any() and not target[~acted].any()


def test_strided_views_are_read_and_nothing_is_written() -> None:
    rows = random_rows(3)
    expected = gae(rows.reward, rows.value, rows.last_value, rows.flags, 0.97, 0.9)
    reward, flags = np.zeros((12, 64), np.float32), np.zeros((12, 64), np.uint8)
    reward[:, 20:37], flags[:, 20:37] = rows.reward, rows.flags
    given = reward, flags, rows.value, rows.last_value
    before = [array.copy() for array in given]
    got = gae(reward[:, 20:37], rows.value, rows.last_value, flags[:, 20:37], 0.97, 0.9)
    np.testing.assert_array_equal(got, expected)
    for array, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, kept)


def test_axes_of_gae_are_checked() -> None:
    one, flags = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.uint8)
    for value, last, marks in (
        (one[:, :2], one[:, 0], flags),
        (one, one[0], flags),
        (one, one[:, 0], flags[:1]),
    ):
        with pytest.raises(AssertionError):
            gae(one, value, last, marks, 0.9, 0.9)


# --- statistics ---


def test_standardised_by_hand() -> None:
    trained = np.array([[True, True, False]])
    got = standardised(np.array([[1.0, 3.0, 9.0]], np.float32), trained)
    np.testing.assert_allclose(got, [[-1.0, 1.0, 0.0]])
    assert not standardised(np.ones((1, 2), np.float32), np.zeros((1, 2), np.bool_)).any()


def test_explained_variance_by_hand() -> None:
    target = np.array([0.0, 2.0], np.float32)
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.array([0.0, 1.0], np.float32), target) == pytest.approx(0.75)
    assert explained_variance(target, np.zeros(2, np.float32)) == 0.0
    assert explained_variance(target[:0], target[:0]) == 0.0


def test_explained_variance_of_targets_that_diverge_is_zero_without_a_warning() -> None:
    target = np.array([np.inf, 1e38, -3e38], np.float32)
    assert explained_variance(np.zeros(3, np.float32), target) == 0.0
