"""Builders of the update loops: they size the rings and build the loop over them.

    update_loop   rows are                                 class
    replay        sampled in place, repeatedly             `RelaxedReplayLoop`, or `LockstepReplayLoop` in lockstep
    sequences     the same, in sequences                   the same
    segments      taken as segments, in order of arrival   `SegmentLoop`

The algorithm's record holds the name (`Algorithm.update_loop`) and the options that the loop reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.algorithms.r2d2 import R2D2
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import Batch, EnvSpec
from asyncrl.learning.balance import Balance
from asyncrl.learning.lockstep_replay import LockstepBalance, LockstepReplayLoop, quantum_rows
from asyncrl.learning.mirror import ObservationMirror, make_mirror
from asyncrl.learning.relaxed_replay import RelaxedReplayLoop
from asyncrl.learning.replay_loop import ReplayOptions, ReplayParts
from asyncrl.learning.segment_balance import SegmentBalance, SegmentShape
from asyncrl.learning.segment_intake import SegmentOptions
from asyncrl.learning.segment_loop import SegmentLoop, SegmentParts
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import no_steps
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.protocols import Algorithm
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.priority_rules import PriorityRules
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.sequence_replay import SequenceReplay
from asyncrl.run.memory import replay_layout, segment_layout
from asyncrl.sequences import SequenceBatch
from asyncrl.shm.ring import RingLayout, RingReader
from asyncrl.shm.weights import WeightMailbox


@dataclass(frozen=True)
class Channels:
    """Connections between the update loop and the actors.

    Attributes:
        rings: one ring of rows per actor.
        mailbox: mailbox to which weights are published.
        wake: wakes the actor with the given index if it waits for a grant.
        snapshots: queue of weights to evaluate.
        dump_dir: returns the directory for the batch of a diverged update, or None.
        other_steps: returns the steps of other groups that count towards schedules; learner's thread.
    """

    rings: tuple[RingReader, ...]
    mailbox: WeightMailbox
    wake: Callable[[int], None]
    snapshots: WeightSnapshots
    dump_dir: Callable[[], Path | None] = lambda: None
    other_steps: Callable[[], int] = no_steps


class ReplayBuilder:
    """Builder of the loop that samples from replay; its core is a `ReplayUpdater`."""

    def __init__(
        self, algorithm: OffPolicy, config: TrainerConfig, spec: EnvSpec, max_env_steps: int | None
    ) -> None:
        self._algorithm = algorithm
        self._max_env_steps = max_env_steps
        self._config = config
        self._spec = spec

    def ring_layout(self) -> RingLayout:
        """Layout of one actor's ring, which is its share of the replay. Raises `ReplayTooLarge` (ASYNC010)."""
        return replay_layout(self._config, self._algorithm, self._spec)

    def build(self, core: Any, channels: Channels) -> RelaxedReplayLoop | LockstepReplayLoop:
        """Build the loop of the discipline. Raises ValueError for a pace that would deadlock (see `Balance`)."""
        algorithm = self._algorithm
        num_slots = channels.rings[0].layout.num_slots
        parts = self._parts(core, channels)
        if algorithm.discipline == "lockstep":
            return LockstepReplayLoop(parts, self._lockstep_balance(num_slots), algorithm.lockstep_lag)
        balance = Balance(
            samples_per_insert=algorithm.samples_per_insert,
            batch_size=self._samples,
            learning_starts=algorithm.learning_starts,
            num_actors=self._config.actors,
            envs_per_actor=self._config.envs_per_actor,
            num_slots=num_slots,
            error_samples=algorithm.samples_per_insert_error,
            max_env_steps=self._max_env_steps,
        )
        return RelaxedReplayLoop(parts, balance)

    def _parts(self, core: Any, channels: Channels) -> ReplayParts:
        algorithm = self._algorithm
        lockstep = algorithm.discipline == "lockstep"
        options = ReplayOptions(
            beta_start=algorithm.beta_start,
            beta_end=algorithm.beta_end,
            total_steps=self._config.total_steps,
            max_staleness=algorithm.max_staleness,
            publish_interval=None if lockstep else algorithm.publish_interval,
            dump_dir=channels.dump_dir,
            other_steps=channels.other_steps,
        )
        replay = self._replay(channels.rings)
        return ReplayParts(
            core=core,
            replay=replay,
            mailbox=channels.mailbox,
            staleness=StalenessMeter(
                algorithm.staleness_correction, algorithm.staleness_rate, algorithm.max_staleness
            ),
            batch=self._batch(),
            wake=channels.wake,
            options=options,
            snapshots=channels.snapshots,
            mirror=self._mirror(core, replay),
        )

    def _mirror(self, core: Any, replay: RingReplay[Any]) -> ObservationMirror | None:
        algorithm = self._algorithm
        if algorithm.replay_device == "cpu":
            return None
        device = core.vector.parameters.device
        rule = algorithm.seen(self._spec), algorithm.normalize_observations
        return make_mirror(algorithm.replay_device, replay, device, algorithm.batch_size, *rule)

    @property
    def _samples(self) -> int:
        """Number of samples per update."""
        return self._algorithm.batch_size

    def _replay(self, rings: tuple[RingReader, ...]) -> RingReplay[Any]:
        algorithm = self._algorithm
        return PrioritizedReplay(
            rings,
            n_step=algorithm.n_step,
            gamma=algorithm.gamma,
            priorities=PriorityRules(algorithm.alpha, uniform=not algorithm.prioritized),
            frame_stack=algorithm.frame_stack,
            rng=sampling_rng(self._config.seed),
        )

    def _batch(self) -> Batch | SequenceBatch:
        algorithm = self._algorithm
        seen = algorithm.seen(self._spec)
        return Batch.allocate(algorithm.batch_size, seen, algorithm.extra_fields(self._spec))

    def _lockstep_balance(self, num_slots: int) -> LockstepBalance:
        algorithm, config = self._algorithm, self._config
        samples_per_insert = algorithm.samples_per_insert
        assert samples_per_insert is not None, "the record refuses lockstep without samples_per_insert"
        return LockstepBalance(
            samples_per_insert=samples_per_insert,
            batch_size=self._samples,
            learning_starts=algorithm.learning_starts,
            num_actors=config.actors,
            envs_per_actor=config.envs_per_actor,
            rows=quantum_rows(
                samples_per_insert=samples_per_insert,
                batch_size=self._samples,
                streams=config.actors * config.envs_per_actor,
                num_slots=num_slots,
                lag=algorithm.lockstep_lag,
            ),
            max_env_steps=self._max_env_steps,
        )


class SequenceBuilder(ReplayBuilder):
    """Builder of the loop that samples sequences from replay; its core is a `SequenceUpdater`."""

    _algorithm: R2D2

    @property
    def _samples(self) -> int:
        return self._algorithm.batch_size * self._algorithm.sequence_length

    def _replay(self, rings: tuple[RingReader, ...]) -> RingReplay[Any]:
        algorithm = self._algorithm
        return SequenceReplay(
            rings,
            shape=algorithm.sequence_shape,
            priorities=PriorityRules(algorithm.alpha, uniform=not algorithm.prioritized),
            frame_stack=algorithm.frame_stack,
            rng=sampling_rng(self._config.seed),
        )

    def _batch(self) -> SequenceBatch:
        algorithm = self._algorithm
        seen, fields = algorithm.seen(self._spec), algorithm.extra_fields(self._spec)
        return SequenceBatch.allocate(algorithm.batch_size, algorithm.sequence_shape, seen, fields)


class SegmentBuilder:
    """Builder of the loop that takes segments in order of arrival; its core is a `SegmentUpdater`."""

    def __init__(
        self, algorithm: OnPolicy, config: TrainerConfig, spec: EnvSpec, max_env_steps: int | None
    ) -> None:
        self._algorithm = algorithm
        self._max_env_steps = max_env_steps
        self._config = config
        self._spec = spec
        self._segments_per_batch = algorithm.segments_per_batch or config.actors

    def ring_layout(self) -> RingLayout:
        """Layout of one actor's ring, which holds its segments in flight. Raises `ReplayTooLarge` (ASYNC010)."""
        return segment_layout(self._config, self._algorithm, self._spec)

    def build(self, core: Any, channels: Channels) -> SegmentLoop:
        """Build the loop. Raises ValueError for a pace that would deadlock (see `SegmentBalance`)."""
        algorithm = self._algorithm
        options = SegmentOptions(
            discipline=algorithm.discipline,
            segments_per_batch=self._segments_per_batch,
            total_steps=self._config.total_steps,
            max_staleness=algorithm.max_staleness,
            dump_dir=channels.dump_dir,
            other_steps=channels.other_steps,
        )
        parts = SegmentParts(
            core=core,
            queue=SegmentQueue(
                channels.rings, length=algorithm.segment_rows, frame_stack=algorithm.frame_stack
            ),
            balance=self._balance(channels.rings[0].layout.num_slots),
            mailbox=channels.mailbox,
            staleness=StalenessMeter(
                algorithm.row_correction, algorithm.staleness_rate, algorithm.max_staleness, unit="versions"
            ),
            wake=channels.wake,
            options=options,
            snapshots=channels.snapshots,
            past=self._past_segments(),
        )
        return SegmentLoop(parts)

    def _balance(self, num_slots: int) -> SegmentBalance:
        algorithm = self._algorithm
        samples_per_insert = algorithm.samples_per_insert
        assert samples_per_insert is not None, "a segment algorithm has samples_per_insert"
        kept, past_per_batch = algorithm.kept_segments
        past_per_batch = past_per_batch if kept else 0
        config = self._config
        return SegmentBalance(
            SegmentShape(config.actors, config.envs_per_actor, algorithm.segment_rows, num_slots),
            discipline=algorithm.discipline,
            segments_per_batch=self._segments_per_batch,
            queue_batches=algorithm.queue_batches,
            samples_per_insert=samples_per_insert * (1 + past_per_batch / self._segments_per_batch),
            max_env_steps=self._max_env_steps,
        )

    def _past_segments(self) -> PastSegments | None:
        kept, per_batch = self._algorithm.kept_segments
        if not kept:
            return None
        rng = sampling_rng(self._config.seed)
        return PastSegments(kept, per_batch, self._algorithm.max_staleness, rng)


def sampling_rng(seed: int) -> np.random.Generator:
    """Random generator for sampling batches, with its own stream."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])


BUILDERS: Mapping[
    str, Callable[[Any, TrainerConfig, EnvSpec, int | None], ReplayBuilder | SegmentBuilder]
] = {
    "replay": ReplayBuilder,
    "sequences": SequenceBuilder,
    "segments": SegmentBuilder,
}
"""Builder of each loop, by `Algorithm.update_loop`."""


def loop_builder(
    algorithm: Algorithm, config: TrainerConfig, spec: EnvSpec, step_limit: int | None = None
) -> ReplayBuilder | SegmentBuilder:
    """Make the builder of the update loop that `algorithm` names.

    Schedules run over `config.total_steps`, which also limits the environment steps unless `step_limit` is given.
    """
    limit = config.total_steps if step_limit is None else step_limit
    return BUILDERS[algorithm.update_loop](algorithm, config, spec, limit)
