"""What a run is made of, sized and reserved before any process starts."""

from __future__ import annotations

import math
import warnings
from typing import cast

import torch

from asyncrl.errors import DeviceNotAvailable, ReplayTooLarge, TooManyThreads
from asyncrl.interfaces import Algorithm, EnvSpec, ReplayAlgorithm, SegmentAlgorithm
from asyncrl.learning.segment_balance import slots_for
from asyncrl.run.config import TrainerConfig, usable_cores
from asyncrl.shm.ring import RingLayout
from asyncrl.shm.segment import available_bytes, bytes_needed

GPU_WEIGHTS = 500_000
"""`device="auto"` takes a GPU from this many weights on; below, launching kernels costs more than computing."""

PADDING = 16
"""Slots between two streams of a ring of segments: a cache line's worth of the narrow fields, and four of the wide."""


def choose_device(asked: str, weight_count: int) -> str:
    """`"cpu"` or `"cuda"`.

    Raises:
        DeviceNotAvailable: a GPU was asked for and torch has none; it never falls back silently (ASYNC016).
    """
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise DeviceNotAvailable(
            "device cuda was asked for and torch sees no GPU",
            facts={"asked": "cuda", "torch": torch.__version__, "built for CUDA": torch.version.cuda or "no"},
            fix="use device cpu or auto, or install a torch built for your GPU's CUDA",
        )
    if asked == "auto":
        return "cuda" if available and weight_count >= GPU_WEIGHTS else "cpu"
    return asked


def ring_layout(config: TrainerConfig, algorithm: Algorithm, spec: EnvSpec) -> RingLayout:
    """The layout of one actor's ring: what the algorithm keeps of it, up to the next power of two.

    Raises:
        ReplayTooLarge: all rings together need more memory than there is (ASYNC010).
    """
    rows = (
        replay_rows(config, algorithm)
        if algorithm.consumption == "replay"
        else segment_rows(config, algorithm)
    )
    layout = RingLayout(
        num_envs=config.envs_per_actor,
        num_slots=1 << (rows - 1).bit_length(),
        spec=spec,
        extra_fields=algorithm.extra_fields(spec),
        padding=0 if algorithm.consumption == "replay" else PADDING,
    )
    needed, there = config.actors * bytes_needed(layout.arrays()), available_bytes()
    if needed > there:
        raise _too_large(config, algorithm, layout, needed, there)
    return layout


def replay_rows(config: TrainerConfig, algorithm: Algorithm) -> int:
    """Rows of a ring that is the replay: its capacity divided among all streams."""
    replay = cast(ReplayAlgorithm, algorithm)
    streams = config.actors * config.envs_per_actor
    return max(32, 4 * replay.n_step, math.ceil(replay.replay_capacity / streams))


def segment_rows(config: TrainerConfig, algorithm: Algorithm) -> int:
    """Rows of a ring that feeds a queue: what the balance lets one actor have in flight, and the row after.

    A segment length that is a power of two divides the ring's length, so that no segment wraps and none is copied.
    """
    segments = cast(SegmentAlgorithm, algorithm)
    return slots_for(
        discipline=segments.discipline,
        num_rings=config.actors,
        length=segments.segment_length,
        segments_per_batch=segments.segments_per_batch or config.actors,
        queue_batches=segments.queue_batches,
    )


def _too_large(
    config: TrainerConfig, algorithm: Algorithm, layout: RingLayout, needed: int, there: int
) -> ReplayTooLarge:
    per_step = layout.bytes_per_row() / layout.num_envs
    facts = {
        "bytes per step": f"{per_step:,.0f}",
        "needed": f"{needed:,} bytes for {config.actors} rings of {layout.num_slots * layout.num_envs:,} steps",
        "there": f"{there:,} bytes",
    }
    if algorithm.consumption == "segments":
        return ReplayTooLarge(
            "the segments in flight are larger than memory",
            facts=facts,
            fix="lower segment_length, queue_batches or envs_per_actor",
        )
    return ReplayTooLarge(
        f"replay_capacity of {cast(ReplayAlgorithm, algorithm).replay_capacity:,} steps is larger than memory",
        facts=facts,
        fix=f"set replay_capacity to {int(there / per_step) // 2:,} or less",
    )


def warn_of_too_many_threads(config: TrainerConfig) -> None:
    """ASYNC021 where actors alone, or torch's threads beside them, outnumber the cores."""
    cores = usable_cores()
    torch_threads = config.torch_threads
    if config.actors > cores or (torch_threads > 1 and config.actors + torch_threads > cores):
        warnings.warn(
            TooManyThreads(
                f"[ASYNC021] {config.actors} actors and {torch_threads} torch threads share {cores} cores; "
                f"set num_actors to {max(1, cores - torch_threads)} and torch_threads to 1"
            ),
            stacklevel=2,
        )
