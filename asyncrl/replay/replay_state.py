"""State of a replay and of a segment queue in a checkpoint: positions, counters and priorities.

The rows are in the rings; before a replay with rows is restored they must be put back (see `shm/ring_rows.py`). The
tree's sums and the stored returns are not saved, but recomputed from priorities and rows, to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Segment
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.tables import CALLS, CLOSED, ENV_BITS, FIRST, MIN_UPDATES, SAMPLEABLE, SEEN

_CURSORS = slice(SEEN, CLOSED + 1)
_COUNTERS = slice(MIN_UPDATES, CALLS + 1)
_NUMBERS = slice(FIRST, None)
_QUEUE_COUNTERS = ("_taken_segments", "_taken_steps", "_inserted_steps", "_copied_segments")


def replay_state(replay: RingReplay[Any]) -> dict[str, Any]:
    """Cursors, counters and recent largest priorities, as copies. Learner thread."""
    return {
        "cursors": replay._table[:, _CURSORS].copy(),
        "counters": replay._state[_COUNTERS].copy(),
        "numbers": replay._numbers[_NUMBERS].copy(),
    }


def priorities_of(replay: RingReplay[Any]) -> NDArray[np.float32]:
    """Priorities `[rings, slots, leaves of a row]`, a view."""
    slots = replay.rings[0].num_slots
    width = 1 << int(replay._state[ENV_BITS])
    leaves = replay.tree.leaves[: len(replay.rings) * slots * width]
    return leaves.reshape(len(replay.rings), slots, width)


def restore_replay(
    replay: RingReplay[Any], state: Mapping[str, Any], priorities: Sequence[tuple[int, NDArray[np.float32]]]
) -> None:
    """Restore a replay with the rows in its rings.

    After a change of options, a row keeps its priority if a sample may still begin there, else it is never sampled.

    Args:
        replay: new replay, over rings that hold the saved rows at the saved positions.
        state: result of `replay_state`.
        priorities: of each ring, the position of its first saved row, and the priorities `[rows, leaves]`.

    Raises:
        ValueError: the state does not fit the rings.
    """
    cursors = _like(replay._table[:, _CURSORS], state["cursors"], "cursors")
    slots, every = replay.rings[0].num_slots, priorities_of(replay)
    for ring, (first, _) in enumerate(priorities):
        replay._table[ring, _CURSORS] = first  # as if the rows from `first` on were new
    replay.ingest()
    allowed = every > 0.0  # fewer than before if a sample takes more rows now
    every[...] = 0.0
    for ring, (first, values) in enumerate(priorities):
        rows = np.arange(first, first + len(values)) & (slots - 1)
        every[ring, rows] = np.where(allowed[ring, rows], _like(every[ring, rows], values, "priorities"), 0.0)
    replay.tree.sum_range(0, replay.tree.capacity)
    replay._table[:, _CURSORS] = cursors
    _restore_counters(replay, state)
    replay._state[SAMPLEABLE] = np.count_nonzero(every)


def restore_empty_replay(replay: RingReplay[Any], state: Mapping[str, Any]) -> None:
    """Restore a replay without rows, at the rings' positions, with counters and recent largest priorities."""
    for index, ring in enumerate(replay.rings):
        replay._table[index, _CURSORS] = ring.published()
    _restore_counters(replay, state)
    replay._state[SAMPLEABLE] = 0


def _restore_counters(replay: RingReplay[Any], state: Mapping[str, Any]) -> None:
    replay._state[_COUNTERS] = _like(replay._state[_COUNTERS], state["counters"], "counters")
    replay._numbers[_NUMBERS] = _like(replay._numbers[_NUMBERS], state["numbers"], "numbers")


def queue_state(queue: SegmentQueue) -> dict[str, Any]:
    """Positions, counters and frame stacks of a segment queue, as copies. Learner thread."""
    return {
        "complete": queue._complete.copy(),
        "taken": queue._taken.copy(),
        "released": queue._released.copy(),
        "counters": [int(getattr(queue, name)) for name in _QUEUE_COUNTERS],
        "stacks": [{"tail": stack._tail.copy(), "age": stack._age.copy()} for stack in queue._stacks],
    }


def restore_queue(queue: SegmentQueue, state: Mapping[str, Any], *, rows: bool) -> list[Segment]:
    """Restore a segment queue with the segments in the rings, or, without rows, without segments.

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
        for stacks, saved in zip(queue._stacks, state["stacks"], strict=True):
            stacks._tail, stacks._age = saved["tail"].copy(), saved["age"].copy()
    else:
        for index, ring in enumerate(queue.rings):
            for cursor in (queue._seen, queue._complete, queue._taken, queue._released):
                cursor[index] = ring.published()
    for name, value in zip(_QUEUE_COUNTERS, state["counters"], strict=True):
        setattr(queue, name, int(value))
    return held


def _like(now: NDArray[Any], saved: Any, name: str) -> NDArray[Any]:
    if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (now.shape, now.dtype):
        got = f"{saved.dtype} {list(saved.shape)}" if isinstance(saved, np.ndarray) else type(saved).__name__
        raise ValueError(f"{name} must be {now.dtype} {list(now.shape)}, got {got}")
    return saved
