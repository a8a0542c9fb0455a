"""Segments on their way into a batch: in order of arrival, without those that are too stale or not to be trusted."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.interfaces import Segment
from asyncrl.learning.segment_options import SegmentOptions
from asyncrl.replay.segments import SegmentQueue


class SegmentIntake:
    """Collects the segments of the next batch; learner thread.

    Args:
        queue: complete segments.
        options: how segments are consumed.
        release: called with segments that are not trained on: their rows may be overwritten.

    Attributes:
        segments: taken and not released: those that wait for their batch to be full, and in the synchronous discipline
            the batch that is trained on.
        discarded_steps: steps of the segments that were dropped.
    """

    def __init__(
        self, queue: SegmentQueue, options: SegmentOptions, release: Callable[[list[Segment]], None]
    ) -> None:
        self._queue = queue
        self._options = options
        self._release = release
        self.segments: list[Segment] = []
        self.discarded_steps = 0
        self._distrusted = [0] * len(queue.rings)
        """Per ring, the row below which no segment is trained on any more."""

    def batch(self, version: int) -> list[Segment] | None:
        """The segments of the next iteration, or None while some are missing; `version` is the newest published."""
        if self._options.discipline != "relaxed":
            return self._queue.take_one_of_each() if self._queue.each_ready else None
        wanted = self._options.segments_per_batch
        while len(self.segments) < wanted and self._queue.ready:
            (segment,) = self._queue.take(1)
            if self._too_stale(segment, version) or segment.first < self._distrusted[segment.ring]:
                self.discarded_steps += segment.steps
                self._release([segment])
            else:
                self.segments.append(segment)
        return self.taken() if len(self.segments) >= wanted else None

    def taken(self) -> list[Segment]:
        """`segments`, which is empty afterwards."""
        segments, self.segments = self.segments, []
        return segments

    def give_up(self, index: int) -> None:
        """Train on no segment of this ring that is not in a batch yet.

        Where a batch is one segment of every ring, the one that is complete is used: a batch cannot do without.
        """
        if self._options.discipline != "relaxed":
            return
        self._distrusted[index] = self._queue.complete_rows(index)
        distrusted = [segment for segment in self.segments if segment.ring == index]
        self.segments = [segment for segment in self.segments if segment.ring != index]
        self.discarded_steps += sum(segment.steps for segment in distrusted)
        self._release(distrusted)

    def _too_stale(self, segment: Segment, version: int) -> bool:
        """Whether its oldest row is over the bound. No weights are published between this and its use."""
        bound = self._options.max_staleness
        return bound is not None and version - int(segment.version.min()) > bound
