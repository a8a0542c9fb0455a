"""Sizes of a run's shared memory: the layout of one actor's ring, checked against the machine's free memory.

Rings are reserved before any process starts, so that a run that does not fit ends at once with ASYNC010.
"""

from __future__ import annotations

import math
from typing import Any

from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.config import TrainerConfig
from asyncrl.errors import ReplayTooLarge
from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.learning.segment_balance import slots_for
from asyncrl.shm.free_memory import available_bytes
from asyncrl.shm.ring import RingLayout
from asyncrl.shm.segment import bytes_needed

PADDING = 16
"""Unused slots between two streams of a ring of segments: one cache line of narrow fields, four of wide ones."""


def ring_layout(config: TrainerConfig, algorithm: Any, spec: EnvSpec) -> RingLayout:
    """Layout of one actor's ring, for the update loop that `algorithm` names. Raises `ReplayTooLarge` (ASYNC010)."""
    layout = segment_layout if algorithm.update_loop == "segments" else replay_layout
    return layout(config, algorithm, spec)


def replay_layout(config: TrainerConfig, algorithm: OffPolicy, spec: EnvSpec) -> RingLayout:
    """Layout of a ring that is the replay: the capacity divided among all environments, rounded up to a power of two.

    Raises:
        ReplayTooLarge: all rings together need more memory than is free (ASYNC010).
    """
    environments = config.actors * config.envs_per_actor
    rows = max(
        32,
        4 * (algorithm.sample_rows + algorithm.frame_stack - 1),
        math.ceil(algorithm.replay_capacity / environments),
    )
    layout = _layout(config, spec, rows, algorithm.extra_fields(spec))
    what = f"replay_capacity of {algorithm.replay_capacity:,} steps is larger than memory"
    return _fitting(config, layout, what, "set replay_capacity to {:,} or less")


def segment_layout(config: TrainerConfig, algorithm: OnPolicy, spec: EnvSpec) -> RingLayout:
    """Layout of a ring that feeds a segment queue: room for an actor's segments in flight and the row after them.

    A segment length that is a power of two divides the ring's length, so that no segment wraps and none is copied.

    Raises:
        ReplayTooLarge: all rings together need more memory than is free (ASYNC010).
    """
    rows = slots_for(
        discipline=algorithm.discipline,
        num_rings=config.actors,
        length=algorithm.segment_rows,
        segments_per_batch=algorithm.segments_per_batch or config.actors,
        queue_batches=algorithm.queue_batches,
    )
    layout = _layout(config, spec, rows, algorithm.extra_fields(spec), padding=PADDING)
    what = "the segments in flight are larger than memory"
    return _fitting(config, layout, what, "lower segment_length, queue_batches or envs_per_actor")


def _layout(
    config: TrainerConfig, spec: EnvSpec, rows: int, extra_fields: tuple[FieldSpec, ...], padding: int = 0
) -> RingLayout:
    return RingLayout(
        num_envs=config.envs_per_actor * spec.num_agents,
        num_slots=1 << (rows - 1).bit_length(),
        spec=spec,
        extra_fields=extra_fields,
        padding=padding,
    )


def _fitting(config: TrainerConfig, layout: RingLayout, what: str, fix: str) -> RingLayout:
    """Return `layout` if all rings fit in free memory; `fix` is formatted with half of the steps that do."""
    needed, available = config.actors * bytes_needed(layout.arrays()), available_bytes()
    if needed <= available:
        return layout
    step_bytes = layout.bytes_per_row() / layout.environments
    rings = f"{config.actors} rings of {layout.num_slots * layout.environments:,} steps"
    raise ReplayTooLarge(
        what,
        facts={
            "bytes per step": f"{step_bytes:,.0f}",
            "needed": f"{needed:,} bytes for {rings}",
            "there": f"{available:,} bytes",
        },
        fix=fix.format(int(available / step_bytes) // 2),
    )
