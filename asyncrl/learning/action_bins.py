"""Histograms of the actions that actors take now, from the newest rows of their rings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import FROZEN, RESET, Bins, BoxAction, DiscreteAction, MultiDiscreteAction
from asyncrl.shm.ring import RingReader

MOST_ROWS = 256
"""Newest rows of a ring that are counted."""
MOST_VALUES = 8_192
"""Most actions that are counted, over all rings."""
MOST_COMPONENTS = 8
"""Components of an action that get a histogram, the first ones."""
BOX_BINS = 20


def action_bins(rings: Sequence[RingReader]) -> dict[str, Bins]:
    """Histograms by public name, `rollout/action`, or `rollout/action/0`, `/1`, ... of an action with components.

    Read on the learner's thread, which alone retires rows, between two ticks. Empty if the rings hold no step.
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
