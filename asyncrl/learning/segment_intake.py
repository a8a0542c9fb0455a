"""Collection of segments into batches, in order of arrival, without stale segments and those of faulty rings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl.interfaces import Segment
from asyncrl.learning.update_loop import no_steps
from asyncrl.replay.segments import SegmentQueue


@dataclass(frozen=True)
class SegmentOptions:
    """Options of the consumption of segments.

    Attributes:
        discipline: order of training, publication and release; see `segment_loop.py`.
        segments_per_batch: K.
        total_steps: steps over which schedules run, or None.
        max_staleness: maximum staleness of a segment, in policy versions, or None.
        dump_dir: returns the directory for the batch of a diverged update, or None.
        other_steps: returns the steps of other groups that count towards `total_steps`; learner's thread.
    """

    discipline: Literal["relaxed", "lockstep", "synchronous"]
    segments_per_batch: int
    total_steps: int | None = None
    max_staleness: int | None = None
    dump_dir: Callable[[], Path | None] = lambda: None
    other_steps: Callable[[], int] = no_steps


class SegmentIntake:
    """Collector of the segments of the next batch; learner thread only.

    Args:
        queue: complete segments.
        options: options of consumption.
        release: called with segments that are discarded, so that their rows may be overwritten.

    Attributes:
        segments: segments taken and not released: an incomplete batch, or in the synchronous discipline the batch in
            training.
        discarded_steps: environment steps of the discarded segments.
    """

    def __init__(
        self, queue: SegmentQueue, options: SegmentOptions, release: Callable[[list[Segment]], None]
    ) -> None:
        self._queue = queue
        self._options = options
        self._release = release
        self.segments: list[Segment] = []
        self.discarded_steps = 0
        self._discarded_below = [0] * len(queue.rings)
        """Row per ring below which segments are discarded."""

    def batch(self, version: int) -> list[Segment] | None:
        """Segments of the next iteration, or None while some are missing; `version` is the newest published."""
        if self._options.discipline != "relaxed":
            return self._queue.take_one_of_each() if self._queue.each_ready else None
        wanted = self._options.segments_per_batch
        # Further passes over the last batch may have been published since these segments were taken.
        self._discard([segment for segment in self.segments if self._too_stale(segment, version)])
        while len(self.segments) < wanted and self._queue.ready:
            self.segments += self._queue.take(1)
            segment = self.segments[-1]
            if self._too_stale(segment, version) or segment.first < self._discarded_below[segment.ring]:
                self._discard([segment])
        return self.taken() if len(self.segments) >= wanted else None

    def taken(self) -> list[Segment]:
        """Return `segments` and empty it."""
        segments, self.segments = self.segments, []
        return segments

    def give_up(self, index: int) -> None:
        """Discard the complete segments of this ring that are not in a batch yet.

        If a batch is one segment of every ring (not relaxed), a complete segment is used, because the batch needs it.
        """
        if self._options.discipline != "relaxed":
            return
        self._discarded_below[index] = self._queue.complete_rows(index)
        self._discard([segment for segment in self.segments if segment.ring == index])

    def _discard(self, segments: list[Segment]) -> None:
        """Remove these from `segments`, count their steps, and release them."""
        if segments:
            self.segments = [
                kept for kept in self.segments if all(kept is not segment for segment in segments)
            ]
            self.discarded_steps += sum(segment.steps for segment in segments)
            self._release(segments)

    def _too_stale(self, segment: Segment, version: int) -> bool:
        """Whether the oldest row exceeds the staleness bound."""
        bound = self._options.max_staleness
        return bound is not None and version - int(segment.version.min()) > bound
