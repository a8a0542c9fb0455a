"""Training on replay, common to all disciplines: ingest rows, sample a batch, update, write priorities."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.interfaces import Batch, SequenceBatch, ValuePairs
from asyncrl.learning.divergence import DeviceFull, out_of_gpu_memory
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.mirror import ObservationMirror
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import LoopOptions, Priorities, UpdateLoop
from asyncrl.learning.what_is_shown import realised_return
from asyncrl.networks.flat_vector import Drawn
from asyncrl.protocols import ReplayUpdater, SequenceUpdater
from asyncrl.replay.policy_replays import PolicyBatch, PolicyReplays
from asyncrl.replay.replay_state import priorities_of, restore_empty_replay, restore_replay
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.saved_state import generator_state, restore, restore_generator, saved
from asyncrl.shm.ring import RingReader
from asyncrl.shm.weights import WeightMailbox

MOST_PAIRS = 64
"""Most transitions of a batch whose values are compared with realised returns, at a report."""
TIMED_UPDATES = 64
"""Every 64th update is timed, by its number."""


class PolicyLagMeter(Histogram):
    """Distribution of the policy lag over environment steps; learner thread only.

        lag of a step = u - u_i      u: updates made when the step is received,
                                     u_i: updates when the weights that acted were published

    It is measured once per environment step, when the step is received. So policy lag is the age of the acting policy,
    whereas staleness is the age of the samples trained on, which is large in a replay by design.
    """

    STATE = (*Histogram.STATE, "_seen")

    def __init__(self, rings: Sequence[RingReader]) -> None:
        super().__init__("async/policy_lag")
        self._rings = tuple(rings)
        self._seen = np.zeros(len(self._rings), np.int64)

    def receive(self, published: NDArray[np.int64], updates: int) -> None:
        """Count the rows published since the last call, each once for every environment, however many agents it has.

        Args:
            published: int64 `[N]`, number of rows of each ring received so far.
            updates: u.
        """
        if not np.count_nonzero(published != self._seen):
            return
        for ring, start, stop in zip(self._rings, self._seen.tolist(), published.tolist(), strict=True):
            slots = ring.num_slots
            first, end = start & (slots - 1), stop - start + (start & (slots - 1))
            for rows in (slice(first, min(end, slots)), slice(0, max(0, end - slots))):
                if rows.stop > rows.start:
                    self.add(updates, ring.policy_updates[rows], ring.environments)
        self._seen[:] = published


class ReplayLoop(UpdateLoop):
    """Base of the update loops on replay; subclasses define when rows are ingested, granted and trained on.

    Args:
        algorithm: options of the pace, staleness, importance weights and publication.
        replay: rows and priorities, of transitions or sequences, or of several policies, like core and batch.
        batch: arrays into which batches are gathered.
        core: network, optimiser and loss.
        mailbox: mailbox for published weights.
        mirror: observations on the learner's device; None if batches are gathered on the CPU.
        run: see `LoopOptions`.

    Raises:
        ValueError: the pace would deadlock (see `Balance`).
    """

    STATE = (*UpdateLoop.STATE, "_positions", "_ever_sampleable")
    core: ReplayUpdater | SequenceUpdater
    policy_lag: PolicyLagMeter

    def __init__(
        self,
        algorithm: OffPolicy,
        replay: RingReplay[Any] | PolicyReplays,
        batch: Batch | SequenceBatch | PolicyBatch,
        core: ReplayUpdater | SequenceUpdater,
        mailbox: WeightMailbox,
        *,
        mirror: ObservationMirror | None = None,
        **run: Unpack[LoopOptions],
    ) -> None:
        self._algorithm, self._mirror = algorithm, mirror
        self._discount = discount_of(algorithm)
        # `PolicyReplays` has all methods that are used without groups, mirror and value pairs.
        self._replay: RingReplay[Any] = replay  # type: ignore[assignment]
        self._batch: Any = batch  # of the type used by replay and core
        super().__init__(
            core,
            replay,
            mailbox,
            staleness=StalenessMeter(
                algorithm.staleness_correction, algorithm.staleness_rate, algorithm.max_staleness
            ),
            policy_lag=PolicyLagMeter(replay.rings),
            interval=None if algorithm.exact else algorithm.publish_interval,
            **run,
        )
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

    @property
    def stored_steps(self) -> int:
        """See `UpdateLoop`."""
        return int(self._replay.stored_steps / self.rings[0].layout.trained_agents)

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
        algorithm, progress = self._algorithm, self._progress_at(self.inserted_steps)
        return algorithm.beta_start + progress * (algorithm.beta_end - algorithm.beta_start)

    def _update(self, beta: float) -> None:
        """Make one update; publish if `publish_interval` updates are unpublished."""
        started = time.perf_counter()
        batch = self._batch
        batch.progress = self._progress_at(self.inserted_steps)
        self._replay.sample(batch, beta)
        if self._vector is not None and self._vector.on_step is not None:
            priority, largest_weight = self._replay.drawn(batch, beta)
            self._vector.drawn = Drawn(priority, largest_weight)
        if self._mirror is not None:
            self._mirror.locate(batch)
        self.staleness.measure(self.updates, self.publisher.version, self._replay.acted(batch))
        timed = self.updates % TIMED_UPDATES == 0
        sampled = time.perf_counter() if timed else 0.0
        try:
            result = self.core.update(batch)
        except DeviceFull as error:
            raise out_of_gpu_memory(error, batch_size=batch.size) from error
        learned = time.perf_counter() if timed else 0.0
        self.pace.sampled(batch.reward.size)
        if result.priorities is not None:
            try:
                self._replay.update_priorities(batch.ids, result.priorities)
            except ValueError as error:  # nothing was written, so the tree is valid
                raise self.divergence.error("the temporal-difference errors", self.updates + 1) from error
        ended = time.perf_counter()
        if timed:
            self.times.add(sample=sampled - started, learn=learned - sampled, priorities=ended - learned)
        self.publisher.updated(ended - started)

    def value_pairs(self) -> ValuePairs | None:
        """See `UpdateLoop`; None for sequences, relabelled goals, and algorithms without values of their batch.

        Demonstrations are left out: their rows are in a ring of their own.
        """
        if not isinstance(self._batch, Batch) or self._algorithm.n_sampled_goal:
            return None
        values_of = getattr(self.core, "values_of", None)
        values = values_of(self._batch.action) if values_of is not None and self.updates else None
        if values is None or len(values) != self._batch.size:  # of joint rows there is one for each agent
            return None
        predicted, realised = [], []
        ids = self._replay.acted(self._batch).ids[:MOST_PAIRS]
        for row_id, value in zip(ids.tolist(), values.tolist(), strict=False):
            ring, position, stream = self._replay.place_of(row_id)
            followed = realised_return(self.rings[ring], position, stream, self._discount)
            if followed is not None:
                predicted.append(value)
                realised.append(followed)
        return ValuePairs(tuple(predicted), tuple(realised))

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
            self._held[:] = self._granted > [ring.granted for ring in self.rings]
        if self._mirror is not None:  # before the first grant, which waits until these rows are copied
            self._mirror.follow(self._positions)

    def _restore_without_rows(self, state: Mapping[str, Any]) -> None:
        self.inserted_steps = state["loop"]["inserted_steps"]
        self._granted[:] = self._positions[:] = [ring.published() for ring in self.rings]
        restore(self.policy_lag, {**state["policy_lag"], "seen": self._positions})
        restore_empty_replay(self._replay, state["replay"])


def discount_of(algorithm: Any) -> float:
    """Discount per step of a record; of one of ours also before a run has chosen it."""
    return float(getattr(algorithm, "discount", algorithm.gamma))
