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
    """Options of the consumption of segments.

    Attributes:
        discipline: order of training, publication and release; see `segment_loop.py`.
        segments_per_batch: K.
        total_steps: steps over which schedules run, or None.
        max_staleness: maximum staleness of a segment, in policy versions, or None.
        dump_dir: directory for the batch of a diverged update, or None.
    """

    discipline: Literal["relaxed", "lockstep", "synchronous"]
    segments_per_batch: int
    total_steps: int | None = None
    max_staleness: int | None = None
    dump_dir: Path | None = None


@dataclass(frozen=True)
class SegmentParts:
    """Parts of training on segments.

    Attributes:
        core: network, optimiser and loss.
        queue: complete segments.
        balance: production-consumption balance.
        mailbox: mailbox for published weights.
        staleness: meter and correction of staleness.
        wake: called with the index of a waiting actor that was granted rows.
        options: options of consumption.
        snapshots: queue of weights to evaluate, filled between two iterations.
        past: replay of past segments, or None.
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
