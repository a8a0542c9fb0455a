"""Training on replay, common to all disciplines: ingest rows, sample a batch, update, write priorities."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import Batch
from asyncrl.learning.divergence import DeviceFull, Divergence, out_of_gpu_memory
from asyncrl.learning.mirror import ObservationMirror
from asyncrl.learning.pace import Pace
from asyncrl.learning.policy_lag import PolicyLagMeter
from asyncrl.learning.publication import Publisher
from asyncrl.learning.quarantine import Quarantine
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import LoopStatistics
from asyncrl.learning.weight_snapshots import SnapshotWriter, WeightSnapshots
from asyncrl.networks.flat_vector import Drawn, FlatVector
from asyncrl.protocols import ReplayUpdater, SequenceUpdater
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.sequences import SequenceBatch
from asyncrl.shm.weights import WeightMailbox


@dataclass(frozen=True)
class ReplayOptions:
    """Options of training on replay.

    Attributes:
        beta_start, beta_end: exponent of importance weights, linear over `total_steps` (constant without).
        total_steps: steps over which schedules run, or None.
        max_staleness: maximum staleness of a sample, in updates, or None.
        publish_interval: updates between two publications, `auto`, or None if the discipline decides.
        dump_dir: directory for the batch of a diverged update, or None.
    """

    beta_start: float
    beta_end: float
    total_steps: int | None
    max_staleness: int | None
    publish_interval: int | Literal["auto"] | None
    dump_dir: Path | None = None


@dataclass(frozen=True)
class ReplayParts:
    """Parts of training on replay.

    Attributes:
        core: network, optimiser and loss.
        replay: rows and priorities, of transitions or sequences like core and batch.
        mailbox: mailbox for published weights.
        staleness: meter and correction of staleness.
        batch: arrays into which batches are gathered.
        wake: called with the index of a waiting actor that was granted rows.
        options: options of training.
        snapshots: queue of weights to evaluate.
        mirror: observations on the learner's device; None if batches are gathered on the CPU.
    """

    core: ReplayUpdater | SequenceUpdater
    replay: RingReplay[Any]
    mailbox: WeightMailbox
    staleness: StalenessMeter
    batch: Batch | SequenceBatch
    wake: Callable[[int], None]
    options: ReplayOptions
    snapshots: WeightSnapshots
    mirror: ObservationMirror | None = None


class ReplayLoop:
    """Base of the update loops on replay; learner thread only.

    Subclasses define when rows are ingested, granted and trained on. See `UpdateLoop` for the attributes.
    """

    STATE: ClassVar[tuple[str, ...]] = ("inserted_steps", "_granted", "_positions", "_ever_sampleable")

    def __init__(self, parts: ReplayParts, pace: Pace) -> None:
        options = parts.options
        self.core = parts.core
        self.rings = parts.replay.rings
        self.divergence = Divergence(options.dump_dir, self._batch_arrays)
        self.publisher = Publisher(
            parts.core,
            parts.mailbox,
            lambda what: self.divergence.error(what, self.updates),
            options.publish_interval,
        )
        self.inserted_steps = 0
        self._vector: FlatVector | None = getattr(parts.core, "vector", None)
        self._replay = parts.replay
        self._pace = pace
        self._staleness = parts.staleness
        self._batch: Any = parts.batch  # of the type used by replay and core
        self._wake = parts.wake
        self._options = options
        self._copies = SnapshotWriter(parts.snapshots, self.publisher)
        self._policy_lag = PolicyLagMeter(self.rings)
        self._granted = np.zeros(len(self.rings), np.int64)
        self._positions = np.zeros(len(self.rings), np.int64)
        self._ever_sampleable = False
        self._mirror, self._held = parts.mirror, np.zeros(len(self.rings), np.bool_)
        if parts.mirror is not None:
            assert isinstance(parts.batch, Batch)
            parts.batch.source = parts.mirror
        self._quarantine = Quarantine(
            self.rings,
            self._replay.give_up,
            lambda index: self._replay.begin_again(index, int(self._granted[index])),
        )

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self.publisher.updates

    def statistics(self) -> LoopStatistics:
        """See `UpdateLoop.statistics`."""
        replay = self._replay.statistics()
        return LoopStatistics(
            balance=self._pace.statistics(),
            staleness=self._staleness,
            policy_lag=self._policy_lag,
            stored_steps=replay.sampleable,
            discarded_steps=replay.discarded_stale,
        )

    def _ingest(self) -> None:
        """Ingest published rows and retire stale ones."""
        self._quarantine.check()
        inserted = self._replay.ingest()
        self.inserted_steps += inserted
        self._positions = self._replay.published_rows()
        if self._mirror is not None:
            self._mirror.follow(self._positions)
        self._policy_lag.receive(self._positions, self.updates)
        self._pace.inserted(inserted)
        if self._options.max_staleness is not None:
            self._replay.retire_older_than(self.updates - self._options.max_staleness)
        self._ever_sampleable = self._ever_sampleable or self._replay.sampleable > 0

    def _grant(self, before: NDArray[np.int64]) -> None:
        """Grant rows up to `_granted` to rings where it differs from `before`, and wake waiting actors.

        A ring with a fault gets its grant when it is restarted; a ring whose rows are still being copied to the
        learner's device gets it by a later call of `_grant_held`. Its rows are retired now, so that samples do not
        depend on the duration of a copy.
        """
        for index in np.flatnonzero((self._granted != before) | self._held):
            ring, granted = int(index), int(self._granted[index])
            if self.rings[ring].fault:
                continue
            oldest = granted - self.rings[ring].num_slots
            self._held[ring] = self._mirror is not None and not self._mirror.is_safe(ring, oldest)
            if self._held[ring]:
                self._replay.retire(ring, granted)
                continue
            with contextlib.suppress(RingCorrupt):
                self._replay.grant(ring, granted)
            if self.rings[ring].take_waiting():
                self._wake(ring)

    def _grant_held(self) -> None:
        """Grant rows whose grants waited for copies that are finished now."""
        if np.count_nonzero(self._held):
            self._grant(self._granted)

    def _trainable(self) -> bool:
        """Retire rows that have become too stale; return whether a row can be sampled. Called before every update."""
        if self._options.max_staleness is not None:
            self._replay.retire_older_than(self.updates - self._options.max_staleness)
        return self._replay.sampleable > 0

    def _copy_due(self) -> bool:
        """Whether a copy of the weights for evaluation is due."""
        return self._copies.due(self.inserted_steps)

    def _beta(self) -> float:
        options = self._options
        return options.beta_start + self._progress() * (options.beta_end - options.beta_start)

    def _progress(self) -> float:
        total = self._options.total_steps
        return min(1.0, self.inserted_steps / total) if total else 0.0

    def _update(self, beta: float) -> None:
        """Make one update; publish if `publish_interval` updates are unpublished."""
        started = time.perf_counter()
        batch = self._batch
        batch.progress = self._progress()
        self._replay.sample(batch, beta)
        if self._vector is not None and self._vector.on_step is not None:
            self._vector.drawn = Drawn(*self._replay.drawn(batch, beta))
        if self._mirror is not None:
            self._mirror.locate(batch)
        self._staleness.measure(self.updates, self.publisher.version, batch)
        try:
            result = self.core.update(batch)
        except DeviceFull as error:
            raise out_of_gpu_memory(error, batch_size=batch.size) from error
        self._pace.sampled(batch.reward.size)
        if result.priorities is not None:
            try:
                self._replay.update_priorities(batch.ids, result.priorities)
            except ValueError as error:  # nothing was written, so the tree is valid
                raise self.divergence.error("the temporal-difference errors", self.updates + 1) from error
        self.publisher.updated(time.perf_counter() - started)

    def _batch_arrays(self) -> dict[str, NDArray[np.generic]]:
        arrays = {name: value for name, value in vars(self._batch).items() if isinstance(value, np.ndarray)}
        if self._mirror is not None:
            arrays |= self._mirror.arrays(self._batch)
        return arrays | dict(self._batch.extras)
