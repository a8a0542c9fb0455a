"""The learner, built from its parts once rings and network exist: one function for each way to consume rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from asyncrl.interfaces import (
    Algorithm,
    Batch,
    Core,
    EnvSpec,
    LearnerCore,
    ReplayAlgorithm,
    SegmentAlgorithm,
    SegmentCore,
)
from asyncrl.learning.balance import Balance
from asyncrl.learning.consumption import Consumption
from asyncrl.learning.learner import Learner, LearnerThread
from asyncrl.learning.replay_learning import ReplayLearning
from asyncrl.learning.replay_lockstep import LockstepBalance, LockstepReplay, quantum_rows
from asyncrl.learning.replay_updates import ReplayOptions, ReplayParts
from asyncrl.learning.segment_balance import SegmentBalance
from asyncrl.learning.segment_learning import SegmentLearning, SegmentOptions
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.run.config import TrainerConfig
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.ring import RingReader
from asyncrl.shm.weights import WeightMailbox


@dataclass
class LearnerParts:
    """What a learner is built from.

    Attributes:
        config, algorithm, spec: the run.
        device: where the network lives.
        core: the network; a `LearnerCore` or a `SegmentCore`, as the algorithm consumes.
        rings: one per actor.
        mailbox: where weights are published.
        doorbell: what actors ring.
        thread: the learner's thread.
        wake: wakes an actor that waits for a grant.
        dump_dir: where a diverged batch is saved, or None.
        snapshots: weights to evaluate.
    """

    config: TrainerConfig
    algorithm: Algorithm
    spec: EnvSpec
    device: str
    core: Core
    rings: tuple[RingReader, ...]
    mailbox: WeightMailbox
    doorbell: Doorbell
    thread: LearnerThread
    wake: Callable[[int], None]
    dump_dir: Path | None
    snapshots: WeightSnapshots

    def learner(self) -> Learner:
        """The learner with its consumption, balance and staleness meter.

        Raises:
            ValueError: a pace that would deadlock (see `Balance`, `SegmentBalance`).
        """
        by_replay = self.algorithm.consumption == "replay"
        consumption: Consumption = self._from_replay() if by_replay else self._from_segments()
        return Learner(consumption, self.doorbell, self.thread, self.config.burst_seconds, self.snapshots)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.config.seed).spawn(1)[0])

    def _from_replay(self) -> ReplayLearning | LockstepReplay:
        algorithm, config = cast(ReplayAlgorithm, self.algorithm), self.config
        lockstep = algorithm.discipline == "lockstep"
        replay = PrioritizedReplay(
            self.rings,
            n_step=algorithm.n_step,
            gamma=algorithm.gamma,
            alpha=algorithm.alpha,
            uniform=not algorithm.prioritized,
            rng=self._rng(),
        )
        parts = ReplayParts(
            core=cast(LearnerCore, self.core),
            replay=replay,
            mailbox=self.mailbox,
            staleness=StalenessMeter(
                algorithm.staleness_correction, algorithm.staleness_rate, algorithm.max_staleness
            ),
            batch=Batch.allocate(algorithm.batch_size, self.spec, algorithm.extra_fields(self.spec)),
            wake=self.wake,
            options=ReplayOptions(
                beta_start=algorithm.beta_start,
                beta_end=algorithm.beta_end,
                total_steps=config.total_steps,
                max_staleness=algorithm.max_staleness,
                publish_interval=None if lockstep else algorithm.publish_interval,
                dump_dir=self.dump_dir,
            ),
            snapshots=self.snapshots,
        )
        if lockstep:
            return LockstepReplay(parts, self._lockstep_balance(algorithm), algorithm.lockstep_lag)
        balance = Balance(
            samples_per_insert=algorithm.samples_per_insert,
            batch_size=algorithm.batch_size,
            learning_starts=algorithm.learning_starts,
            num_actors=config.actors,
            envs_per_actor=config.envs_per_actor,
            num_slots=self.rings[0].layout.num_slots,
            error_samples=algorithm.samples_per_insert_error,
            max_env_steps=config.total_steps,
        )
        return ReplayLearning(parts, balance)

    def _lockstep_balance(self, algorithm: ReplayAlgorithm) -> LockstepBalance:
        sigma = algorithm.samples_per_insert
        assert sigma is not None, "lockstep says how often a step is trained on"
        return LockstepBalance(
            samples_per_insert=sigma,
            batch_size=algorithm.batch_size,
            learning_starts=algorithm.learning_starts,
            num_actors=self.config.actors,
            envs_per_actor=self.config.envs_per_actor,
            rows=quantum_rows(
                samples_per_insert=sigma,
                batch_size=algorithm.batch_size,
                streams=self.config.actors * self.config.envs_per_actor,
                num_slots=self.rings[0].layout.num_slots,
                lag=algorithm.lockstep_lag,
            ),
            max_env_steps=self.config.total_steps,
        )

    def _from_segments(self) -> SegmentLearning:
        algorithm, config = cast(SegmentAlgorithm, self.algorithm), self.config
        per_batch = algorithm.segments_per_batch or config.actors
        past = None
        if algorithm.past_segments:
            past = PastSegments(
                algorithm.past_segments, algorithm.past_per_batch, algorithm.max_staleness, self._rng()
            )
        sigma = algorithm.samples_per_insert
        assert sigma is not None, "a segment algorithm says how often it uses a fresh step"
        balance = SegmentBalance(
            discipline=algorithm.discipline,
            num_rings=config.actors,
            envs_per_actor=config.envs_per_actor,
            length=algorithm.segment_length,
            num_slots=self.rings[0].layout.num_slots,
            segments_per_batch=per_batch,
            queue_batches=algorithm.queue_batches,
            samples_per_insert=sigma
            * (1 + (algorithm.past_per_batch if past is not None else 0) / per_batch),
            max_env_steps=config.total_steps,
        )
        return SegmentLearning(
            core=cast(SegmentCore, self.core),
            queue=SegmentQueue(self.rings, length=algorithm.segment_length),
            balance=balance,
            mailbox=self.mailbox,
            staleness=StalenessMeter(
                algorithm.row_correction, algorithm.staleness_rate, algorithm.max_staleness, unit="versions"
            ),
            wake=self.wake,
            options=SegmentOptions(
                discipline=algorithm.discipline,
                segments_per_batch=per_batch,
                total_steps=config.total_steps,
                max_staleness=algorithm.max_staleness,
                dump_dir=self.dump_dir,
            ),
            snapshots=self.snapshots,
            past=past,
        )
