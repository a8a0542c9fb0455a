"""Staleness: how many publications of weights lie between the policy that acted and the learner that learns from it.

    staleness_i = v - v_i        v: learner's policy version now, v_i: version stamped on the row

Its correction is a factor on the item's loss, beside the importance weight of prioritized replay (s: staleness,
a: rate):

    none           1
    power          (1 + s)^-a
    exponential    exp(-a * s)

TianJi (arXiv 2502.20190) motivates correcting what the bound lets through; the two forms are the ones asynchronous SGD
uses for stale gradients (power: FedAsync, arXiv 1903.03934; exponential: the same paper's alternatives). For replay
algorithms the default is `none`: the rows of a replay are old by design and the Bellman target does not depend on who
acted. On CartPole-v1 (`python benchmarks/staleness.py`, 5 seeds, p95 of 160 to 192 versions) no correction reached a
greedy 475 in a median of 1.4 s, power and exponential ones in 1.6 to 1.8 s.

On-policy algorithms know the behaviour policy's log-probabilities, so they have truncated importance ratios too:
V-trace in IMPALA, the decoupled loss in PPO (`importance`). PPO on CartPole-v1 with a learner made slow on purpose
and actors 16 batches ahead (`python benchmarks/staleness_segments.py`, 5 seeds, staleness p95 of 16, seconds to a
training mean of 300, all of 5 seeds but where said otherwise):

    correction     no bound            max_staleness 4 (60 % discarded)
    none           3.4                 1.35
    power          3.4                 1.30
    exponential    4.9                 1.35
    importance     6.0 (2 of 5)        1.13

So the bound is what helps, at any price in steps that are cheap; no factor on the loss makes up for its absence.
The decoupled loss is the best of four within the bound and the worst without: it clips against the newest policy,
so that every batch may move it on, where the plain ratio stops at what is a clip range away from the policy that
acted. Hence PPO's defaults, `importance` and a bound of 4, which its default credits hardly reach. V-trace against
none at CartPole-v1 with acting weights two segments old: 8 of 8 seeds against 6 of 8 reached 300; at four segments
old neither is reliable (`impala_presets.py`), hence IMPALA's preset with two batches of credit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

Correction = Literal["none", "power", "exponential"]
CORRECTIONS: tuple[Correction, ...] = ("none", "power", "exponential")

_EXACT = 16
"""The histogram is exact up to 15, then has four buckets per doubling (error of a percentile under 20 %)."""
_OPEN = _EXACT + 4 * 32


def _edges() -> NDArray[np.int64]:
    """Lower bucket edges: 0..15, then 16, 20, 24, 28, 32, 40, ... four to an octave."""
    tail = [(4 + k % 4) << (k // 4 + 2) for k in range(_OPEN - _EXACT)]
    return np.array([*range(_EXACT), *tail], np.int64)


EDGES: NDArray[np.int64] = _edges()
"""Lower edges of the histogram's buckets, in versions; the last bucket is open."""


@dataclass(frozen=True)
class StalenessStatistics:
    """Staleness of the samples used since the last report, and the histogram since the start.

    Attributes:
        mean, p95: in versions; p95 is the lower edge of the bucket that holds the 95th percentile.
        max: exact.
        samples: how many the three are taken over.
        edges, counts: `counts[i]` samples since the start with `edges[i] <= staleness < edges[i + 1]`, trailing empty
            buckets left out.
    """

    mean: float
    p95: float
    max: int
    samples: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


class StalenessMeter:
    """Measures every batch and corrects its weights in one pass; learner thread only.

    Args:
        correction: one of `none`, `power`, `exponential`.
        rate: a of the formulas, at least 0.
        max_staleness: the bound that no row of a batch may exceed, or None.

    Raises:
        ValueError: an unknown correction, a negative rate or bound.
    """

    def __init__(
        self, correction: Correction = "none", rate: float = 0.0, max_staleness: int | None = None
    ) -> None:
        if correction not in CORRECTIONS:
            raise ValueError(
                f"staleness_correction must be one of {', '.join(CORRECTIONS)}, got {correction!r}"
            )
        if not rate >= 0:
            raise ValueError(f"staleness_rate must be at least 0, got {rate}")
        if max_staleness is not None and max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0 or None, got {max_staleness}")
        self._kind = CORRECTIONS.index(correction)
        self._rate = float(rate)
        self._bound = max_staleness
        self._counts = np.zeros(_OPEN, np.int64)
        self._reported = np.zeros(_OPEN, np.int64)
        self._sums = np.zeros(3, np.int64)  # samples, sum, max; since the last report
        self._total = np.zeros(3, np.int64)  # the same, since the start

    def measure(
        self,
        learner_version: int,
        version: NDArray[np.int64],
        staleness: NDArray[np.int64],
        weight: NDArray[np.float32],
        each: int = 1,
    ) -> None:
        """Fill `staleness` `[B]` and multiply `weight` `[B]` by the correction, both in place.

        Args:
            learner_version: v.
            version: `[B]` int64, contiguous.
            staleness: `[B]` int64, written.
            weight: `[B]` float32, multiplied.
            each: samples that each entry stands for in the histogram and the mean: 1 for the items of a batch, E for
                the rows of a segment.

        A row over the bound is our own bug (the replay retires them before it samples), hence an assertion.
        """
        most = _measure(
            learner_version,
            version,
            staleness,
            weight,
            each,
            self._kind,
            self._rate,
            self._counts,
            self._sums,
        )
        assert self._bound is None or most <= self._bound, (
            f"a row with staleness {most} reached an update, max_staleness is {self._bound}"
        )

    def statistics(self, reset: bool = False) -> StalenessStatistics:
        """What was measured since the last report (with `reset`, a new interval begins)."""
        recent = self._counts - self._reported
        samples, total, most = (int(x) for x in self._sums)
        used = int(np.flatnonzero(self._counts)[-1]) + 1 if self._counts.any() else 0
        result = StalenessStatistics(
            mean=total / samples if samples else 0.0,
            p95=_percentile(recent, 0.95),
            max=most,
            samples=samples,
            edges=tuple(int(e) for e in EDGES[:used]),
            counts=tuple(int(c) for c in self._counts[:used]),
        )
        if reset:
            self._total[0] += samples
            self._total[1] += total
            self._total[2] = max(int(self._total[2]), most)
            self._reported[:] = self._counts
            self._sums[:] = 0
        return result

    def overall(self) -> StalenessStatistics:
        """The same over the whole run."""
        recent = self.statistics()
        samples = int(self._total[0]) + recent.samples
        total = int(self._total[1]) + int(self._sums[1])
        return StalenessStatistics(
            mean=total / samples if samples else 0.0,
            p95=_percentile(self._counts, 0.95),
            max=max(int(self._total[2]), recent.max),
            samples=samples,
            edges=recent.edges,
            counts=recent.counts,
        )


def _percentile(counts: NDArray[np.int64], share: float) -> float:
    """Lower edge of the bucket at which the cumulated counts reach `share` of the whole; 0 where there are none."""
    cumulated = np.cumsum(counts)
    if cumulated[-1] == 0:
        return 0.0
    return float(EDGES[int(np.searchsorted(cumulated, share * cumulated[-1]))])


@njit(
    "int64(int64, int64[::1], int64[::1], float32[::1], int64, int64, float64, int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def _measure(now, version, staleness, weight, each, kind, rate, counts, sums):  # type: ignore[no-untyped-def]
    """One pass over the batch: staleness, histogram, sums, weights. Returns the largest staleness of the batch."""
    most = np.int64(0)
    for i in range(version.shape[0]):
        s = now - version[i]
        staleness[i] = s
        most = max(most, s)
        bucket = s
        if s >= 16:
            octave = 4
            while s >> (octave + 1) > 0:
                octave += 1
            bucket = 16 + 4 * (octave - 4) + ((s >> (octave - 2)) & 3)
        counts[min(bucket, counts.shape[0] - 1)] += each
        sums[1] += s * each
        if kind == 1:
            weight[i] *= (1.0 + s) ** -rate
        elif kind == 2:
            weight[i] *= np.exp(-rate * s)
    sums[0] += version.shape[0] * each
    sums[2] = max(sums[2], most)
    return most
