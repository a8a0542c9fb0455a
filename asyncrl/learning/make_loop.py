"""The update loop of an algorithm over the actors' rings.

    update_loop   rows are                                 class
    replay        sampled in place, repeatedly             `RelaxedReplayLoop`, or `LockstepReplayLoop` in lockstep
    sequences     the same, in sequences                   the same
    joint         the same, rows of all agents, or their   the same
                  sequences (`sequence_shape`)
    segments      taken as segments, in order of arrival   `SegmentLoop`
    dataset       those of a dataset, without any actor    `DatasetLoop`

Several policies of the agents have a replay each (`PolicyReplays`) and otherwise the same loops. The algorithm's
record holds the name (`Algorithm.update_loop`) and the options that the loop reads.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Unpack

import numpy as np

from asyncrl.acting.agent_policies import own_record
from asyncrl.config import TrainerConfig
from asyncrl.envs.goals import GoalRewards
from asyncrl.interfaces import (
    AgentPolicy,
    Batch,
    EnvSpec,
    JointBatch,
    JointSequenceBatch,
    SequenceBatch,
)
from asyncrl.learning.dataset_loop import DatasetLoop
from asyncrl.learning.lockstep_replay import LockstepReplayLoop
from asyncrl.learning.mirror import ObservationMirror, make_mirror
from asyncrl.learning.relaxed_replay import RelaxedReplayLoop
from asyncrl.learning.replay_loop import discount_of
from asyncrl.learning.segment_loop import SegmentLoop
from asyncrl.learning.update_loop import LoopOptions, UpdateLoop
from asyncrl.replay.dataset_replay import DatasetReplay, MixedReplay
from asyncrl.replay.hindsight import Hindsight
from asyncrl.replay.joint_replay import JointReplay
from asyncrl.replay.joint_sequence_replay import JointSequenceReplay
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.policy_replays import PolicyBatch, PolicyReplays
from asyncrl.replay.replay import PrioritizedOptions, PrioritizedReplay
from asyncrl.replay.ring_replay import RingReplay, RingReplayOptions, TransitionOptions
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
    goal_rewards: GoalRewards | None = None,
    dataset: RingReader | None = None,
    **run: Unpack[LoopOptions],
) -> UpdateLoop:
    """Make the update loop that `algorithm.update_loop` names, over all rings.

    Args:
        algorithm: record of the algorithm, with the options that the loop reads.
        config: options of the run.
        spec: the environment.
        core: the algorithm's updater.
        rings: one ring of rows per actor.
        mailbox: mailbox to which weights are published.
        goal_rewards: rewards of goals, where the algorithm relabels them.
        dataset: ring of the dataset, or of the demonstrations; None without any.
        run: see `LoopOptions`.

    Raises:
        ValueError: the pace would deadlock (see `Balance` and `SegmentBalance`).
    """
    rng, shown_rng = map(np.random.default_rng, np.random.SeedSequence(config.seed).spawn(2))
    if algorithm.update_loop == "dataset":
        assert dataset is not None
        of_dataset = DatasetReplay(dataset, **_transitions(algorithm, rng))
        drawn = Batch.allocate(algorithm.batch_size, algorithm.stacked_spec(spec))
        return DatasetLoop(of_dataset, drawn, core, mailbox, **run)
    if algorithm.update_loop == "segments":
        queue = SegmentQueue(rings, length=algorithm.segment_rows, frame_stack=algorithm.frame_stack)
        kept, per_batch, newest = algorithm.kept_segments
        past = PastSegments(kept, per_batch, algorithm.max_staleness, rng, newest) if kept else None
        return SegmentLoop(algorithm, queue, core, mailbox, past=past, **run)
    demonstrations = None
    if dataset is not None:
        demonstrations = DatasetReplay(dataset, **_transitions(algorithm, shown_rng, goal_rewards))
    loop = LockstepReplayLoop if algorithm.exact else RelaxedReplayLoop
    if spec.policies:
        replays, batches = _replays_of(algorithm, spec, rings, rng)
        return loop(algorithm, replays, batches, core, mailbox, **run)
    fraction = config.demonstration_fraction
    replay, batch = _replay_of(algorithm, spec, rings, rng, goal_rewards, demonstrations, fraction)
    mirror = mirror_of(algorithm, spec, core, replay)
    try:
        return loop(algorithm, replay, batch, core, mailbox, mirror=mirror, **run)
    except BaseException:
        if mirror is not None:
            mirror.close()  # CUDA refuses to register the next run's memory at these addresses
        raise


def _replays_of(
    algorithm: Any, spec: EnvSpec, rings: tuple[RingReader, ...], rng: np.random.Generator
) -> tuple[PolicyReplays, PolicyBatch]:
    """Replays of several policies, each of transitions or sequences, and batches for what they sample."""
    row = dataclasses.replace(spec, agents=(), policies=())

    def make(views: tuple[Any, ...], policy: AgentPolicy) -> RingReplay[Any]:
        replay, batch = _replay_of(own_record(algorithm, policy), row, views, rng)
        batches.append(batch)
        return replay

    batches: list[Batch | SequenceBatch] = []
    replays = PolicyReplays(rings, spec.policies, make, rng)
    return replays, PolicyBatch(spec.policies, batches)


def _replay_of(
    algorithm: Any,
    spec: EnvSpec,
    rings: tuple[RingReader, ...],
    rng: np.random.Generator,
    goal_rewards: GoalRewards | None = None,
    demonstrations: DatasetReplay | None = None,
    fraction: float = 0.0,
) -> tuple[RingReplay[Any], Batch | SequenceBatch]:
    """Replay of transitions or sequences, of single or all agents, and a batch for what it samples.

    The last items of every batch, `fraction` of it, are drawn from `demonstrations`.
    """
    options = _options(algorithm, rng)
    seen, fields = algorithm.stacked_spec(spec), algorithm.extra_fields(spec)
    shape, states = algorithm.sequence_shape, rings[0].layout.state_values
    if algorithm.update_loop == "joint" and shape is not None:
        of_team = JointSequenceReplay(rings, shape=shape, **options)
        return of_team, JointSequenceBatch.allocate(algorithm.batch_size, shape, seen, fields, states)
    if algorithm.update_loop == "joint":
        steps: TransitionOptions = {**options, "n_step": algorithm.n_step, "gamma": discount_of(algorithm)}
        joint = JointReplay(rings, of_team=algorithm.team_reward, **steps)
        return joint, JointBatch.allocate(algorithm.batch_size, seen, fields, states)
    if algorithm.update_loop == "sequences":
        replay = SequenceReplay(rings, shape=shape, **options)
        return replay, SequenceBatch.allocate(algorithm.batch_size, shape, seen, fields)
    transitions = _transitions(algorithm, rng, goal_rewards)
    batch = Batch.allocate(algorithm.batch_size, seen, fields)
    if demonstrations is not None:
        return MixedReplay(rings, demonstrations, fraction, **transitions), batch
    return PrioritizedReplay(rings, **transitions), batch


def _options(algorithm: Any, rng: np.random.Generator) -> RingReplayOptions:
    """Options of every replay."""
    alpha = algorithm.alpha if algorithm.prioritized else None
    return {"alpha": alpha, "frame_stack": algorithm.frame_stack, "rng": rng}


def _transitions(
    algorithm: Any, rng: np.random.Generator, goal_rewards: GoalRewards | None = None
) -> PrioritizedOptions:
    """Options of a replay of transitions."""
    hindsight = None
    if goal_rewards is not None:
        hindsight = Hindsight(
            goal_rewards,
            n_sampled_goal=algorithm.n_sampled_goal,
            strategy=algorithm.goal_selection_strategy,
            n_step=algorithm.n_step,
            gamma=discount_of(algorithm),
        )
    return {
        **_options(algorithm, rng),
        "n_step": algorithm.n_step,
        "gamma": discount_of(algorithm),
        "hindsight": hindsight,
    }


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
        bool(algorithm.normalize_observations),
    )
