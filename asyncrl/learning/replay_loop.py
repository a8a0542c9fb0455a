"""Training on replay, common to all disciplines: ingest rows, sample a batch, update, write priorities."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.interfaces import Batch, SequenceBatch
from asyncrl.learning.divergence import DeviceFull, Divergence, out_of_gpu_memory
from asyncrl.learning.mirror import ObservationMirror
from asyncrl.learning.pace import Pace
from asyncrl.learning.policy_lag import PolicyLagMeter
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import Priorities, UpdateLoop, no_steps
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.networks.flat_vector import Drawn, FlatVector
from asyncrl.protocols import ReplayUpdater, SequenceUpdater
from asyncrl.replay.replay_state import priorities_of, restore_empty_replay, restore_replay
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.saved_state import generator_state, restore, restore_generator, saved
from asyncrl.shm.weights import WeightMailbox


class ReplayLoop(UpdateLoop):
    """Base of the update loops on replay; subclasses define when rows are ingested, granted and trained on.

    Args:
        algorithm: options of the pace, staleness, importance weights and publication.
        replay: rows and priorities, of transitions or sequences like core and batch.
        batch: arrays into which batches are gathered.
        core: network, optimiser and loss.
        mailbox: mailbox for published weights.
        wake: called with the index of a waiting actor that was granted rows.
        snapshots: queue of weights to evaluate.
        total_steps: environment steps over which schedules run, or None.
        max_env_steps: environment steps at which the run ends, or None.
        other_steps: returns the steps of other groups that count towards `total_steps`; learner's thread.
        dump_dir: returns the directory for the batch of a diverged update, or None.
        mirror: observations on the learner's device; None if batches are gathered on the CPU.

    Raises:
        ValueError: the pace would deadlock (see `Balance`).
    """

    STATE = (*UpdateLoop.STATE, "_positions", "_ever_sampleable")
    core: ReplayUpdater | SequenceUpdater
    policy_lag: PolicyLagMeter

    def __init__(
        self,
        algorithm: OffPolicy,
        replay: RingReplay[Any],
        batch: Batch | SequenceBatch,
        core: ReplayUpdater | SequenceUpdater,
        mailbox: WeightMailbox,
        *,
        wake: Callable[[int], None],
        snapshots: WeightSnapshots,
        total_steps: int | None = None,
        max_env_steps: int | None = None,
        other_steps: Callable[[], int] = no_steps,
        dump_dir: Callable[[], Path | None] = lambda: None,
        mirror: ObservationMirror | None = None,
    ) -> None:
        self._algorithm, self._replay, self._mirror = algorithm, replay, mirror
        self._batch: Any = batch  # of the type used by replay and core
        self._total_steps, self._other_steps = total_steps, other_steps
        super().__init__(
            core,
            replay,
            mailbox,
            pace=self._make_pace(max_env_steps),
            staleness=StalenessMeter(
                algorithm.staleness_correction, algorithm.staleness_rate, algorithm.max_staleness
            ),
            policy_lag=PolicyLagMeter(replay.rings),
            divergence=Divergence(dump_dir, self._batch_arrays),
            interval=None if algorithm.exact else algorithm.publish_interval,
            wake=wake,
            snapshots=snapshots,
        )
        self._vector: FlatVector | None = getattr(core, "vector", None)
        self._positions = np.zeros(len(self.rings), np.int64)
        self._ever_sampleable = False
        self._held = np.zeros(len(self.rings), np.bool_)
        if mirror is not None:
            assert isinstance(batch, Batch)
            batch.source = mirror

    def close(self) -> None:
        """See `UpdateLoop`."""
        if self._mirror is not None:
            self._mirror.close()

    @abstractmethod
    def _make_pace(self, max_env_steps: int | None) -> Pace:
        """Balance of the discipline for the algorithm's options and the rings of the replay."""

    @property
    def stored_steps(self) -> int:
        """See `UpdateLoop`."""
        return self._replay.stored_steps // self.rings[0].layout.spec.num_agents

    @property
    def discarded_steps(self) -> int:
        """See `UpdateLoop`."""
        return self._replay.discarded_steps

    def _give_up(self, index: int) -> None:
        self._replay.give_up(index)

    def _ingest(self) -> None:
        """Ingest published rows and retire stale ones."""
        self._check_rings()
        inserted = self._replay.ingest()
        self.inserted_steps += inserted
        self._positions = self._replay.published_rows()
        if self._mirror is not None:
            self._mirror.follow(self._positions)
        self.policy_lag.receive(self._positions, self.updates)
        self.pace.inserted(inserted)
        if self._algorithm.max_staleness is not None:
            self._replay.retire_older_than(self.updates - self._algorithm.max_staleness)
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
            self._grant_ring(ring)

    def _grant_held(self) -> None:
        """Grant rows whose grants waited for copies that are finished now."""
        if np.count_nonzero(self._held):
            self._grant(self._granted)

    def _trainable(self) -> bool:
        """Retire rows that have become too stale; return whether a row can be sampled. Called before every update."""
        if self._algorithm.max_staleness is not None:
            self._replay.retire_older_than(self.updates - self._algorithm.max_staleness)
        return self._replay.sampleable > 0

    def _beta(self) -> float:
        algorithm = self._algorithm
        return algorithm.beta_start + self._progress() * (algorithm.beta_end - algorithm.beta_start)

    def _progress(self) -> float:
        total = self._total_steps
        return min(1.0, (self.inserted_steps + self._other_steps()) / total) if total else 0.0

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
        self.staleness.measure(self.updates, self.publisher.version, batch)
        try:
            result = self.core.update(batch)
        except DeviceFull as error:
            raise out_of_gpu_memory(error, batch_size=batch.size) from error
        self.pace.sampled(batch.reward.size)
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

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def priorities(self) -> NDArray[np.float32]:
        """See `UpdateLoop`."""
        return priorities_of(self._replay)

    def state_dict(self) -> dict[str, Any]:
        """See `UpdateLoop`."""
        replay = self._replay
        return {
            **super().state_dict(),
            "replay": saved(replay),
            "generator": generator_state(replay._rng),
        }

    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        restore_generator(self._replay._rng, state["generator"])
        if priorities is None:
            self._restore_without_rows(state)
        else:
            restore(self, state["loop"])
            restore(self.policy_lag, state["policy_lag"])
            restore_replay(self._replay, state["replay"], priorities)
        if self._mirror is not None:  # before the first grant, which waits until these rows are copied
            self._mirror.follow(self._positions)

    def _restore_without_rows(self, state: Mapping[str, Any]) -> None:
        self.inserted_steps = state["loop"]["inserted_steps"]
        self._granted[:] = self._positions[:] = [ring.published() for ring in self.rings]
        restore(self.policy_lag, {**state["policy_lag"], "seen": self._positions})
        restore_empty_replay(self._replay, state["replay"])
