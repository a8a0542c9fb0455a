"""Two records: the inputs that a run is built from, and the parts that it consists of. And the plan of its actors."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.actors.connections import RequestBlocks
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import EnvSpec
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.protocols import Algorithm, Policy
from asyncrl.run.alone import Alone
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.group_shares import actor_indices
from asyncrl.run.grouped import Group
from asyncrl.run.saving import CheckpointSaver
from asyncrl.shm.ring import RingLayout
from asyncrl.storage.run_directory import RunDirectory


@dataclass(frozen=True)
class Setup:
    """Inputs that a run is built from.

    Attributes:
        config, algorithm: every option.
        source, spec: the environment, and its spaces.
        directory: where logs, checkpoints and diverged batches are written.
        server: forks the actors.
        clock: the training clock.
        group: this group, with the checkpoint to resume from.
    """

    config: TrainerConfig
    algorithm: Algorithm
    source: EnvSource
    spec: EnvSpec
    directory: RunDirectory
    server: ForkServer
    clock: TrainClock
    group: Group | Alone


@dataclass(frozen=True)
class RunParts:
    """Parts of a run that is ready to train.

    Attributes:
        spec: the environment's spaces.
        policy: the acting half, with weights of zero.
        pool: the actors, ready and waiting for the first weights.
        learner: not started.
        evaluator: plays greedy episodes in its own process; not started.
        saver: writes checkpoints.
        schedule: evaluates copies of the weights during training.
    """

    spec: EnvSpec
    policy: Policy
    pool: ActorPool
    learner: Learner
    evaluator: RemoteEvaluator
    saver: CheckpointSaver
    schedule: EvaluationSchedule


def pool_plan(
    setup: Setup, policy_bytes: bytes, layout: RingLayout, seed: int, requests: RequestBlocks | None
) -> PoolPlan:
    """Plan common to all actors of this group.

    Args:
        setup: inputs of the run.
        policy_bytes: packed policy.
        layout: layout of a ring.
        seed: seed of the actors.
        requests: request blocks of the inference server, None without one.
    """
    actors, served = setup.config.actors, None if requests is None else requests.layout
    _, rank, groups = setup.group.share
    among = actor_indices(rank, groups, actors) if groups > 1 else None
    return PoolPlan(setup.source, policy_bytes, layout, actors, seed, served, among)
