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
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.errors import GPUOutOfMemory
from asyncrl.interfaces import Segment
from asyncrl.learning.divergence import DeviceFull, out_of_gpu_memory
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.segment_balance import SegmentBalance
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import TICK_SECONDS, LoopOptions, Priorities, UpdateLoop
from asyncrl.protocols import SegmentUpdater
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.replay_state import restore_queue
from asyncrl.replay.segments import SegmentQueue
from asyncrl.saved_state import restore, saved
from asyncrl.shm.weights import WeightMailbox


class SegmentLoop(UpdateLoop):
    """Update loop that consumes segments in order of arrival.

    Args:
        algorithm: options of the discipline, batches and staleness.
        queue: complete segments.
        core: network, optimiser and loss.
        mailbox: mailbox for published weights.
        past: replay of past segments that are mixed into batches, or None.
        run: see `LoopOptions`.

    Raises:
        ValueError: the pace would deadlock (see `SegmentBalance`).
    """

    STATE = (*UpdateLoop.STATE, "_learning", "_trained_steps", "_samples", "_discarded_steps")
    core: SegmentUpdater
    pace: SegmentBalance

    def __init__(
        self,
        algorithm: SegmentLearning,
        queue: SegmentQueue,
        core: SegmentUpdater,
        mailbox: WeightMailbox,
        *,
        past: PastSegments | None = None,
        **run: Unpack[LoopOptions],
    ) -> None:
        self._algorithm, self._queue, self._past = algorithm, queue, past
        self._per_batch = algorithm.segments_per_batch or len(queue.rings)
        super().__init__(
            core,
            queue,
            mailbox,
            staleness=StalenessMeter(
                algorithm.row_correction, algorithm.staleness_rate, algorithm.max_staleness, unit="versions"
            ),
            policy_lag=Histogram("async/policy_lag"),
            interval=None,
            **run,
        )
        self._learning = False
        self._trained_steps = 0
        self._samples = 0
        self._taken: list[Segment] = []
        """Segments taken and not released: an incomplete batch, or (synchronous) the batch in training."""
        self._discarded_steps = 0
        self._discarded_below = [0] * len(queue.rings)
        """Row per ring below which segments are discarded."""

    def _make_pace(self, max_env_steps: int | None) -> SegmentBalance:
        algorithm, ring = self._algorithm, self._queue.rings[0]
        assert algorithm.samples_per_insert is not None, "a segment algorithm has samples_per_insert"
        kept, past_per_batch, _ = algorithm.kept_segments
        past_per_batch = past_per_batch if kept else 0
        return SegmentBalance(
            num_rings=len(self._queue.rings),
            envs_per_actor=ring.environments,
            length=self._queue.length,
            num_slots=ring.num_slots,
            num_agents=ring.layout.trained_agents,
            discipline=algorithm.discipline,
            segments_per_batch=self._per_batch,
            queue_batches=algorithm.queue_batches,
            samples_per_insert=algorithm.samples_per_insert * (1 + past_per_batch / self._per_batch),
            max_env_steps=max_env_steps,
        )

    def _batch_arrays(self) -> Mapping[str, NDArray[Any]]:
        return self.core.batch()

    def prepare(self) -> None:
        """Publish the first weights and grant the first segments."""
        super().prepare()
        self._grant()

    def tick(self) -> bool:
        """Receive segments; begin or continue an iteration for `TICK_SECONDS`; return False while waiting for rows."""
        self._check_rings()
        if self._algorithm.discipline == "relaxed":
            self._publish_env_kwargs(0, self.inserted_steps)
        ready = self._queue.ready
        inserted = self._queue.poll()
        if self._queue.ready != ready:  # also for a segment of RESET rows only, which has no step
            self.inserted_steps += inserted
            self.pace.inserted(inserted)
            self._grant()
        if not self._learning and not self._begin():
            self._grant()  # the learner waits now
            if not self._reuse():
                return False
        self._steps()
        return True

    def finished(self) -> bool:
        """Whether no further batch can be completed and no copy of weights is due."""
        used_up = self.pace.exhausted(self._queue.ready + len(self._taken))
        return used_up and not self._copy_due(self._trained_steps)

    def wake_positions(self) -> list[int]:
        """Position per ring at which its next segment is complete."""
        return [int(position) for position in self._queue.next_wake()]

    @property
    def stored_steps(self) -> int:
        """See `UpdateLoop`."""
        rows = self._queue.length * self.rings[0].environments
        return (self._queue.ready + len(self._taken)) * rows

    @property
    def discarded_steps(self) -> int:
        """See `UpdateLoop`."""
        return self._discarded_steps

    # --- batches -----------------------------------------------------------------------------------------------------

    def _take_batch(self) -> list[Segment] | None:
        """Segments of the next iteration, in order of arrival; None while some are missing."""
        if self._algorithm.discipline != "relaxed":
            return self._queue.take_one_of_each() if self._queue.each_ready else None
        # Further passes over the last batch may have been published since these segments were taken.
        self._discard([segment for segment in self._taken if self._too_stale(segment)])
        while len(self._taken) < self._per_batch and self._queue.ready:
            self._taken += self._queue.take(1)
            segment = self._taken[-1]
            if self._too_stale(segment) or segment.first < self._discarded_below[segment.ring]:
                self._discard([segment])
        return self._empty_taken() if len(self._taken) >= self._per_batch else None

    def _empty_taken(self) -> list[Segment]:
        segments, self._taken = self._taken, []
        return segments

    def _give_up(self, index: int) -> None:
        """Discard the complete segments of this ring that are not in a batch yet.

        If a batch is one segment of every ring (not relaxed), a complete segment is used, because the batch needs it.
        """
        if self._algorithm.discipline == "relaxed":
            self._discarded_below[index] = self._queue.complete_rows(index)
            self._discard([segment for segment in self._taken if segment.ring == index])

    def _discard(self, segments: list[Segment]) -> None:
        """Remove these from the taken ones, count their steps, and release them."""
        if segments:
            self._taken = [kept for kept in self._taken if all(kept is not segment for segment in segments)]
            self._discarded_steps += sum(segment.steps for segment in segments)
            self._release(segments)

    def _too_stale(self, segment: Segment) -> bool:
        """Whether the oldest row exceeds the staleness bound."""
        bound = self._algorithm.max_staleness
        return bound is not None and self.publisher.version - int(segment.version.min()) > bound

    # --- an iteration ------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin an iteration if its segments are complete; return whether it was begun."""
        if not self._copied(self._trained_steps):
            return False
        segments = self._take_batch()
        if segments is None:
            return False
        if self._algorithm.discipline == "lockstep" and self.publisher.unpublished:
            self.publisher.publish()
        self._train_on(segments)
        if self._algorithm.discipline == "synchronous":
            self._taken = segments  # released after publication of the update
        else:
            self._release(segments)
        return True

    def _train_on(self, segments: list[Segment]) -> None:
        """Measure and correct staleness, and begin an iteration of the core on the segments and past segments."""
        version = self.publisher.version
        batch = [*segments, *(self._past.draw(version) if self._past is not None else ())]
        for segment in batch:
            self.staleness.measure(self.updates, version, segment, each=segment.num_envs)
        for segment in segments:
            environments = segment.num_envs // segment.num_agents
            self.policy_lag.add(self.updates, segment.policy_updates, environments)
        steps = sum(segment.steps for segment in segments)
        self.pace.received(steps)
        self._trained_steps += steps
        started = time.perf_counter()
        try:
            self.core.begin(batch, self._progress_at(self._trained_steps - steps))
        except DeviceFull as error:
            raise _memory_error(error, self._per_batch, self._queue.length) from error
        self.times.add(0, sample=time.perf_counter() - started)
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
                raise _memory_error(error, self._per_batch, self._queue.length) from error
            samples = self.core.samples
            if samples != self._samples:  # unchanged if the core stopped early, by `target_kl`
                seconds = time.perf_counter() - started
                self.publisher.updated(seconds)
                self.times.add(learn=seconds)
                self.pace.sampled(samples - self._samples)
                self._samples = samples
            if not more:
                self._end()
            if time.perf_counter() >= end:
                break

    def _end(self) -> None:
        self._learning = False
        if self._algorithm.discipline == "lockstep":
            return  # published when no actor is within a segment
        self.publisher.publish()
        if self._algorithm.discipline == "synchronous":
            self._release(self._empty_taken())

    def _reuse(self) -> bool:
        """Begin another pass over the last batch in place of waiting, if the algorithm allows one."""
        if (
            self._algorithm.discipline != "relaxed"
            or self.updates == 0
            or self.finished()
            or self._copy_due(self._trained_steps)
            or not self.core.reuse()
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
        released, published = self._queue.released, self._queue.published_rows()
        if not self.pace.grant(released, published, self._granted, learning=self._learning):
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
            "held": bool(self._taken),
            "past": None if past is None else saved(past),
        }

    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        rows = priorities is not None
        # Without rows grants begin at the rings' positions; a grant includes the row after a segment.
        granted = (
            {} if rows else {"granted": np.array([ring.published() + 1 for ring in self.rings], np.int64)}
        )
        restore(self, {**state["loop"], **granted})
        restore(self.policy_lag, state["policy_lag"])
        held = restore_queue(self._queue, state["queue"], rows=rows)
        if rows and state["held"]:  # synchronous: the batch in training is released after publication
            self._taken = held
        if self._past is not None and state["past"] is not None:
            restore(self._past, state["past"])


def _memory_error(error: BaseException, per_batch: int, length: int) -> GPUOutOfMemory:
    return out_of_gpu_memory(error, segments_per_batch=per_batch, segment_length=length)
