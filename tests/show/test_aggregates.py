"""Statistics over runs and environments against slow twins and rliable's formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from asyncrl.show.aggregates import (
    PERCENTILES,
    REFERENCE_SCORES,
    RESAMPLES,
    STATISTICS,
    estimate,
    iqm,
    mean,
    over_runs,
    performance_profile,
)

RANDOM = np.random.default_rng(11)


def trim_mean(scores: list[float], share: float = 0.25) -> float:
    """`scipy.stats.trim_mean`, which rliable's `aggregate_iqm` calls with a quarter over the flat matrix."""
    cut = int(share * len(scores))
    kept = sorted(scores)[cut : len(scores) - cut]
    return sum(kept) / len(kept)


def rliable(matrix: np.ndarray) -> dict[str, float]:
    """Aggregates of rliable 1.2.0's `metrics.py` for [runs, tasks], written slowly."""
    runs, tasks = matrix.shape
    means = [sum(matrix[:, task]) / runs for task in range(tasks)]
    ordered, middle = sorted(means), tasks // 2
    median = ordered[middle] if tasks % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    flat = [float(score) for row in matrix for score in row]
    return {
        "IQM": trim_mean(flat),
        "mean": sum(means) / tasks,
        "median": median,
        "optimality gap": 1.0 - sum(min(score, 1.0) for score in flat) / len(flat),
    }


@pytest.mark.parametrize("runs", range(1, 13))
def test_the_interquartile_mean_is_a_trimmed_mean(runs: int) -> None:
    scores = RANDOM.normal(size=runs)
    assert iqm([scores]) == pytest.approx(trim_mean(scores.tolist()), rel=1e-12)


def test_an_outlier_moves_the_mean_and_not_the_interquartile_mean() -> None:
    assert iqm([np.array([1.0, 2.0, 3.0, 1000.0])]) == 2.5


@pytest.mark.parametrize(("runs", "tasks"), [(1, 1), (3, 4), (5, 7), (10, 2)])
def test_statistics_over_environments_are_those_of_rliable(runs: int, tasks: int) -> None:
    matrix = RANDOM.normal(0.6, 0.5, size=(runs, tasks))
    wanted = rliable(matrix)
    assert wanted.keys() == STATISTICS.keys()
    for name, statistic in STATISTICS.items():
        assert statistic(list(matrix.T)) == pytest.approx(wanted[name], rel=1e-12), name


def test_intervals_are_a_stratified_percentile_bootstrap() -> None:
    """As rliable's `StratifiedBootstrap`: every task draws its own runs; another generator agrees to its noise."""
    matrix = RANDOM.normal(0.6, 0.3, size=(8, 3)) + np.arange(3.0)
    generator = np.random.default_rng(5)
    for name, statistic in STATISTICS.items():
        drawn = []
        for _ in range(4 * RESAMPLES):
            rows = generator.choice(8, size=(8, 3))
            drawn.append(rliable(matrix[rows, np.arange(3)])[name])
        found = estimate(list(matrix.T), statistic)
        low, high = np.percentile(drawn, PERCENTILES)
        noise = 0.2 * (high - low) + 1e-9
        assert found.low == pytest.approx(low, abs=noise), name
        assert found.high == pytest.approx(high, abs=noise), name
        assert found.low <= found.value <= found.high, name


def test_environments_may_have_different_numbers_of_runs() -> None:
    """Six runs: one of the weight of six is cut at each end; the weights are 1.5, 1.5 and four times 0.75."""
    strata = [np.array([0.0, 1.0]), np.array([2.0, 2.0, 2.0, 2.0])]
    assert mean(strata) == 1.25
    assert iqm(strata) == pytest.approx((0.5 * 0.0 + 1.5 * 1.0 + 2.0 * 2.0) / 4, rel=1e-12)
    assert STATISTICS["optimality gap"](strata) == 0.25
    profile, _, _ = performance_profile(strata, np.array([0.5, 1.5]))
    assert profile.tolist() == [0.75, 0.5]
    found = estimate([np.array([3.0])], iqm)
    assert (found.value, found.low, found.high) == (3.0, None, None)
    assert estimate([np.array([3.0]), np.array([1.0, 3.0])], mean).low == 2.0  # one environment has two runs


@pytest.mark.parametrize("statistic", STATISTICS)
def test_more_runs_of_an_environment_do_not_make_it_heavier(statistic: str) -> None:
    """Runs that are there three times are the same sample of their environment."""
    strata = [RANDOM.normal(size=4), RANDOM.normal(size=8) + 1]
    once = STATISTICS[statistic](strata)
    assert STATISTICS[statistic]([np.tile(strata[0], 3), strata[1]]) == pytest.approx(float(once), rel=1e-9)


def test_a_performance_profile_is_rliables_score_distribution() -> None:
    matrix = RANDOM.normal(0.5, 0.4, size=(6, 4))
    thresholds = np.array([-1.0, 0.0, float(matrix[2, 1]), 0.5, 1.0, 3.0])
    profile, low, high = performance_profile(list(matrix.T), thresholds)
    wanted = [np.mean([score > tau for row in matrix for score in row]) for tau in thresholds]
    np.testing.assert_allclose(profile, wanted, rtol=1e-12)
    assert (low <= profile).all() and (profile <= high).all()
    assert all(a >= b for a, b in pairwise(profile[np.argsort(thresholds)]))


@pytest.mark.parametrize("statistic", [mean, iqm])
def test_nothing_over_runs_lies_outside_of_what_was_seen(statistic: object) -> None:
    for runs in range(1, 9):
        values = RANDOM.normal(size=(runs, 30)) * 10.0 ** RANDOM.integers(-3, 4, size=30)
        values[:, :3] = 0.1  # the sum of equal numbers rounds
        for part in over_runs(values, statistic):  # type: ignore[arg-type]
            assert (part >= values.min(axis=0)).all() and (part <= values.max(axis=0)).all()


def test_reference_scores_differ_and_are_finite() -> None:
    for env, (low, high) in REFERENCE_SCORES.items():
        assert math.isfinite(low) and math.isfinite(high) and low < high, env
