"""Training on segments: take segments in order of arrival, train on them, publish weights, grant further segments.

    relaxed       take K segments of any actors -> copy -> release, grant -> steps -> publish
    lockstep      wait for one segment of every actor -> publish the weights of the last iteration -> copy
                  -> release, grant the next segments -> steps
    synchronous   wait for one segment of every actor -> copy -> steps -> publish -> release, grant

In lockstep (as in HTS-RL, Liu et al., arXiv 2012.09849) the weights that act in segment i + 1 have been trained on the
segments up to i - 1, on every machine and at every speed: they are published when every actor has finished segment i
and none may begin the next one. So equal seeds give equal numbers, and collection still overlaps with training. The
synchronous discipline is the baseline. One class implements all three, which differ in the times of publication and
release.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.errors import GPUOutOfMemory
from asyncrl.interfaces import Segment
from asyncrl.learning.divergence import DeviceFull, Divergence, out_of_gpu_memory
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.segment_balance import SegmentBalance
from asyncrl.learning.segment_intake import SegmentIntake, SegmentOptions
from asyncrl.learning.update_loop import TICK_SECONDS, LoopParts, Priorities, UpdateLoop
from asyncrl.protocols import SegmentUpdater
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.replay_state import restore_queue
from asyncrl.replay.segments import SegmentQueue
from asyncrl.saved_state import restore, saved


@dataclass(frozen=True)
class SegmentParts(LoopParts):
    """Parts of training on segments, besides those of `LoopParts`.

    Attributes:
        queue: complete segments.
        balance: production-consumption balance.
        options: options of consumption.
        past: replay of past segments, or None.
    """

    core: SegmentUpdater
    queue: SegmentQueue
    balance: SegmentBalance
    options: SegmentOptions
    past: PastSegments | None = None


class SegmentLoop(UpdateLoop):
    """Update loop that consumes segments in order of arrival."""

    STATE = (*UpdateLoop.STATE, "_learning", "_trained_steps", "_samples")
    core: SegmentUpdater

    def __init__(self, parts: SegmentParts) -> None:
        queue, options = parts.queue, parts.options
        divergence = Divergence(options.dump_dir, parts.core.batch)
        self._intake = SegmentIntake(queue, options, self._release)
        super().__init__(parts, queue, parts.balance, Histogram(), divergence, self._intake.give_up)
        self._queue = queue
        self._balance = parts.balance
        self._options = options
        self._past = parts.past
        self._learning = False
        self._trained_steps = 0
        self._samples = 0

    def prepare(self) -> None:
        """Publish the first weights and grant the first segments."""
        super().prepare()
        self._grant()

    def tick(self) -> bool:
        """Receive segments; begin or continue an iteration for `TICK_SECONDS`; return False while waiting for rows."""
        self._check_rings()
        ready = self._queue.ready
        inserted = self._queue.poll()
        if self._queue.ready != ready:  # also for a segment of RESET rows only, which has no step
            self.inserted_steps += inserted
            self._balance.inserted(inserted)
            self._grant()
        if not self._learning and not self._begin() and not self._again():
            return False
        self._steps()
        return True

    def finished(self) -> bool:
        """Whether no further batch can be completed and no copy of weights is due."""
        used_up = self._balance.exhausted(self._queue.ready + len(self._intake.segments))
        return used_up and not self._copy_due(self._trained_steps)

    def wake_positions(self) -> list[int]:
        """Position per ring at which its next segment is complete."""
        return [int(position) for position in self._queue.next_wake()]

    def _stored_and_discarded(self) -> tuple[int, int]:
        rows = self._queue.length * self.rings[0].num_envs
        waiting = self._queue.ready + len(self._intake.segments)
        return waiting * rows, self._intake.discarded_steps

    # --- an iteration ------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin an iteration if its segments are complete; return whether it was begun."""
        if not self._copied(self._trained_steps):
            return False
        segments = self._intake.batch(self.publisher.version)
        if segments is None:
            return False
        if self._options.discipline == "lockstep" and self.publisher.unpublished:
            self.publisher.publish()
        self._train_on(segments)
        if self._options.discipline == "synchronous":
            self._intake.segments = segments  # released after publication of the update
        else:
            self._release(segments)
        return True

    def _train_on(self, segments: list[Segment]) -> None:
        """Measure and correct staleness, and begin an iteration of the core on the segments and past segments."""
        version = self.publisher.version
        batch = [*segments, *(self._past.draw(version) if self._past is not None else ())]
        for segment in batch:
            self._staleness.measure(self.updates, version, segment, each=segment.num_envs)
        for segment in segments:
            self._policy_lag.add(self.updates, segment.policy_updates, segment.num_envs)
        steps = sum(segment.steps for segment in segments)
        self._balance.received(steps)
        self._trained_steps += steps
        total, done = self._options.total_steps, self._trained_steps - steps + self._options.other_steps()
        progress = min(1.0, done / total) if total else 0.0
        try:
            self.core.begin(batch, progress)
        except DeviceFull as error:
            raise _memory_error(error, self._options.segments_per_batch, self._queue.length) from error
        if self._past is not None:
            self._past.keep(segments)
        self._learning = True

    def _steps(self) -> None:
        """Make gradient steps until the iteration ends or `TICK_SECONDS` are over."""
        end = time.perf_counter() + TICK_SECONDS
        while self._learning:
            started = time.perf_counter()
            try:
                more = self.core.step()
            except DeviceFull as error:
                raise _memory_error(error, self._options.segments_per_batch, self._queue.length) from error
            samples = self.core.samples
            if samples != self._samples:  # unchanged if the core stopped early, by `target_kl`
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
            return  # published when no actor is within a segment
        self.publisher.publish()
        if self._options.discipline == "synchronous":
            self._release(self._intake.taken())

    def _again(self) -> bool:
        """Begin another pass over the last batch in place of waiting, if the algorithm allows one."""
        if (
            self._options.discipline != "relaxed"
            or self.updates == 0
            or self.finished()
            or self._copy_due(self._trained_steps)
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
        """Grant segments as far as the balance allows, and wake waiting actors."""
        before = self._granted.copy()
        if not self._balance.grant(self._queue.released, self._queue.published_rows(), self._granted):
            return
        for index in np.flatnonzero(self._granted != before):
            if not self.rings[index].fault:  # else it receives its grant when it is restarted
                self._grant_ring(int(index))

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """See `UpdateLoop`."""
        past = self._past
        return {
            **super().state_dict(),
            "queue": saved(self._queue),
            "discarded": self._intake.discarded_steps,
            "held": bool(self._intake.segments),
            "past": None if past is None else saved(past),
        }

    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        rows = priorities is not None
        # Without rows grants begin at the rings' positions; a grant includes the row after a segment.
        granted = (
            {} if rows else {"granted": np.array([ring.published() + 1 for ring in self.rings], np.int64)}
        )
        restore(self, {**state["loop"], **granted})
        restore(self._policy_lag, state["policy_lag"])
        held = restore_queue(self._queue, state["queue"], rows=rows)
        self._intake.discarded_steps = int(state["discarded"])
        if rows and state["held"]:  # synchronous: the batch in training is released after publication
            self._intake.segments = held
        if self._past is not None and state["past"] is not None:
            restore(self._past, state["past"])


def _memory_error(error: BaseException, per_batch: int, length: int) -> GPUOutOfMemory:
    return out_of_gpu_memory(error, segments_per_batch=per_batch, segment_length=length)
