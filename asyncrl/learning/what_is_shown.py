"""Numbers that the learner measures only to show them: actions taken now, realised returns, times of updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import (
    FROZEN,
    RESET,
    TERMINATED,
    TRUNCATED,
    Bins,
    BoxAction,
    DiscreteAction,
    Metrics,
    MultiDiscreteAction,
)
from asyncrl.shm.ring import RingReader

MOST_ROWS = 256
"""Newest rows of a ring that are counted."""
MOST_VALUES = 8_192
"""Most actions that are counted, over all rings."""
MOST_COMPONENTS = 8
"""Components of an action that get a histogram, the first ones."""
BOX_BINS = 20
MOST_STEPS = 2_000
"""Most rows of a realised return."""
NEGLIGIBLE = 0.05
"""Weight below which a later reward is left out of a realised return."""


def action_bins(rings: Sequence[RingReader]) -> dict[str, Bins]:
    """Histograms by public name, `rollout/action`, or `rollout/action/0`, `/1`, ... of an action with components.

    They count the newest rows of the rings. Read on the learner's thread, which alone retires rows, between two ticks.
    Empty if the rings hold no step.
    """
    spec = rings[0].layout.spec.action
    taken = [_newest(ring, len(rings)) for ring in rings if not ring.fault]
    actions = np.concatenate(taken) if taken else np.zeros(0)
    if not len(actions):
        return {}
    if isinstance(spec, DiscreteAction):
        return {"rollout/action": _choices(actions, spec.n, spec.start)}
    columns = actions.reshape(len(actions), -1).T[:MOST_COMPONENTS]
    if isinstance(spec, MultiDiscreteAction):
        starts = spec.start or (0,) * len(spec.nvec)
        found = [_choices(column, n, s) for column, n, s in zip(columns, spec.nvec, starts, strict=False)]
    else:
        found = [_spread(column, spec, index) for index, column in enumerate(columns)]
    return {f"rollout/action/{index}": bins for index, bins in enumerate(found)}


def _newest(ring: RingReader, rings: int) -> NDArray[np.generic]:
    """Actions of the newest rows, without those not taken or of past versions, `[steps, *shape]`; a copy."""
    try:
        published = ring.published()
    except RingCorrupt:  # a new fault
        published = ring.retired
    rows = min(MOST_ROWS, max(1, MOST_VALUES // (rings * ring.num_envs)))
    slots = np.arange(max(ring.retired, published - rows), published) & (ring.num_slots - 1)
    flags = ring.flags[:, slots]
    chosen: NDArray[np.generic] = ring.action[:, slots][flags & (RESET | FROZEN) == 0]
    return chosen


def _choices(column: NDArray[np.generic], count: int, start: int) -> Bins:
    counts = np.bincount(column.astype(np.int64), minlength=count)
    edges = np.arange(len(counts) + 1) + start - 0.5
    return Bins(tuple(edges.tolist()), tuple(counts.tolist()))


def _spread(column: NDArray[np.generic], spec: BoxAction, index: int) -> Bins:
    """Bins over the range of the space, or of the values where it has no bound; values beyond are in the outer bins."""
    values = column.astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return Bins((), ())
    low, high = spec.low[index], spec.high[index]
    low = low if np.isfinite(low) else float(values.min())
    high = high if np.isfinite(high) else float(values.max())
    if high <= low:
        low, high = low - 0.5, low + 0.5
    counts, edges = np.histogram(np.clip(values, low, high), bins=BOX_BINS, range=(low, high))
    return Bins(tuple(edges.tolist()), tuple(counts.tolist()))


def realised_return(ring: RingReader, position: int, stream: int, gamma: float) -> float | None:
    """Discounted sum of the rewards from a row of a stream on, as they were played; learner thread only.

    Returns None unless the rest of the trajectory is in the ring: up to its termination, or until a reward counts less
    than `NEGLIGIBLE`.

    Args:
        ring: the ring, whose rows from `position` on are read.
        position: the row.
        stream: the stream.
        gamma: discount factor.
    """
    if ring.fault or position < ring.retired:
        return None
    try:
        published = ring.published()
    except RingCorrupt:  # a new fault, which the next tick handles
        return None
    slots = np.arange(position, min(published, position + MOST_STEPS)) & (ring.num_slots - 1)
    ends = np.flatnonzero(ring.flags[stream, slots] & (TERMINATED | TRUNCATED | RESET))
    steps = int(ends[0]) + 1 if ends.size else len(slots)
    terminated = bool(ends.size) and bool(ring.flags[stream, slots[ends[0]]] & TERMINATED)
    if not terminated and gamma**steps > NEGLIGIBLE:
        return None
    return float(ring.reward[stream, slots[:steps]].astype(np.float64) @ gamma ** np.arange(steps))


class UpdateTimes:
    """Mean times of the parts of an update; learner thread only."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._updates = 0
        self._means: Metrics = {}

    def add(self, updates: int = 1, **seconds: float) -> None:
        """Add the times of the parts of `updates` updates: sample (gather and prepare), learn, priorities."""
        self._updates += updates
        for name, value in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value

    def statistics(self) -> Metrics:
        """Means by public name of the parts that there are, over the time in which each was measured again.

        An iteration on segments is prepared once for many updates, which may take several reports.
        """
        if self._updates and all(value > 0.0 for value in self._seconds.values()):
            self._means = {
                f"time/update_{name}_seconds": value / self._updates for name, value in self._seconds.items()
            }
            self._seconds, self._updates = dict.fromkeys(self._seconds, 0.0), 0
        return self._means
