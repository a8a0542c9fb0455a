"""Learning from replay: draw a batch, update, give the priorities back; as much as the balance allows.

beat:  ingest new rows, retire, grant, wake actors
       update, update, ... for about a millisecond
       publish weights
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asyncrl.balance import Balance
from asyncrl.consumption import BEAT_SECONDS, Consumed
from asyncrl.core import Batch, LearnerCore
from asyncrl.divergence import DeviceFull, Divergence, out_of_gpu_memory
from asyncrl.publication import Publisher
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.shm.weights import WeightMailbox
from asyncrl.staleness import StalenessMeter


@dataclass(frozen=True)
class ReplayOptions:
    """How batches are drawn.

    Attributes:
        beta_start, beta_end: importance exponent, linear over `total_steps` (constant `beta_start` without).
        total_steps: steps over which schedules run, or None.
        max_staleness: oldest policy that is learned from, in publications, or None.
        publish_interval_seconds: least time between two publications of weights.
        dump_dir: where the batch of a diverged update is saved, or None.
    """

    beta_start: float
    beta_end: float
    total_steps: int | None
    max_staleness: int | None
    publish_interval_seconds: float
    dump_dir: Path | None = None


class ReplayLearning:
    """Consumes rows of any actor again and again. Implements `asyncrl.consumption.Consumption`; learner thread only.

    Args:
        core: network, optimiser and loss.
        replay: rows and priorities.
        balance: pace.
        mailbox: where weights are published.
        staleness: meter and correction.
        batch: the arrays that batches are gathered into.
        wake: called with the index of an actor that waits and was granted rows.
        options: how batches are drawn.
    """

    polls_while_dense = True

    def __init__(
        self,
        *,
        core: LearnerCore,
        replay: PrioritizedReplay,
        balance: Balance,
        mailbox: WeightMailbox,
        staleness: StalenessMeter,
        batch: Batch,
        wake: Callable[[int], None],
        options: ReplayOptions,
    ) -> None:
        self.core = core
        self.rings = replay.rings
        self.divergence = Divergence(options.dump_dir, self._batch_arrays)
        self.publisher = Publisher(
            core,
            mailbox,
            options.publish_interval_seconds,
            lambda what: self.divergence.error(what, self.updates),
        )
        self._replay = replay
        self._balance = balance
        self._staleness = staleness
        self._batch = batch
        self._wake = wake
        self._options = options
        self._granted = np.zeros(len(self.rings), np.int64)
        self._positions = np.zeros(len(self.rings), np.int64)
        self.updates = 0
        self.inserted_steps = 0

    def prepare(self) -> None:
        """Publish the first weights: actors wait for them."""
        self.publisher.publish()

    def beat(self) -> bool:
        """New rows in, grants out, then updates for `BEAT_SECONDS`. Returns whether an update was made."""
        self._take_in()
        allowed = self._balance.updates_allowed()
        if allowed and not self._replay.sampleable:
            self._balance.forgive()
            return False
        if allowed == 0:
            return False
        beta = self._beta()
        end = time.perf_counter() + BEAT_SECONDS
        while True:
            self._update(beta)
            allowed -= 1
            if allowed == 0 or time.perf_counter() >= end:
                break
        self.publisher.publish_when_due()
        return True

    def end_burst(self) -> None:
        """Actors shall not wait for the next burst to see what this one learned."""
        self.publisher.publish_when_due()

    def finished(self) -> bool:
        """Whether the run's steps are inserted and every update that they pay for has been made."""
        return self._balance.exhausted()

    def wake_positions(self) -> list[int]:
        """Per ring, the position from which on looking again is worth while.

        No further than half of what a ring is granted: an actor that runs out of grants would never ring.
        """
        steps = self._balance.steps_wanted(self._balance.updates_worth_waking)
        wanted = math.ceil(steps / (self.rings[0].num_envs * len(self.rings)))
        ahead = np.minimum(wanted, (self._granted - self._positions) // 2)
        return [int(p) for p in self._positions + np.maximum(1, ahead)]

    def consumed(self) -> Consumed:
        """See `Consumption.consumed`."""
        replay = self._replay.statistics()
        return Consumed(
            balance=self._balance.statistics(),
            staleness=self._staleness,
            stored_steps=replay.sampleable,
            discarded_steps=replay.discarded_stale,
        )

    def _take_in(self) -> None:
        """Ingest, drop what is too stale, grant what the balance allows, wake who waits for it."""
        inserted = self._replay.ingest()
        self.inserted_steps += inserted
        self._positions = self._replay.published_rows()
        self._balance.inserted(inserted)
        if self._options.max_staleness is not None:
            self._replay.retire_older_than(self.publisher.version - self._options.max_staleness)
        before = self._granted.copy()
        if self._balance.grant(self._positions, self._granted):
            for index in np.flatnonzero(self._granted != before):
                self._replay.grant(int(index), int(self._granted[index]))
                if self.rings[index].take_waiting():
                    self._wake(int(index))

    def _beta(self) -> float:
        options = self._options
        done = min(1.0, self.inserted_steps / options.total_steps) if options.total_steps else 0.0
        return options.beta_start + done * (options.beta_end - options.beta_start)

    def _update(self, beta: float) -> None:
        batch = self._batch
        self._replay.sample(batch, beta)
        self._staleness.measure(self.publisher.version, batch.version, batch.staleness, batch.weight)
        try:
            result = self.core.update(batch)
        except DeviceFull as error:
            raise out_of_gpu_memory(batch_size=batch.size) from error
        self.updates += 1
        self.publisher.unpublished = True
        self._balance.sampled(batch.size)
        if result.priorities is not None:
            try:
                self._replay.update_priorities(batch.ids, result.priorities)
            except ValueError as error:  # refused whole, so that the tree stays sound
                raise self.divergence.error("the temporal-difference errors", self.updates) from error

    def _batch_arrays(self) -> dict[str, NDArray[np.generic]]:
        names = ("obs", "action", "reward", "discount", "next_obs", "weight")
        return {name: getattr(self._batch, name) for name in names}
