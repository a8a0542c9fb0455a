"""Building of a run from its options: memory, then actors and network in parallel, then the learner over both.

    ring layout ── start actors ──┐
                                  ├── learner ── checkpoint saver ── evaluation schedule
    policy ── make network ───────┘
              (learner's thread)

Every part is pushed on the caller's exit stack as soon as it exists, so that everything is closed after a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.actors.connections import Connections, RequestBlocks
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.interfaces import EnvSpec
from asyncrl.learning.learner import Learner
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.segment_balance import is_exact
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.policies.policy_start import begin_with_policy, policy_to_begin_with
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Algorithm, Updater
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.evaluation_copies import CopiesBySeconds, CopiesBySteps
from asyncrl.run.inference import make_requests, start_server
from asyncrl.run.machine import choose_device, take_own_gpu, warn_of_too_many_threads
from asyncrl.run.parts import RunParts, Setup, pool_plan
from asyncrl.run.reporting import Reporting
from asyncrl.run.restore import restore_parts, restore_rings
from asyncrl.run.run_state import RunCapture, keeps_rows
from asyncrl.run.saving import CheckpointSaver
from asyncrl.run.update_loops import Channels, ReplayBuilder, SegmentBuilder, loop_builder
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.prepare import prepare_quietly
from asyncrl.shm.weights import WeightMailbox
from asyncrl.storage.disk_space import warn_of_little_space


async def build(
    setup: Setup,
    reporting: Reporting,
    stack: contextlib.AsyncExitStack,
    *,
    on_failure: Callable[[BaseException], None],
) -> RunParts:
    """Build all parts in the order of their dependencies; `stack` closes them in reverse.

    Args:
        setup: inputs of the run.
        reporting: shows the actors while they start, and every evaluation.
        stack: owns the parts.
        on_failure: called with the error of an actor or of the inference server that cannot continue.

    Raises:
        AsyncRLError: something does not fit or is not available.
        ValueError: the pace would deadlock.
    """
    config, algorithm, resumed = setup.config, setup.algorithm, setup.group.resumed
    thread = LearnerThread(config.torch_threads)
    stack.callback(thread.close)
    policy, first = algorithm.make_policy(setup.spec), await _first_policy(setup)
    device = choose_device(config.device, policy.weight_count)
    take_own_gpu(device)
    warn_of_too_many_threads(config)
    loop = loop_builder(algorithm, config, setup.spec, setup.group.share[0])
    actor_seed, evaluator_seed, core_seed = map(int, np.random.SeedSequence(config.seed).generate_state(3))
    policy_bytes, layout = pack_policy(policy), loop.ring_layout()
    requests = make_requests(setup, policy, layout, stack)
    plan = pool_plan(setup, policy_bytes, layout, actor_seed, requests)
    connections = _connections(policy.weight_count, requests, stack)
    looks: list[Callable[[], None]] = []
    pool = _pool(setup, plan, connections, on_failure, looks)
    stack.push_async_callback(pool.close)
    if requests is not None:
        server = start_server(setup, requests, pool, connections.mailbox, device, on_failure)
        stack.callback(server.close)
        reporting.builder.inference = server
    if resumed is not None:
        restore_rings(pool, resumed, getattr(algorithm, "segment_rows", 1))
    reporting.describe(pool, policy, is_exact(algorithm))
    evaluator = _evaluator(setup, policy_bytes, evaluator_seed, stack)
    core = await _start(pool, thread, partial(_make_updater, algorithm, setup.spec, device, core_seed, first))
    await _look_at_disk(setup, plan, thread, core, policy.weight_count)
    learner = _learner(setup, loop, core, pool, connections, thread)
    stack.push_async_callback(learner.close)
    looks.append(learner.data_arrived)
    saver, schedule = _records(setup, pool, learner, evaluator, reporting)
    if resumed is not None:
        await restore_parts(learner, schedule, reporting, setup.clock, resumed)
    return RunParts(setup.spec, policy, pool, learner, evaluator, saver, schedule)


def _connections(
    weight_count: int, requests: RequestBlocks | None, stack: contextlib.AsyncExitStack
) -> Connections:
    doorbell, mailbox = Doorbell.create(), WeightMailbox.create(weight_count)
    stack.callback(doorbell.close)
    stack.callback(mailbox.close)
    return Connections(mailbox, doorbell, requests)


def _pool(
    setup: Setup,
    plan: PoolPlan,
    connections: Connections,
    on_failure: Callable[[BaseException], None],
    looks: list[Callable[[], None]],
) -> ActorPool:
    """Make the actors, not started. `looks` check the rings when one dies, as its last signal may be lost."""

    def look(actor: int) -> None:
        for check in looks:
            check()

    return ActorPool(
        setup.server,
        plan,
        connections,
        limits=_limits(setup.config),
        log_of=setup.directory.actor_log,
        on_failure=on_failure,
        on_death=look,
    )


async def _first_policy(setup: Setup) -> PortablePolicy | None:
    """Load the policy of `init_from`, whose weights a new run starts with; None without one or for a resumed run."""
    path = setup.config.init_from
    if path is None or setup.group.resumed is not None:
        return None
    return await asyncio.to_thread(policy_to_begin_with, Path(path), setup.algorithm, setup.spec)


async def _start(pool: ActorPool, thread: LearnerThread, make: Callable[[], Updater]) -> Updater:
    """Start the actors, and in parallel make the network on the learner's thread."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.start(), name="start-actors")
        core = tasks.create_task(thread.call(make), name="make-network")
    return core.result()


async def _look_at_disk(
    setup: Setup, plan: PoolPlan, thread: LearnerThread, core: Any, weight_count: int
) -> None:
    config = setup.config
    if setup.directory.path is None:
        return
    state = await thread.call(core.state_dict)
    keeps = keeps_rows(setup.algorithm, config.save_replay_buffer)
    rows_bytes = plan.layout.nbytes() * config.actors if keeps else 0
    warn_of_little_space(setup.directory.path, config.checkpoints_kept, state, weight_count, rows_bytes)


def _learner(
    setup: Setup,
    loop: ReplayBuilder | SegmentBuilder,
    core: Any,
    pool: ActorPool,
    connections: Connections,
    thread: LearnerThread,
) -> Learner:
    config = setup.config
    snapshots = WeightSnapshots(config.eval_interval_steps if config.eval_interval_seconds is None else None)
    channels = Channels(
        pool.rings,
        connections.mailbox,
        pool.wake,
        snapshots,
        lambda: setup.directory.current,
        setup.group.scheduled_elsewhere,
    )
    built = loop.build(core, channels)
    return Learner(built, connections.doorbell, thread, config.burst_seconds, snapshots)


def _records(
    setup: Setup, pool: ActorPool, learner: Learner, evaluator: RemoteEvaluator, reporting: Reporting
) -> tuple[CheckpointSaver, EvaluationSchedule]:
    config, algorithm, clock = setup.config, setup.algorithm, setup.clock
    where = (setup.spec, setup.source, setup.directory)
    saver = CheckpointSaver(config, algorithm, *where, learner, clock, lambda: reporting.episodes.count)
    saver.on_saved = reporting.callbacks.checkpoint
    copies = (  # by steps the learner's own copies, by seconds its newest weights
        CopiesBySteps(learner.snapshots, clock, learner.data_arrived, setup.group.other_steps)
        if config.eval_interval_seconds is None
        else CopiesBySeconds(config.eval_interval_seconds, learner, clock, setup.group.other_steps)
    )
    notified = (saver.save_best, reporting.evaluated)
    schedule = EvaluationSchedule(config, evaluator, learner, clock, copies, *notified)
    keeps = keeps_rows(algorithm, config.save_replay_buffer)
    captured = (learner, pool, reporting, schedule, clock, algorithm, keeps)
    saver.capture = RunCapture(*captured, others=setup.group.others)
    reporting.schedule = schedule
    return saver, schedule


def _make_updater(
    algorithm: Algorithm, spec: EnvSpec, device: str, seed: int, first: PortablePolicy | None
) -> Any:
    """Make the algorithm's updater, with the weights of `first` if given, and prepare the kernels of its modules."""
    take_own_gpu(device)
    core = algorithm.make_updater(spec, device, seed)
    if first is not None:
        begin_with_policy(core, first)
    prepare_quietly(without=("asyncrl.replay", "asyncrl.shm.requests"))  # `kernels.py` prepares these
    return core


def _evaluator(
    setup: Setup, policy_bytes: bytes, seed: int, stack: contextlib.AsyncExitStack
) -> RemoteEvaluator:
    config = setup.config
    evaluator = RemoteEvaluator(
        setup.server,
        setup.source,
        setup.spec,
        policy_bytes,
        seed=seed,
        limits=_limits(config),
        max_episode_steps=config.eval_max_episode_steps,
    )
    stack.push_async_callback(evaluator.close)
    return evaluator


def _limits(config: TrainerConfig) -> ProcessLimits:
    return ProcessLimits(
        config.step_timeout_seconds, config.ready_timeout_seconds, config.max_restarts, config.max_actor_bytes
    )


@contextlib.contextmanager
def single_error() -> Iterator[None]:
    """Raise the first error of an exception group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
