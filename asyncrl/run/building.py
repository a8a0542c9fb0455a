"""From options to a run that stands ready: memory first, then actors and network at the same time.

    reserve memory ─ start actors ─┐
                                   ├─ learner
    build network (its thread) ────┘

Whatever is made is pushed on the caller's exit stack at once, so that a failure half-way leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.pool import ActorPool
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import Algorithm, EnvSpec, Policy
from asyncrl.learning.learner import Learner, LearnerThread
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.run.assembly import choose_device, ring_layout, warn_of_too_many_threads
from asyncrl.run.config import TrainerConfig
from asyncrl.run.disk_space import warn_of_little_space
from asyncrl.run.learner_parts import LearnerParts
from asyncrl.run.run_directory import RunDirectory
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.weights import WeightMailbox


@dataclass(frozen=True)
class Blueprint:
    """What to build.

    Attributes:
        config, algorithm: every option.
        source, spec: the environment, and what it looks like.
        directory: where logs and diverged batches go.
        server: forks the actors.
    """

    config: TrainerConfig
    algorithm: Algorithm
    source: EnvSource
    spec: EnvSpec
    directory: RunDirectory
    server: ForkServer


@dataclass(frozen=True)
class RunParts:
    """What was built.

    Attributes:
        policy: the acting half, with weights of zero.
        pool: the actors, ready and waiting for the first weights.
        learner: ready to run.
        evaluator: not started.
        snapshots: copies of weights to evaluate; the learner fills it, the evaluation schedule empties it.
        capacity_steps: environment steps that all rings hold.
    """

    policy: Policy
    pool: ActorPool
    learner: Learner
    evaluator: RemoteEvaluator
    snapshots: WeightSnapshots
    capacity_steps: int


async def build(
    blueprint: Blueprint,
    stack: contextlib.AsyncExitStack,
    *,
    on_failure: Callable[[BaseException], None],
    on_death: Callable[[], None],
    on_pool: Callable[[ActorPool], None],
) -> RunParts:
    """Build everything in the order of its needs; `stack` takes it down in reverse.

    Args:
        blueprint: what to build.
        stack: owns what is built.
        on_failure: called with the error of an actor that cannot go on.
        on_death: called when an actor has died, before it is started again.
        on_pool: called with the pool before its actors start, so that they can be shown.

    Raises:
        AsyncRLError: whatever does not fit or is not there.
        ValueError: a pace that would deadlock.
    """
    config, algorithm, spec = blueprint.config, blueprint.algorithm, blueprint.spec
    thread = LearnerThread(config.torch_threads)
    stack.callback(thread.close)
    policy = algorithm.make_policy(spec)
    device = choose_device(config.device, policy.weight_count)
    warn_of_too_many_threads(config)
    layout = ring_layout(config, algorithm, spec)
    doorbell, mailbox = Doorbell.create(), WeightMailbox.create(policy.weight_count)
    stack.callback(doorbell.close)
    stack.callback(mailbox.close)
    policy_bytes = pickle.dumps(policy)
    actor_seed, evaluator_seed, core_seed = np.random.SeedSequence(config.seed).generate_state(3)
    pool = ActorPool(
        blueprint.server,
        blueprint.source,
        layout,
        policy_bytes,
        num_actors=config.actors,
        seed=int(actor_seed),
        mailbox=mailbox,
        doorbell=doorbell,
        step_timeout_seconds=config.step_timeout_seconds,
        ready_timeout_seconds=config.ready_timeout_seconds,
        max_restarts=config.max_restarts,
        log_dir=blueprint.directory.actor_logs,
        on_failure=on_failure,
        on_death=lambda _: on_death(),
    )
    stack.push_async_callback(pool.close)
    on_pool(pool)
    evaluator = RemoteEvaluator(
        blueprint.server,
        blueprint.source,
        spec,
        policy_bytes,
        seed=int(evaluator_seed),
        max_restarts=config.max_restarts,
        ready_timeout_seconds=config.ready_timeout_seconds,
        step_timeout_seconds=config.step_timeout_seconds,
        max_episode_steps=config.eval_max_episode_steps,
    )
    stack.push_async_callback(evaluator.close)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.start(), name="start-actors")
        core = tasks.create_task(
            thread.call(lambda: algorithm.make_core(spec, device, int(core_seed))), name="build-network"
        )
    if blueprint.directory.path is not None:
        state = await thread.call(core.result().state_dict)
        warn_of_little_space(blueprint.directory.path, config.checkpoints_kept, state, policy.weight_count)
    snapshots = WeightSnapshots(config.eval_interval_steps if config.eval_interval_seconds is None else None)
    parts = LearnerParts(
        config, algorithm, spec, device, core.result(), pool.rings, mailbox, doorbell, thread, pool.wake,
        blueprint.directory.path, snapshots=snapshots,
    )  # fmt: skip
    capacity = layout.num_slots * layout.num_envs * config.actors
    return RunParts(policy, pool, parts.learner(), evaluator, snapshots, capacity)


@contextlib.contextmanager
def single_error() -> Iterator[None]:
    """A task group's errors leave as the first of them, whose traceback says the rest."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
