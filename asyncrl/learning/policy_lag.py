"""Policy lag: number of updates between the publication of the acting weights and the receipt of a step.

    lag of a step = u - u_i      u: updates made when the step is received,
                                 u_i: updates when the weights that acted were published

It is measured once per environment step, when the step is received. So policy lag is the age of the acting policy,
whereas staleness is the age of the samples trained on, which is large in a replay by design.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.learning.histogram import Histogram
from asyncrl.shm.ring import RingReader


class PolicyLagMeter(Histogram):
    """Distribution of the policy lag over environment steps; learner thread only.

    Args:
        rings: rings whose rows are received.
    """

    STATE = (*Histogram.STATE, "_seen")

    def __init__(self, rings: Sequence[RingReader]) -> None:
        super().__init__("async/policy_lag")
        self._rings = tuple(rings)
        self._seen = np.zeros(len(self._rings), np.int64)

    def receive(self, published: NDArray[np.int64], updates: int) -> None:
        """Count the rows published since the last call, each for its E steps.

        Args:
            published: int64 `[N]`, number of rows of each ring received so far.
            updates: u.
        """
        if not np.count_nonzero(published != self._seen):
            return
        for ring, start, stop in zip(self._rings, self._seen.tolist(), published.tolist(), strict=True):
            slots = ring.num_slots
            first, end = start & (slots - 1), stop - start + (start & (slots - 1))
            for rows in (slice(first, min(end, slots)), slice(0, max(0, end - slots))):
                if rows.stop > rows.start:
                    self.add(updates, ring.policy_updates[rows], ring.num_envs)
        self._seen[:] = published
