"""Histogram of non-negative integers with mean, 95th percentile and maximum, for staleness and policy lag."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Distribution, Metrics
from asyncrl.shm.kernel import kernel

_EXACT = 16
"""The histogram is exact up to 15, then has four buckets per doubling (error of a percentile under 20 %)."""
_OPEN = _EXACT + 4 * 32


def _edges() -> NDArray[np.int64]:
    """Lower bucket edges: 0..15, then 16, 20, 24, 28, 32, 40, ... four to an octave."""
    tail = [(4 + k % 4) << (k // 4 + 2) for k in range(_OPEN - _EXACT)]
    return np.array([*range(_EXACT), *tail], np.int64)


EDGES: NDArray[np.int64] = _edges()
"""Lower edges of the buckets; the last bucket is open."""


class Histogram:
    """Histogram of non-negative integers; used from one thread.

    Args:
        name: public name of the values, the first part of those of their statistics: `async/policy_lag`.
    """

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_reported", "_sums", "_total")

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts = np.zeros(_OPEN, np.int64)
        self._reported = np.zeros(_OPEN, np.int64)
        self._sums = np.zeros(3, np.int64)  # samples, sum, max; since the last report
        self._total = np.zeros(3, np.int64)  # the same, since the start
        self._last = 0.0, 0.0, 0  # mean, p95 and maximum of the last interval with samples

    def add(self, now: int, then: NDArray[np.int64], each: int = 1) -> int:
        """Count `now - then[i]` (0 if negative) for every i; return the largest.

        Args:
            now: minuend.
            then: int64 `[n]`, contiguous.
            each: multiplicity of every value.
        """
        return int(_add(now, then, each, self._counts, self._sums))

    def statistics(self, reset: bool = False) -> Metrics:
        """Mean, 95th percentile and maximum since the last report, by public name; `reset` begins a new interval.

        An interval without values repeats the numbers of the last one that had any.
        """
        samples, total, most = (int(x) for x in self._sums)
        if samples:
            self._last = total / samples, _percentile(self._counts - self._reported, 0.95), most
        if reset:
            self._total += (samples, total, 0)
            self._total[2] = max(int(self._total[2]), most)
            self._reported[:] = self._counts
            self._sums[:] = 0
        mean, p95, highest = self._last
        return {f"{self.name}_mean": mean, f"{self.name}_p95": p95, f"{self.name}_max": highest}

    def overall(self) -> Distribution:
        """Distribution over the whole run."""
        samples, total, _ = (int(x) for x in self._total + self._sums)
        used = int(np.flatnonzero(self._counts)[-1]) + 1 if samples else 0
        return Distribution(
            mean=total / samples if samples else 0.0,
            p95=_percentile(self._counts, 0.95),
            max=int(max(self._total[2], self._sums[2])),
            samples=samples,
            sum=total,
            edges=tuple(EDGES[:used].tolist()),
            counts=tuple(self._counts[:used].tolist()),
        )


def _percentile(counts: NDArray[np.int64], share: float) -> float:
    """Lower edge of the bucket at which the cumulated counts reach `share` of the total; 0 without counts."""
    cumulated = np.cumsum(counts)
    if cumulated[-1] == 0:
        return 0.0
    return float(EDGES[int(np.searchsorted(cumulated, share * cumulated[-1]))])


@kernel("int64(int64, int64[::1], int64, int64[::1], int64[::1])")
def _add(
    now: int, then: NDArray[np.int64], each: int, counts: NDArray[np.int64], sums: NDArray[np.int64]
) -> int:
    """Add the differences to `counts` and `sums`; return the largest difference."""
    most = np.int64(0)
    for i in range(then.shape[0]):
        value = max(np.int64(0), now - then[i])  # a row overwritten by an environment may contain anything
        most = max(most, value)
        sums[1] += value * each
        bucket = value
        if value >= _EXACT:
            octave = 4
            while value >> (octave + 1) > 0:
                octave += 1
            bucket = _EXACT + 4 * (octave - 4) + ((value >> (octave - 2)) & 3)
        counts[min(bucket, counts.shape[0] - 1)] += each
    sums[0] += then.shape[0] * each
    sums[2] = max(sums[2], most)
    return most  # type: ignore[return-value]
