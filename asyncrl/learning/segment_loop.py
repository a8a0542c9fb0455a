"""Learning from segments: take those that arrived first, train on them, publish, let the actors go on.

    relaxed       take K segments of whichever actors -> copy them in -> release, grant -> steps -> publish
    lockstep      wait for one segment of every actor -> publish what the last iteration learned -> copy them in
                  -> release, grant the next ones -> steps
    synchronous   wait for one segment of every actor -> copy them in -> steps -> publish -> release, grant

In lockstep (as in HTS-RL, Liu et al., arXiv 2012.09849) the weights that act in segment i + 1 are those learned up to
segment i - 1, on every machine and at every speed: they are published when every actor has finished segment i and none
may begin the next one. So the same seed gives the same numbers, and collecting overlaps with learning all the same. The
synchronous discipline is what the others are measured against. All three are this class; they differ in when it
publishes and when it releases.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import Segment
from asyncrl.learning.divergence import DeviceFull, Divergence, out_of_gpu_memory
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.publication import Publisher
from asyncrl.learning.quarantine import Quarantine
from asyncrl.learning.segment_balance import SegmentBalance
from asyncrl.learning.segment_options import SegmentOptions
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import TICK_SECONDS, LoopStatistics
from asyncrl.learning.weight_snapshots import SnapshotWriter, WeightSnapshots
from asyncrl.protocols import SegmentUpdater
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.segments import SegmentQueue
from asyncrl.shm.weights import WeightMailbox


@dataclass
class _Taken:
    """Segments that wait for their batch to be full, and what was dropped on the way."""

    segments: list[Segment] = field(default_factory=list)
    discarded_steps: int = 0


class SegmentLoop:
    """Consumes each segment once, in order of arrival. Implements `UpdateLoop`; learner thread.

    Args:
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

    polls_while_dense = False
    STATE = ("inserted_steps", "_granted", "_learning", "_trained_steps", "_samples")

    def __init__(
        self,
        *,
        core: SegmentUpdater,
        queue: SegmentQueue,
        balance: SegmentBalance,
        mailbox: WeightMailbox,
        staleness: StalenessMeter,
        wake: Callable[[int], None],
        options: SegmentOptions,
        snapshots: WeightSnapshots,
        past: PastSegments | None = None,
    ) -> None:
        self.core = core
        self.rings = queue.rings
        self.divergence = Divergence(options.dump_dir, core.batch)
        self.publisher = Publisher(core, mailbox, lambda what: self.divergence.error(what, self.updates))
        self._queue = queue
        self._balance = balance
        self._staleness = staleness
        self._wake = wake
        self._options = options
        self._copies = SnapshotWriter(snapshots, self.publisher)
        self._policy_lag = Histogram()
        self._past = past
        self._granted = np.zeros(len(self.rings), np.int64)
        self._taken = _Taken()
        self._learning = False
        self._trained_steps = 0
        self._samples = 0
        self.inserted_steps = 0
        self._distrusted = [0] * len(self.rings)
        """Per ring, the row below which no segment is trained on any more."""
        self._quarantine = Quarantine(
            self.rings,
            self._give_up,
            lambda index: queue.begin_again(index, int(self._granted[index])),
        )

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self.publisher.updates

    def prepare(self) -> None:
        """Publish the first weights and grant the first segments."""
        if self.publisher.version == 0:
            self.publisher.publish()
        self._grant()

    def tick(self) -> bool:
        """Note what arrived; begin an iteration or go on with it for `TICK_SECONDS`; False where it waits for rows."""
        self._quarantine.look()
        ready = self._queue.ready
        inserted = self._queue.poll()
        if self._queue.ready != ready:  # also where a segment is all resets, and holds no step
            self.inserted_steps += inserted
            self._balance.inserted(inserted)
            self._grant()
        if not self._learning and not self._begin() and not self._again():
            return False
        self._steps()
        return True

    def end_burst(self) -> None:
        """Nothing: weights are published between iterations, wherever bursts end."""

    def finished(self) -> bool:
        """Whether no further batch can come."""
        used_up = self._balance.exhausted(self._queue.ready + len(self._taken.segments))
        return used_up and not self._copy_due()

    def wake_positions(self) -> list[int]:
        """Per ring, where its next segment is complete."""
        return [int(position) for position in self._queue.next_wake()]

    def statistics(self) -> LoopStatistics:
        """See `UpdateLoop.statistics`."""
        rows = self._queue.length * self.rings[0].num_envs
        waiting = self._queue.ready + len(self._taken.segments)
        return LoopStatistics(
            balance=self._balance.statistics(),
            staleness=self._staleness,
            policy_lag=self._policy_lag,
            stored_steps=waiting * rows,
            discarded_steps=self._taken.discarded_steps,
        )

    # --- an iteration ------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin an iteration if its segments are there."""
        if not self._copies.copy(self._trained_steps):
            return False
        segments = self._whole_batch()
        if segments is None:
            return False
        if self._options.discipline == "lockstep" and self.publisher.unpublished:
            self.publisher.publish()
        self._train_on(segments)
        if self._options.discipline == "synchronous":
            self._taken.segments = segments  # released when what they taught is published
        else:
            self._release(segments)
        return True

    def _copy_due(self) -> bool:
        """Whether weights are to be copied for evaluation."""
        return self._copies.due(self._trained_steps)

    def _whole_batch(self) -> list[Segment] | None:
        """The segments of the next iteration, or None while some are missing."""
        if self._options.discipline != "relaxed":
            return self._queue.take_one_of_each() if self._queue.each_ready else None
        segments, wanted = self._taken.segments, self._options.segments_per_batch
        while len(segments) < wanted and self._queue.ready:
            (segment,) = self._queue.take(1)
            if self._too_stale(segment) or segment.first < self._distrusted[segment.ring]:
                self._taken.discarded_steps += segment.steps
                self._release([segment])
            else:
                segments.append(segment)
        if len(segments) < wanted:
            return None
        self._taken.segments = []
        return segments

    def _give_up(self, index: int) -> None:
        """Train on no segment of this ring that is not in a batch yet.

        Where a batch is one segment of every ring, the one that is complete is used: a batch cannot do without.
        """
        if self._options.discipline != "relaxed":
            return
        self._distrusted[index] = self._queue.complete_rows(index)
        distrusted = [segment for segment in self._taken.segments if segment.ring == index]
        self._taken.segments = [segment for segment in self._taken.segments if segment.ring != index]
        self._taken.discarded_steps += sum(segment.steps for segment in distrusted)
        self._release(distrusted)

    def _too_stale(self, segment: Segment) -> bool:
        """Whether its oldest row is over the bound. No weights are published between this and its use."""
        bound = self._options.max_staleness
        return bound is not None and self.publisher.version - int(segment.version.min()) > bound

    def _train_on(self, segments: list[Segment]) -> None:
        """Hand the segments to the core, with some of the past where that is wanted, measured and corrected."""
        version = self.publisher.version
        batch = [*segments, *(self._past.draw(version) if self._past is not None else ())]
        for segment in batch:
            self._staleness.measure(self.updates, version, segment, each=segment.num_envs)
        for segment in segments:
            self._policy_lag.add(self.updates, segment.policy_updates, segment.num_envs)
        steps = sum(segment.steps for segment in segments)
        self._balance.received(steps)
        self._trained_steps += steps
        total = self._options.total_steps
        progress = min(1.0, (self._trained_steps - steps) / total) if total else 0.0
        try:
            self.core.begin(batch, progress)
        except DeviceFull as error:
            raise out_of_gpu_memory(
                segments_per_batch=len(batch), segment_length=self._queue.length
            ) from error
        if self._past is not None:
            self._past.keep(segments)
        self._learning = True

    def _steps(self) -> None:
        """Gradient steps until the iteration ends or `TICK_SECONDS` are over."""
        end = time.perf_counter() + TICK_SECONDS
        while self._learning:
            started = time.perf_counter()
            more = self.core.step()
            samples = self.core.samples
            if samples != self._samples:  # else it only stopped early: the policy had moved far enough
                self.publisher.updated(time.perf_counter() - started)
                self._balance.sampled(samples - self._samples)
                self._samples = samples
            if not more:
                self._end()
            if time.perf_counter() >= end:
                break

    def _end(self) -> None:
        self._learning = False
        if self._options.discipline == "lockstep":
            return  # published when no actor is in the middle of a segment
        self.publisher.publish()
        if self._options.discipline == "synchronous":
            segments, self._taken.segments = self._taken.segments, []
            self._release(segments)

    def _again(self) -> bool:
        """Another pass over the last batch where the learner would wait, if the algorithm allows one."""
        if (
            self._options.discipline != "relaxed"
            or self.updates == 0
            or self.finished()
            or self._copy_due()
            or not self.core.again()
        ):
            return False
        self._learning = True
        return True

    # --- actors ------------------------------------------------------------------------------------------------------

    def _release(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._queue.release(segment)
        self._grant()

    def _grant(self) -> None:
        """Let actors go on as far as the balance allows, and wake those that wait for it."""
        before = self._granted.copy()
        if not self._balance.grant(self._queue.released, self._queue.published_rows(), self._granted):
            return
        for index in np.flatnonzero(self._granted != before):
            if self.rings[index].fault:
                continue  # it gets its grant when it is begun again
            with contextlib.suppress(RingCorrupt):
                self._queue.grant(int(index), int(self._granted[index]))
            if self.rings[index].take_waiting():
                self._wake(int(index))
