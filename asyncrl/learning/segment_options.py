"""Options of the loop that learns from segments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
