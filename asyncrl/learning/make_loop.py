"""The update loop of an algorithm over the actors' rings.

    update_loop   rows are                                 class
    replay        sampled in place, repeatedly             `RelaxedReplayLoop`, or `LockstepReplayLoop` in lockstep
    sequences     the same, in sequences                   the same
    segments      taken as segments, in order of arrival   `SegmentLoop`

The algorithm's record holds the name (`Algorithm.update_loop`) and the options that the loop reads.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from asyncrl.config import TrainerConfig
from asyncrl.interfaces import Batch, EnvSpec, SequenceBatch
from asyncrl.learning.lockstep_replay import LockstepReplayLoop
from asyncrl.learning.mirror import ObservationMirror, make_mirror
from asyncrl.learning.relaxed_replay import RelaxedReplayLoop
from asyncrl.learning.segment_loop import SegmentLoop
from asyncrl.learning.update_loop import RunOptions, UpdateLoop
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.priority_rules import PriorityRules
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.sequence_replay import SequenceReplay
from asyncrl.shm.ring import RingReader
from asyncrl.shm.weights import WeightMailbox


def make_loop(
    algorithm: Any,
    config: TrainerConfig,
    spec: EnvSpec,
    core: Any,
    rings: tuple[RingReader, ...],
    mailbox: WeightMailbox,
    **run: Unpack[RunOptions],
) -> UpdateLoop:
    """Make the update loop that `algorithm.update_loop` names, over all rings.

    Args:
        algorithm: record of the algorithm, with the options that the loop reads.
        config: options of the run.
        spec: the environment.
        core: the algorithm's updater.
        rings: one ring of rows per actor.
        mailbox: mailbox to which weights are published.
        run: see `RunOptions`.

    Raises:
        ValueError: the pace would deadlock (see `Balance` and `SegmentBalance`).
    """
    rng = np.random.default_rng(np.random.SeedSequence(config.seed).spawn(1)[0])
    if algorithm.update_loop == "segments":
        queue = SegmentQueue(rings, length=algorithm.segment_rows, frame_stack=algorithm.frame_stack)
        kept, per_batch = algorithm.kept_segments
        past = PastSegments(kept, per_batch, algorithm.max_staleness, rng) if kept else None
        return SegmentLoop(algorithm, queue, core, mailbox, past=past, **run)
    replay, batch = _replay_of(algorithm, spec, rings, rng)
    mirror = mirror_of(algorithm, spec, core, replay)
    loop = LockstepReplayLoop if algorithm.exact else RelaxedReplayLoop
    return loop(algorithm, replay, batch, core, mailbox, mirror=mirror, **run)


def _replay_of(
    algorithm: Any, spec: EnvSpec, rings: tuple[RingReader, ...], rng: np.random.Generator
) -> tuple[RingReplay[Any], Batch | SequenceBatch]:
    """Replay of transitions or sequences, and a batch for what it samples."""
    priorities = PriorityRules(algorithm.alpha, uniform=not algorithm.prioritized)
    seen, fields = algorithm.stacked_spec(spec), algorithm.extra_fields(spec)
    if algorithm.update_loop == "sequences":
        shape = algorithm.sequence_shape
        replay = SequenceReplay(
            rings, shape=shape, priorities=priorities, frame_stack=algorithm.frame_stack, rng=rng
        )
        return replay, SequenceBatch.allocate(algorithm.batch_size, shape, seen, fields)
    transitions = PrioritizedReplay(
        rings,
        n_step=algorithm.n_step,
        gamma=algorithm.gamma,
        priorities=priorities,
        frame_stack=algorithm.frame_stack,
        rng=rng,
    )
    return transitions, Batch.allocate(algorithm.batch_size, seen, fields)


def mirror_of(algorithm: Any, spec: EnvSpec, core: Any, replay: RingReplay[Any]) -> ObservationMirror | None:
    """Observations on the learner's device, for the option `replay_device`."""
    if algorithm.replay_device == "cpu":
        return None
    return make_mirror(
        algorithm.replay_device,
        replay,
        core.vector.parameters.device,
        algorithm.batch_size,
        algorithm.stacked_spec(spec),
        algorithm.normalize_observations,
    )
