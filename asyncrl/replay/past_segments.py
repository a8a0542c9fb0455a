"""Store of copies of recent segments, for algorithms with off-policy correction.

IMPALA's experiments with replay (Espeholt et al. 2018, arXiv 1802.01561, section 5.2.2) mix segments drawn uniformly
from the recent past into each batch. The actors need the rings, so the segments are copied.

They may also be drawn by recency and return, as TBA (arXiv 2503.18929) draws trajectories. IMPALA in lockstep, four
actors of one environment, 64 segments kept, 4 in a batch of 8, median steps to a greedy 0.95 on FrozenLake8x8-v1, whose
only reward is at the end (12 seeds, `benchmarks/learning/past_draws.py`):

    no past segments    33,794
    all alike           25,030
    `newest` 0.5        13,786, fewer than all alike on ten seeds

On Catch and Recall there was no difference beyond the spread of ten seeds, hence the default None. Draws by the mean of
min(1, rho) over a segment, by 1 / (1 + age) or by both (DistRL, arXiv 2410.14803) had no effect on FrozenLake: 28,800,
30,008 and 25,040.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.interfaces import Segment


class PastSegments:
    """The newest `capacity` segments that were trained on, as copies; learner thread only.

    Args:
        capacity: maximum number of segments, at least 1.
        per_batch: maximum number of segments that `draw` returns, at least 1.
        max_staleness: maximum staleness of a drawn segment, in publications, or None.
        rng: generator of the draws, without replacement within a batch.
        newest: probability with which a drawn segment is the newest of those left; else the softmax of the sums of
            rewards, in their standard deviations, draws it. None draws all alike.

    Raises:
        ValueError: `capacity` is below `per_batch`, or one of them below 1.
    """

    STATE = ("segments", "_rng")

    def __init__(
        self,
        capacity: int,
        per_batch: int,
        max_staleness: int | None,
        rng: np.random.Generator,
        newest: float | None = None,
    ) -> None:
        if per_batch < 1:
            raise ValueError(f"past_per_batch must be at least 1, got {per_batch}")
        if capacity < per_batch:
            raise ValueError(f"past_segments must be at least past_per_batch ({per_batch}), got {capacity}")
        self._kept: deque[Segment] = deque(maxlen=capacity)
        self._per_batch = per_batch
        self._bound = max_staleness
        self._rng = rng
        self._newest = newest

    @property
    def segments(self) -> list[dict[str, Any]]:
        """The segments as dicts of their fields, not copies."""
        return [dict(vars(segment)) for segment in self._kept]

    @segments.setter
    def segments(self, segments: Sequence[dict[str, Any]]) -> None:
        self._kept.clear()
        self._kept.extend(Segment(**fields) for fields in segments)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, segments: Sequence[Segment]) -> None:
        """Add copies of segments, in place of the oldest. The originals may be released afterwards."""
        self._kept.extend(_copy(segment) for segment in segments)

    def draw(self, version: int) -> list[Segment]:
        """Draw up to `per_batch` segments that are within the staleness bound at `version`.

        Their rows are shared with the store and must not be written; `weight` (ones) and `staleness` are new arrays.
        """
        bound = math.inf if self._bound is None else self._bound
        usable = [segment for segment in self._kept if version - segment.version.min() <= bound]
        count = min(self._per_batch, len(usable))
        if self._newest is not None:
            return [_for_use(segment) for segment in self._by_return(usable, count, self._newest)]
        chosen = self._rng.choice(len(usable), size=count, replace=False) if count else ()
        return [_for_use(usable[i]) for i in chosen]

    def _by_return(self, usable: list[Segment], count: int, newest: float) -> list[Segment]:
        """Draw `count` of the `usable`, which are in order of age, by recency and sum of rewards."""
        sums = np.array([segment.reward.sum() for segment in usable], np.float64)
        scores = np.exp((sums - sums.max(initial=-np.inf)) / (sums.std() or 1.0)) if count else sums
        left, chosen = list(range(len(usable))), []
        for _ in range(count):
            if self._rng.random() < newest:
                chosen.append(left.pop())
            else:
                share = scores[left] / scores[left].sum()
                chosen.append(left.pop(int(self._rng.choice(len(left), p=share))))
        return [usable[i] for i in chosen]


def _copy(segment: Segment) -> Segment:
    arrays: dict[str, Any] = {
        name: value.copy() for name, value in vars(segment).items() if isinstance(value, np.ndarray)
    }
    extras = {name: values.copy() for name, values in segment.extras.items()}
    return replace(segment, **arrays, extras=extras, fresh=False)


def _for_use(kept: Segment) -> Segment:
    return replace(
        kept,
        weight=np.ones_like(kept.weight),
        staleness=np.zeros_like(kept.staleness),
        extras=dict(kept.extras),
    )
