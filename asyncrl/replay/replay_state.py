"""Restoration of a replay and of a segment queue from a checkpoint: positions, counters and priorities.

The rows are in the rings; before a replay with rows is restored they must be put back (see `shm/ring_rows.py`). The
tree's sums and the stored returns are not saved, but recomputed from priorities and rows, to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Segment
from asyncrl.replay.policy_replays import PolicyReplays
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.tables import ENV_BITS, SAMPLEABLE
from asyncrl.saved_state import restore, saved


def priorities_of(replay: RingReplay[Any] | PolicyReplays) -> NDArray[np.float32]:
    """Priorities `[rings, slots, leaves of a row]`, a view; of several policies a copy, one policy after the other."""
    if isinstance(replay, PolicyReplays):
        each = [_of_views(priorities_of(own), len(replay.rings)) for own in replay.replays]
        return np.concatenate(each, axis=2)
    slots = replay.rings[0].num_slots
    width = 1 << int(replay._state[ENV_BITS])
    leaves = replay.tree.leaves[: len(replay.rings) * slots * width]
    return leaves.reshape(len(replay.rings), slots, width)


def _of_views(priorities: NDArray[np.float32], rings: int) -> NDArray[np.float32]:
    """Priorities of views `[rings V, slots, leaves]` as `[rings, slots, V leaves]`."""
    slots, width = priorities.shape[1:]
    return priorities.reshape(rings, -1, slots, width).swapaxes(1, 2).reshape(rings, slots, -1)


def _restore_replays(
    replay: PolicyReplays, state: Mapping[str, Any], priorities: Sequence[tuple[int, NDArray[np.float32]]]
) -> None:
    """`restore_replay` for several policies."""
    replay.look()
    start = 0
    for policy, own in enumerate(replay.replays):
        views, width = len(replay.views_of_ring(policy, 0)), priorities_of(own).shape[2]
        columns = [slice(start + view * width, start + (view + 1) * width) for view in range(views)]
        start += views * width
        parts = [(first, values[:, column]) for first, values in priorities for column in columns]
        restore_replay(own, state["replays"][policy], parts)
    replay.cursors[...] = _like(replay.cursors, state["cursors"], "cursors")
    _restore_counters(replay, state)


def _restore_counters(replay: PolicyReplays, state: Mapping[str, Any]) -> None:
    for name in ("behind", "discarded"):
        now = getattr(replay, name)
        now[:] = _like(now, state[name], name)


def restore_replay(
    replay: RingReplay[Any] | PolicyReplays,
    state: Mapping[str, Any],
    priorities: Sequence[tuple[int, NDArray[np.float32]]],
) -> None:
    """Restore a replay with the rows in its rings.

    After a change of options, a row keeps its priority if a sample may still begin there, else it is never sampled.
    If sampling is uniform now, all rows have the priority of new ones.

    Args:
        replay: new replay, over rings that hold the saved rows at the saved positions.
        state: result of `saved(replay)`.
        priorities: of each ring, the position of its first saved row, and the priorities `[rows, leaves]`.

    Raises:
        ValueError: the state does not fit the rings.
    """
    if isinstance(replay, PolicyReplays):
        return _restore_replays(replay, state, priorities)
    slots, every = replay.rings[0].num_slots, priorities_of(replay)
    for ring, (first, _) in enumerate(priorities):
        replay.cursors[ring] = first  # as if the rows from `first` on were new
    replay.ingest()
    allowed = every > 0.0  # fewer than before if a sample takes more rows now
    every[...] = 0.0
    for ring, (first, values) in enumerate(priorities):
        rows = np.arange(first, first + len(values)) & (slots - 1)
        every[ring, rows] = np.where(allowed[ring, rows], _like(every[ring, rows], values, "priorities"), 0.0)
    if replay._uniform:
        every[every > 0.0] = 1.0
        state = {**state, "numbers": replay.numbers.copy()}
    replay.tree.sum_range(0, replay.tree.capacity)
    restore(replay, state)
    replay._state[SAMPLEABLE] = np.count_nonzero(every)


def restore_empty_replay(replay: RingReplay[Any] | PolicyReplays, state: Mapping[str, Any]) -> None:
    """Restore a replay without rows, at the rings' positions, with counters and recent largest priorities."""
    positions = [ring.published() for ring in replay.rings]
    if isinstance(replay, PolicyReplays):
        replay.look()
        for own, of_own in zip(replay.replays, state["replays"], strict=True):
            restore_empty_replay(own, of_own)
        _restore_counters(replay, state)
        return
    cursors = np.repeat(np.array(positions, np.int64)[:, None], replay.cursors.shape[1], axis=1)
    restore(replay, {**state, "cursors": cursors})
    replay._state[SAMPLEABLE] = 0


def restore_queue(queue: SegmentQueue, state: Mapping[str, Any], *, rows: bool) -> list[Segment]:
    """Restore a segment queue with the segments in the rings, or, without rows, without segments.

    `state` is a result of `saved(queue)`.

    With rows, the segments that were counted as complete are ready again, the first of every ring before the second of
    any. Later segments are found by the next `poll`.

    Returns:
        The segments that were taken and not released. They may only be released: their frame stacks are cut without the
        observations before them, and the learner's own state holds what is left to train on.
    """
    held: list[Segment] = []
    if rows:
        released = _like(queue._released, state["released"], "released")
        for cursor in (queue._complete, queue._taken, queue._released):
            cursor[:] = released
        queue._seen[:] = _like(queue._seen, state["complete"], "complete")
        while (queue._complete < queue._seen).any():
            for index in np.flatnonzero(queue._complete < queue._seen).tolist():
                queue._complete_one(index)
                queue._arrivals.append(index)
        if (state["taken"] > released).all():
            held = queue.take_one_of_each()
    else:
        for index, ring in enumerate(queue.rings):
            for cursor in (queue._seen, queue._complete, queue._taken, queue._released):
                cursor[index] = ring.published()
    now = saved(queue)
    kept = {name: now[name] for name in ("complete", "taken", "released", *(() if rows else ("stacks",)))}
    restore(queue, {**state, **kept})
    return held


def _like(now: NDArray[Any], saved: Any, name: str) -> NDArray[Any]:
    if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (now.shape, now.dtype):
        got = f"{saved.dtype} {list(saved.shape)}" if isinstance(saved, np.ndarray) else type(saved).__name__
        raise ValueError(f"{name} must be {now.dtype} {list(now.shape)}, got {got}")
    return saved
