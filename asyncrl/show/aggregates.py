"""Statistics over runs and environments: interquartile mean, bootstrap intervals, performance profiles.

Formulas of Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice" (rliable). Scores of several
environments come as strata, an array of runs for each environment, and every environment's runs are resampled by
themselves. Unlike rliable's matrix, environments may have different numbers of runs; all have the same weight. An
interval has the 2.5th and 97.5th percentile of `RESAMPLES` resamples; its bounds are values of resampled runs, so they
lie within what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Statistic = Callable[[Sequence[Array]], Array]
"""Maps strata of shape [..., runs] to values of shape [...]."""

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)

REFERENCE_SCORES: Mapping[str, tuple[float, float]] = {
    # Random policy: means of 30 to 100 episodes. Reference: the return from which gymnasium counts it as solved.
    "CartPole-v1": (22.7, 475.0),
    "Acrobot-v1": (-499.2, -100.0),
    "MountainCar-v0": (-200.0, -110.0),
    "MountainCarContinuous-v0": (-33.2, 90.0),
    "LunarLander-v3": (-182.8, 200.0),
    "BipedalWalker-v3": (-98.4, 300.0),
    # Random policy and expert of D4RL (Fu et al. 2020), which older versions of these environments share.
    "HalfCheetah-v5": (-280.2, 12135.0),
    "Hopper-v5": (-20.3, 3234.3),
    "Walker2d-v5": (1.6, 4592.3),
    "Ant-v5": (-325.6, 3879.7),
    # Random policy and human of Wang et al. 2016 (dueling networks), also in Badia et al. 2020 (Agent57).
    "ALE/BeamRider-v5": (363.9, 16926.5),
    "ALE/Boxing-v5": (0.1, 12.1),
    "ALE/Breakout-v5": (1.7, 30.5),
    "ALE/Enduro-v5": (0.0, 860.5),
    "ALE/Freeway-v5": (0.0, 29.6),
    "ALE/MsPacman-v5": (307.3, 6951.6),
    "ALE/Pong-v5": (-20.7, 14.6),
    "ALE/Qbert-v5": (163.9, 13455.0),
    "ALE/Seaquest-v5": (68.4, 42054.7),
    "ALE/SpaceInvaders-v5": (148.0, 1668.7),
}
"""Returns of a random and of a reference policy by environment, for scores that are 0 and 1 there."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and the bounds of its 95 % bootstrap interval, None where no environment has two runs."""

    value: float
    low: float | None
    high: float | None


def iqm(strata: Sequence[Array]) -> Array:
    """Interquartile mean over the runs of all environments, whose weights are equal.

    A quarter of the runs, rounded down to whole ones, is left out at each end. With different numbers of runs that
    quarter is one of the weights, and a run at its border counts by the rest of its own.
    """
    scores = np.concatenate(list(strata), axis=-1)
    runs = scores.shape[-1]
    weights = np.concatenate([np.full(own.shape[-1], runs / own.shape[-1] / len(strata)) for own in strata])
    order = np.argsort(scores, axis=-1)
    # Rounded, so that equal weights end at whole numbers.
    ends = np.cumsum(weights[order], axis=-1).round(9)
    kept = np.diff(ends.clip(runs // 4, runs - runs // 4), prepend=runs // 4, axis=-1)
    return np.asarray((np.take_along_axis(scores, order, axis=-1) * kept).sum(axis=-1) / kept.sum(axis=-1))


def mean(strata: Sequence[Array]) -> Array:
    """Mean over environments of each one's mean over runs."""
    return np.asarray(np.mean([scores.mean(axis=-1) for scores in strata], axis=0))


def median(strata: Sequence[Array]) -> Array:
    """Median over environments of each one's mean over runs."""
    return np.asarray(np.median([scores.mean(axis=-1) for scores in strata], axis=0))


def optimality_gap(strata: Sequence[Array]) -> Array:
    """Mean over environments of the mean amount by which their runs' scores fall short of 1."""
    return 1 - mean([np.minimum(scores, 1) for scores in strata])


STATISTICS: Mapping[str, Statistic] = {
    "IQM": iqm,
    "mean": mean,
    "median": median,
    "optimality gap": optimality_gap,
}


def estimate(strata: Sequence[Array], statistic: Statistic) -> Estimate:
    """Statistic of the strata [runs] with its interval; single runs say nothing about their spread and give none."""
    if all(scores.shape[-1] < 2 for scores in strata):
        return Estimate(float(statistic(strata)), None, None)
    low, high = np.percentile(statistic(_resampled(strata)), PERCENTILES)
    return Estimate(float(statistic(strata)), float(low), float(high))


def over_runs(values: Array, statistic: Statistic) -> tuple[Array, Array, Array]:
    """Statistic of [runs, moments] at each moment with its interval's bounds; none lies outside the moment's values."""
    columns = np.ascontiguousarray(values.T)
    if len(values) == 1:
        return columns[:, 0], columns[:, 0], columns[:, 0]
    found = statistic([columns])
    low, high = np.percentile(statistic(_resampled([columns])), PERCENTILES, axis=0)
    least, most = columns.min(axis=-1), columns.max(axis=-1)  # rounding may lead beyond them
    return np.clip(found, least, most), np.clip(low, least, most), np.clip(high, least, most)


def performance_profile(strata: Sequence[Array], thresholds: Array) -> tuple[Array, Array, Array]:
    """Share of runs with a score above each threshold, a mean over environments, with its interval's bounds."""

    def share(strata: Sequence[Array]) -> Array:
        return np.stack(
            [mean([scores > threshold for scores in strata]) for threshold in thresholds], axis=-1
        )

    low, high = np.percentile(share(_resampled(strata)), PERCENTILES, axis=0)
    return share(strata), low, high


def _resampled(strata: Sequence[Array]) -> list[Array]:
    """Strata [..., runs] drawn with replacement, as [RESAMPLES, ..., runs]; the same draws at every moment."""
    generator = np.random.default_rng(0)
    drawn = []
    for scores in strata:
        runs = scores.shape[-1]
        drawn.append(np.moveaxis(scores[..., generator.integers(runs, size=(RESAMPLES, runs))], -2, 0))
    return drawn
