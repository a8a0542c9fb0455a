"""Sizes of a run's shared memory: the layout of one actor's ring, checked against the machine's free memory.

Rings are reserved before any process starts, so that a run that does not fit ends at once with ASYNC010. The learner's
own memory for priorities and returns, which is used as rows come, is counted with them: of short observations it is as
much as the rings.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from asyncrl.algorithms.action_spaces import why_together
from asyncrl.algorithms.agent_policies import row_fields
from asyncrl.algorithms.central_state import state_values
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, ReplayTooLarge
from asyncrl.interfaces import EnvSpec, SelfPlay
from asyncrl.learning.segment_balance import slots_for
from asyncrl.replay.tables import LEAF_BYTES
from asyncrl.shm.free_memory import available_bytes
from asyncrl.shm.ring import RingLayout
from asyncrl.shm.segment import bytes_needed

PADDING = 16
"""Unused slots between two streams of a ring of segments: one cache line of narrow fields, four of wide ones."""


def ring_layout(config: TrainerConfig, algorithm: Any, spec: EnvSpec) -> RingLayout:
    """Layout of one actor's ring, for the update loop that `algorithm` names.

    Raises:
        ReplayTooLarge: all rings together need more memory than is free (ASYNC010).
        ConfigurationError: see `self_play_of`.
        SpacesDoNotFit: see `state_values` (ASYNC005).
    """
    if algorithm.update_loop == "dataset":  # no actor, so no ring is made of it
        return RingLayout(num_envs=spec.num_agents, num_slots=2, spec=spec)
    own = segment_layout if algorithm.update_loop == "segments" else replay_layout
    layout, self_play = own(config, algorithm, spec), self_play_of(config, algorithm, spec)
    if self_play is None:
        return layout
    return dataclasses.replace(layout, frozen_streams=self_play.environments * (spec.num_agents - 1))


def replay_layout(config: TrainerConfig, algorithm: OffPolicy, spec: EnvSpec) -> RingLayout:
    """Layout of a ring that is the replay: the capacity divided among all environments, rounded up to a power of two.

    Raises as `ring_layout`.
    """
    environments = config.actors * config.envs
    capacity = algorithm.replay_capacity
    assert capacity is not None, "for_run has chosen it"
    rows = max(
        32,
        4 * (algorithm.sample_rows + algorithm.frame_stack - 1),
        math.ceil(capacity / environments),
    )
    layout = _layout(config, algorithm, spec, rows)
    what = f"replay_capacity of {capacity:,} steps is larger than memory"
    leaves = (config.actors * layout.num_slots) << (layout.num_envs - 1).bit_length()
    return _fitting(config, layout, what, "set replay_capacity to {:,} or less", leaves * LEAF_BYTES)


def segment_layout(config: TrainerConfig, algorithm: SegmentLearning, spec: EnvSpec) -> RingLayout:
    """Layout of a ring that feeds a segment queue: room for an actor's segments in flight and the row after them.

    A segment length that is a power of two divides the ring's length, so that no segment wraps and none is copied.
    Raises as `ring_layout`.
    """
    rows = slots_for(
        discipline=algorithm.discipline,
        num_rings=config.actors,
        length=algorithm.segment_rows,
        segments_per_batch=algorithm.segments_per_batch or config.actors,
        queue_batches=algorithm.queue_batches,
    )
    layout = _layout(config, algorithm, spec, rows, padding=PADDING)
    what = "the segments in flight are larger than memory"
    return _fitting(config, layout, what, "lower segment_length, queue_batches or envs_per_actor")


def self_play_of(config: TrainerConfig, algorithm: Any, spec: EnvSpec) -> SelfPlay | None:
    """Opponents of each actor's environments; None without self-play.

    Raises:
        ConfigurationError: there is one agent, the agents are trained together, or an inference server runs the
            network (ASYNC017).
    """
    if config.self_play == "none":
        return None
    if spec.num_agents == 1:
        raise ConfigurationError(
            f"self_play must be none for {spec.name}, which has one agent, got {config.self_play}",
            fix="leave self_play out, or give an environment of several agents",
        )
    if getattr(algorithm, "needs_agents", False):
        raise ConfigurationError(
            f"self_play must be none for {algorithm.name}, {why_together(algorithm)}, got {config.self_play}",
            fix="leave self_play out, or train with ppo or dqn",
        )
    if getattr(algorithm, "inference", "actor") != "actor":
        raise ConfigurationError(
            f"inference must be actor with self_play, whose actors run past versions, got {algorithm.inference}",
            fix="write inference='actor'",
        )
    return SelfPlay(
        sampling=config.self_play,
        environments=max(1, round(config.self_play_fraction * config.envs)),
        interval=config.self_play_interval,
        kept=config.self_play_versions,
    )


def _layout(config: TrainerConfig, algorithm: Any, spec: EnvSpec, rows: int, padding: int = 0) -> RingLayout:
    return RingLayout(
        num_envs=config.envs * spec.num_agents,
        num_slots=1 << (rows - 1).bit_length(),
        spec=spec,
        extra_fields=row_fields(algorithm, spec),
        padding=padding,
        state_values=state_values(algorithm, spec),
    )


def _fitting(
    config: TrainerConfig, layout: RingLayout, what: str, fix: str, beside_bytes: int = 0
) -> RingLayout:
    """Return `layout` if all rings, and `beside_bytes` of the learner's memory, fit in free memory.

    `fix` is formatted with half of the steps that do.
    """
    needed = config.actors * bytes_needed(layout.arrays()) + beside_bytes
    available = available_bytes()
    if needed <= available:
        return layout
    steps = layout.num_slots * layout.environments
    step_bytes = needed / (config.actors * steps)
    raise ReplayTooLarge(
        what,
        facts={
            "bytes per step": f"{step_bytes:,.0f}",
            "needed": f"{needed:,} bytes for {config.actors} rings of {steps:,} steps",
            "there": f"{available:,} bytes",
        },
        fix=fix.format(int(available / step_bytes) // 2),
    )
