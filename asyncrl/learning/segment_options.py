"""Options and parts of the loop that learns from segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl.learning.segment_balance import SegmentBalance
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.protocols import SegmentUpdater
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.segments import SegmentQueue
from asyncrl.shm.weights import WeightMailbox


@dataclass(frozen=True)
class SegmentOptions:
    """How segments are consumed.

    Attributes:
        discipline: who may be ahead of whom; see `segment_loop.py`.
        segments_per_batch: K.
        total_steps: steps over which schedules run, or None.
        max_staleness: oldest policy that is learned from, in publications, or None.
        dump_dir: where the batch of a diverged update is saved, or None.
    """

    discipline: Literal["relaxed", "lockstep", "synchronous"]
    segments_per_batch: int
    total_steps: int | None = None
    max_staleness: int | None = None
    dump_dir: Path | None = None


@dataclass(frozen=True)
class SegmentParts:
    """What learning from segments is made of.

    Attributes:
        core: network, optimiser and loss.
        queue: complete segments.
        balance: pace.
        mailbox: where weights are published.
        staleness: meter and correction.
        wake: called with the index of an actor that waits and was granted rows.
        options: how segments are consumed.
        snapshots: weights to evaluate; copied between two iterations.
        past: segments kept for a second use, or None.
    """

    core: SegmentUpdater
    queue: SegmentQueue
    balance: SegmentBalance
    mailbox: WeightMailbox
    staleness: StalenessMeter
    wake: Callable[[int], None]
    options: SegmentOptions
    snapshots: WeightSnapshots
    past: PastSegments | None = None
