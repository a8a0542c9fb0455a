"""Staleness of samples: age of the acting weights of a sample when it is trained on.

    in updates     u - u_i        u: updates made so far, u_i: updates when the weights that acted were published
    in versions    v - v_i        v: publications so far, v_i: version of the weights that acted

Both are measured at each use of a sample, for every algorithm. The bound `max_staleness` and the correction are in
updates for replay algorithms, and in versions for segment algorithms, which publish once per iteration. (Policy lag is
another quantity: the age of the acting weights when a step is *received*; see `replay_loop.PolicyLagMeter`.)

The correction is a factor on the item's loss, in addition to the importance weight of prioritized replay, with
staleness s and rate a:

    none           1
    power          (1 + s)^-a
    exponential    exp(-a * s)

TianJi (arXiv 2502.20190) motivates a correction of samples within the bound; the two forms are used in asynchronous SGD
for stale gradients (power: FedAsync, arXiv 1903.03934; exponential: an alternative in the same paper). For replay
algorithms the default is `none`: the rows of a replay are old by design, and the Bellman target does not depend on the
behaviour policy. On CartPole-v1 (`benchmarks/learning/staleness.py`, 5 seeds, p95 of 160 to 192 versions) no correction
reached a greedy 475 in a median of 1.4 s, power and exponential ones in 1.6 to 1.8 s.

On-policy algorithms store the behaviour policy's log-probabilities, so they can also use truncated importance ratios:
V-trace in IMPALA, the decoupled loss in PPO (`importance`). PPO on CartPole-v1 with an artificially slow learner and
actors 16 batches ahead (`benchmarks/learning/staleness_segments.py`, 5 seeds, staleness p95 of 16, seconds to a
training mean of 300, reached by all 5 seeds unless stated otherwise):

    correction     no bound            max_staleness 4 (60 % discarded)
    none           3.4                 1.35
    power          3.4                 1.30
    exponential    4.9                 1.35
    importance     6.0 (2 of 5)        1.13

So the bound helps, even though it discards many (cheap) steps, and no factor on the loss replaces it. The decoupled
loss is the best of the four with the bound and the worst without: it clips relative to the newest policy, so that every
batch can move the policy further, whereas the plain ratio stops at one clip range from the behaviour policy. Hence
PPO's defaults, `importance` and a bound of 4, which its default credits rarely reach. V-trace compared with none on
CartPole-v1 with acting weights two segments old: 8 of 8 seeds against 6 of 8 reached 300. With weights four segments
old neither is reliable (`benchmarks/presets.md`), hence IMPALA's preset with two batches of credit.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch, Metrics, Segment, SequenceBatch
from asyncrl.learning.histogram import Histogram
from asyncrl.shm.kernel import kernel

Correction = Literal["none", "power", "exponential"]
CORRECTIONS: tuple[Correction, ...] = ("none", "power", "exponential")
Unit = Literal["updates", "versions"]


class StalenessMeter:
    """Meter of the staleness of batches, which also corrects their weights; learner thread only.

    Args:
        correction: one of `none`, `power`, `exponential`.
        rate: a of the formulas, at least 0.
        max_staleness: maximum staleness of a row of a batch, or None.
        unit: unit of bound, correction and `staleness`.

    Attributes:
        in_updates, in_versions: distribution over all samples used.

    Raises:
        ValueError: the correction is unknown, or the rate or bound is negative.
    """

    STATE = ("in_updates", "in_versions")

    def __init__(
        self,
        correction: Correction = "none",
        rate: float = 0.0,
        max_staleness: int | None = None,
        unit: Unit = "updates",
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
        self._by_updates = unit == "updates"
        self.in_updates = Histogram("async/staleness")
        self.in_versions = Histogram("async/staleness_versions")

    def measure(
        self, updates: int, version: int, batch: Batch | SequenceBatch | Segment, each: int = 1
    ) -> None:
        """Fill `batch.staleness` and multiply `batch.weight` by the correction, both in place.

        Args:
            updates: u.
            version: v.
            batch: samples with the policy version and updates of their acting weights.
            each: samples per entry: 1 for the items of a batch, E for the rows of a segment, which has N streams for an
                environment of N agents.

        A row over the bound is a bug of this package (such rows are retired or dropped before), hence an assertion.
        """
        most_updates = self.in_updates.add(updates, batch.policy_updates, each)
        most_versions = self.in_versions.add(version, batch.version, each)
        if self._by_updates:
            most, now, then = most_updates, updates, batch.policy_updates
        else:
            most, now, then = most_versions, version, batch.version
        _correct(now, then, batch.staleness, batch.weight, self._kind, self._rate)
        assert self._bound is None or most <= self._bound, (
            f"a row with staleness {most} reached an update, max_staleness is {self._bound}"
        )

    def statistics(self) -> Metrics:
        """Staleness since the last call, in updates and in versions, by public name."""
        return {**self.in_updates.statistics(reset=True), **self.in_versions.statistics(reset=True)}


@kernel("void(int64, int64[::1], int64[::1], float32[::1], int64, float64)")
def _correct(
    now: int,
    then: NDArray[np.int64],
    staleness: NDArray[np.int64],
    weight: NDArray[np.float32],
    kind: int,
    rate: float,
) -> None:
    """Fill `staleness` with `now - then` and multiply `weight` by its correction."""
    for i in range(then.shape[0]):
        s = now - then[i]
        staleness[i] = s
        if kind == 1:
            weight[i] *= (1.0 + s) ** -rate
        elif kind == 2:
            weight[i] *= np.exp(-rate * s)
