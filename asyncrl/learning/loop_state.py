"""State of an update loop for checkpoints, and its restoration into a new loop.

    core, loop, pace, publisher       counters and positions (`STATE` of each)
    published                         version, updates and values of the acting weights
    staleness, policy_lag             histograms
    replay or queue, generator        positions in the rings, recent priorities; random generator of batches
    past                              past segments kept for reuse

There are three cases, depending on what the caller has restored before:

    rows and actors     exact: all later numbers equal those of an uninterrupted run (lockstep, synchronous)
    rows                the learner continues exactly; the actors begin new lives, which cut the trajectories
    neither             replay is filled again before the first update; segments in flight are lost

`STATE` of a class lists the attributes to save: numbers, flags and arrays. The constructor makes everything else. All
functions run on the learner's thread, between two ticks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Segment
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.lockstep_replay import LockstepReplayLoop
from asyncrl.learning.publication import Publisher
from asyncrl.learning.replay_loop import ReplayLoop
from asyncrl.learning.segment_loop import SegmentLoop
from asyncrl.learning.update_loop import UpdateLoop
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.replay_state import (
    priorities_of,
    queue_state,
    replay_state,
    restore_empty_replay,
    restore_queue,
    restore_replay,
)
from asyncrl.shm.weights import WeightMailbox

Priorities = Sequence[tuple[int, NDArray[np.float32]]]
"""Per ring, the index of the first kept row, and the priorities `[rows, leaves of a row]` of the kept rows."""


def loop_state(loop: UpdateLoop) -> dict[str, Any]:
    """State of a loop as copies."""
    if isinstance(loop, ReplayLoop):
        return _replay_loop_state(loop)
    assert isinstance(loop, SegmentLoop)
    return _segment_loop_state(loop)


def priorities_of_loop(loop: UpdateLoop) -> NDArray[np.float32] | None:
    """View of the priorities of a replay `[rings, slots, leaves of a row]`; None for segments."""
    return priorities_of(loop._replay) if isinstance(loop, ReplayLoop) else None


def restore_loop(loop: UpdateLoop, state: Mapping[str, Any], priorities: Priorities | None) -> None:
    """Restore `state` into a new loop before its first tick.

    Args:
        loop: new loop; its rings are at their restored positions, and contain their rows unless `priorities` is None.
        state: result of `loop_state`.
        priorities: priorities of the rows of a replay (an empty sequence for segments); None if the rings are empty.

    Raises:
        ValueError, KeyError: the state belongs to another kind of loop.
    """
    loop.core.load_state_dict(state["core"])
    restore_state(loop.publisher, state["publisher"])
    if isinstance(loop, ReplayLoop):
        _restore_replay_loop(loop, state, priorities)
    else:
        assert isinstance(loop, SegmentLoop)
        _restore_segment_loop(loop, state, rows=priorities is not None)
    _republish(loop.publisher, state["published"], exactly=priorities is not None)


def _common_state(loop: ReplayLoop | SegmentLoop) -> dict[str, Any]:
    staleness = loop._staleness
    return {
        "core": loop.core.state_dict(),
        "loop": state_of(loop),
        "publisher": state_of(loop.publisher),
        "published": _published(loop.publisher),
        "staleness": [state_of(staleness.in_updates), state_of(staleness.in_versions)],
        "policy_lag": state_of(loop._policy_lag),
    }


def _restore_common(loop: ReplayLoop | SegmentLoop, state: Mapping[str, Any]) -> None:
    restore_state(loop, state["loop"])
    histograms: list[Histogram] = [loop._staleness.in_updates, loop._staleness.in_versions]
    for histogram, saved in zip(histograms, state["staleness"], strict=True):
        restore_state(histogram, saved)
    restore_state(loop._policy_lag, state["policy_lag"])


# --- weights ---------------------------------------------------------------------------------------------------------


def _published(publisher: Publisher) -> dict[str, Any]:
    # Another reader than the inference server's, on whose thread `updates` is that of its own last `refresh`.
    mailbox = WeightMailbox(publisher._mailbox.segment, publisher._mailbox.weight_count)
    weights = np.zeros(mailbox.weight_count, np.float32)
    version = mailbox.refresh(weights, 0)
    return {"version": version, "updates": mailbox.updates, "weights": weights}


def _republish(publisher: Publisher, published: Mapping[str, Any], *, exactly: bool) -> None:
    """Publish the former acting weights under their version if `exactly`, else the newest under the next version."""
    mailbox, version = publisher._mailbox, int(published["version"])
    if version == 0:
        return
    if exactly:
        mailbox.count_from(version - 1)
        mailbox.publish(published["weights"], int(published["updates"]))
    else:
        mailbox.count_from(version)
        publisher.publish()


# --- replay ----------------------------------------------------------------------------------------------------------


def _replay_loop_state(loop: ReplayLoop) -> dict[str, Any]:
    return {
        **_common_state(loop),
        "pace": state_of(loop._pace),
        "replay": replay_state(loop._replay),
        "generator": generator_state(loop._replay._rng),
    }


def _restore_replay_loop(loop: ReplayLoop, state: Mapping[str, Any], priorities: Priorities | None) -> None:
    restore_state(loop._pace, state["pace"])
    restore_generator(loop._replay._rng, state["generator"])
    if priorities is None:
        _restore_without_rows(loop, state)
    else:
        _restore_common(loop, state)
        restore_replay(loop._replay, state["replay"], priorities)
    if loop._mirror is not None:  # before the first grant, which waits until these rows are copied
        loop._mirror.follow(loop._positions)


def _restore_without_rows(loop: ReplayLoop, state: Mapping[str, Any]) -> None:
    positions = np.array([ring.published() for ring in loop.rings], np.int64)
    own = state_of(loop)
    restored = {**state, "loop": {**own, "inserted_steps": state["loop"]["inserted_steps"]}}
    restored["policy_lag"] = {**state["policy_lag"], "seen": positions}
    _restore_common(loop, restored)
    restore_empty_replay(loop._replay, state["replay"])
    loop._granted[:] = loop._positions[:] = positions
    if isinstance(loop, LockstepReplayLoop):
        loop._boundary = int(positions.max())
    loop._pace.refill()


# --- segments --------------------------------------------------------------------------------------------------------


def _segment_loop_state(loop: SegmentLoop) -> dict[str, Any]:
    past = loop._past
    return {
        **_common_state(loop),
        "pace": state_of(loop._balance),
        "queue": queue_state(loop._queue),
        "discarded": loop._intake.discarded_steps,
        "held": bool(loop._intake.segments),
        "past": None if past is None else _past_state(past),
    }


def _restore_segment_loop(loop: SegmentLoop, state: Mapping[str, Any], *, rows: bool) -> None:
    restore_state(loop._balance, state["pace"])
    # Without rows grants begin at the rings' positions; a grant includes the row after a segment.
    granted = {} if rows else {"granted": np.array([ring.published() + 1 for ring in loop.rings], np.int64)}
    _restore_common(loop, {**state, "loop": {**state["loop"], **granted}})
    held = restore_queue(loop._queue, state["queue"], rows=rows)
    loop._intake.discarded_steps = int(state["discarded"])
    if not rows:
        loop._balance._open = 0
    elif state["held"]:  # synchronous: the batch in training is released after publication
        loop._intake.segments = held
    if loop._past is not None and state["past"] is not None:
        _restore_past(loop._past, state["past"])


def _past_state(past: PastSegments) -> dict[str, Any]:
    segments = [dict(vars(segment)) for segment in past._kept]
    return {"segments": segments, "generator": generator_state(past._rng)}


def _restore_past(past: PastSegments, state: Mapping[str, Any]) -> None:
    past._kept.clear()
    past._kept.extend(Segment(**fields) for fields in state["segments"])
    restore_generator(past._rng, state["generator"])


# --- parts -----------------------------------------------------------------------------------------------------------


def state_of(part: Any) -> dict[str, Any]:
    """Attributes of `part.STATE` by name without leading underscore; arrays are copied."""
    values = {name.lstrip("_"): getattr(part, name) for name in part.STATE}
    return {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def restore_state(part: Any, state: Mapping[str, Any]) -> None:
    """Restore a result of `state_of` into `part`; arrays are filled in place.

    Raises:
        ValueError: an attribute is missing, or an array has another shape or dtype.
    """
    for name in part.STATE:
        key = name.lstrip("_")
        if key not in state:
            raise ValueError(f"the state of {type(part).__name__} must hold {key!r}, got {sorted(state)}")
        now, saved = getattr(part, name), state[key]
        if not isinstance(now, np.ndarray):
            setattr(part, name, saved)
            continue
        if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (now.shape, now.dtype):
            raise ValueError(f"{key} of {type(part).__name__} must be {now.dtype} {list(now.shape)}")
        now[...] = saved


def generator_state(rng: np.random.Generator) -> str:
    """State of a generator as JSON, because its integers have more than 64 bits."""
    return json.dumps(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    """Restore a result of `generator_state`. Raises ValueError if it is from another kind of generator."""
    rng.bit_generator.state = json.loads(state)
