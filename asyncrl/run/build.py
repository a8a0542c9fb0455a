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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.acting.images import network_text
from asyncrl.acting.policies import has_epsilon
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
from asyncrl.protocols import Algorithm, Policy, Updater
from asyncrl.run.evaluate import EvaluationPlan, EvaluationSchedule
from asyncrl.run.evaluation_copies import CopiesBySeconds, CopiesBySteps
from asyncrl.run.inference import make_requests, start_server
from asyncrl.run.machine import choose_device, take_own_gpu, warn_of_too_many_threads
from asyncrl.run.parts import RunParts, Setup, pool_plan
from asyncrl.run.reporting import Reporting
from asyncrl.run.restore import restore_learner, restore_records, restore_rings
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
    config, algorithm, resumed = setup.config, setup.algorithm, setup.resumed
    thread = LearnerThread(config.torch_threads)
    stack.callback(thread.close)
    policy = algorithm.make_policy(setup.spec)
    first = await _first_policy(setup)
    device = choose_device(config.device, policy.weight_count)
    take_own_gpu(device)
    warn_of_too_many_threads(config)
    loop = loop_builder(algorithm, config, setup.spec, setup.step_limit)
    actor_seed, evaluator_seed, core_seed = map(int, np.random.SeedSequence(config.seed).generate_state(3))
    policy_bytes = pack_policy(policy)
    layout = loop.ring_layout()
    requests = make_requests(setup, policy, layout, stack)
    plan = pool_plan(setup, policy_bytes, layout, actor_seed, requests)
    shared = _shared(setup, plan, policy.weight_count, requests, stack, on_failure)
    pool = shared.pool
    if requests is not None:
        server = start_server(setup, requests, pool, shared.mailbox, device, on_failure)
        stack.callback(server.close)
        reporting.builder.inference = server
    if resumed is not None:
        restore_rings(pool, resumed, getattr(algorithm, "segment_length", 1))
    _show(reporting, pool, plan, policy, algorithm)
    evaluator = _evaluator(setup, policy_bytes, evaluator_seed)
    stack.push_async_callback(evaluator.close)
    core = await _start(pool, thread, partial(_make_updater, algorithm, setup.spec, device, core_seed, first))
    await _look_at_disk(setup, plan, thread, core, policy.weight_count)
    learner = _learner(setup, loop, core, shared, thread)
    saver, schedule = _records(setup, pool, learner, evaluator, reporting)
    if resumed is not None:
        await restore_learner(learner, resumed)
        await restore_records(learner, schedule, reporting, setup.clock, resumed)
    return RunParts(setup.spec, policy, pool, learner, evaluator, saver, schedule)


@dataclass(frozen=True)
class _Shared:
    """Objects shared by the learner's side and the actors.

    Attributes:
        pool: the actors with their rings, not started.
        mailbox: mailbox of the actors' weights.
        doorbell: doorbell that actors ring for the learner.
        looks: called when an actor has died, to check the rings, because its last ring of the doorbell may be lost.
    """

    pool: ActorPool
    mailbox: WeightMailbox
    doorbell: Doorbell
    looks: list[Callable[[], None]]


def _shared(
    setup: Setup,
    plan: PoolPlan,
    weight_count: int,
    requests: RequestBlocks | None,
    stack: contextlib.AsyncExitStack,
    on_failure: Callable[[BaseException], None],
) -> _Shared:
    doorbell, mailbox = Doorbell.create(), WeightMailbox.create(weight_count)
    stack.callback(doorbell.close)
    stack.callback(mailbox.close)
    looks: list[Callable[[], None]] = []
    pool = ActorPool(
        setup.server,
        plan,
        Connections(mailbox, doorbell, requests),
        limits=_limits(setup.config),
        log_dir=setup.directory.actor_logs,
        on_failure=on_failure,
        on_death=lambda _: _call_each(looks),
    )
    stack.push_async_callback(pool.close)
    return _Shared(pool, mailbox, doorbell, looks)


async def _first_policy(setup: Setup) -> PortablePolicy | None:
    """Load the policy of `init_from`, whose weights a new run starts with; None without one or for a resumed run."""
    path = setup.config.init_from
    if path is None or setup.resumed is not None:
        return None
    return await asyncio.to_thread(policy_to_begin_with, Path(path), setup.algorithm, setup.spec)


def _show(
    reporting: Reporting, pool: ActorPool, plan: PoolPlan, policy: Policy, algorithm: Algorithm
) -> None:
    """Give `reporting` the actors, the capacity of the rings and the network's name."""
    reporting.pool, reporting.has_epsilon = pool, has_epsilon(policy)
    held = plan.layout.num_slots * plan.layout.num_envs * plan.num_actors
    reporting.set_parts(held, network_text(policy), is_exact(algorithm))


async def _start(pool: ActorPool, thread: LearnerThread, make: Callable[[], Updater]) -> Updater:
    """Start the actors, and in parallel make the network on the learner's thread."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.start(), name="start-actors")
        core = tasks.create_task(thread.call(make), name="make-network")
    return core.result()


async def _look_at_disk(
    setup: Setup, plan: PoolPlan, thread: LearnerThread, core: Any, weight_count: int
) -> None:
    """Warn if the disk has too little space for the checkpoints."""
    config = setup.config
    if setup.directory.path is None:
        return
    state = await thread.call(core.state_dict)
    keeps = keeps_rows(setup.algorithm, config.save_replay_buffer)
    rows_bytes = plan.layout.nbytes() * config.actors if keeps else 0
    warn_of_little_space(setup.directory.path, config.checkpoints_kept, state, weight_count, rows_bytes)


def _learner(
    setup: Setup, loop: ReplayBuilder | SegmentBuilder, core: Any, shared: _Shared, thread: LearnerThread
) -> Learner:
    """Make the learner over the rings; it also checks them whenever an actor has died."""
    config = setup.config
    snapshots = WeightSnapshots(config.eval_interval_steps if config.eval_interval_seconds is None else None)
    pool = shared.pool
    channels = Channels(pool.rings, shared.mailbox, pool.wake, snapshots, setup.directory.path)
    built = loop.build(core, channels)
    learner = Learner(built, shared.doorbell, thread, config.burst_seconds, snapshots)
    shared.looks.append(learner.data_arrived)
    return learner


def _records(
    setup: Setup, pool: ActorPool, learner: Learner, evaluator: RemoteEvaluator, reporting: Reporting
) -> tuple[CheckpointSaver, EvaluationSchedule]:
    """Make the checkpoint saver and the evaluation schedule."""
    config, algorithm, clock = setup.config, setup.algorithm, setup.clock
    saver = CheckpointSaver(
        config,
        algorithm,
        setup.spec,
        setup.source,
        setup.directory,
        learner,
        clock,
        lambda: reporting.episodes.count,
    )
    saver.on_saved = reporting.callbacks.checkpoint
    schedule = _schedule(setup, evaluator, learner, saver, reporting)
    keeps = keeps_rows(algorithm, config.save_replay_buffer)
    saver.capture = RunCapture(learner, pool, reporting, schedule, clock, algorithm, keeps)
    reporting.schedule = schedule
    return saver, schedule


def _call_each(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


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


def _evaluator(setup: Setup, policy_bytes: bytes, seed: int) -> RemoteEvaluator:
    config = setup.config
    return RemoteEvaluator(
        setup.server,
        setup.source,
        setup.spec,
        policy_bytes,
        seed=seed,
        limits=_limits(config),
        max_episode_steps=config.eval_max_episode_steps,
    )


def _limits(config: TrainerConfig) -> ProcessLimits:
    return ProcessLimits(
        config.step_timeout_seconds, config.ready_timeout_seconds, config.max_restarts, config.max_actor_bytes
    )


def _schedule(
    setup: Setup,
    evaluator: RemoteEvaluator,
    learner: Learner,
    saver: CheckpointSaver,
    reporting: Reporting,
) -> EvaluationSchedule:
    """Make the evaluation schedule: by steps on the learner's copies, or by seconds on its newest weights."""
    config, clock = setup.config, setup.clock
    copies = (
        CopiesBySteps(learner.snapshots, clock, learner.data_arrived, setup.other_steps)
        if config.eval_interval_seconds is None
        else CopiesBySeconds(config.eval_interval_seconds, learner, clock, setup.other_steps)
    )
    plan = EvaluationPlan(
        config.eval_episodes,
        config.target_return,
        config.target_eval_episodes,
        only_stop=config.only_evaluation_stops,
        other_steps=setup.other_steps,
    )
    return EvaluationSchedule(plan, evaluator, learner, clock, copies, saver.save_best, reporting.evaluated)


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
