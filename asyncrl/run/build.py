"""Build a run from its options: memory first, then actors and network at the same time, then the learner over both.

    ring layout ── start actors ──┐
                                  ├── learner ── checkpoint saver ── evaluation schedule
    policy ── make network ───────┘
              (learner's thread)

Every part is pushed on the caller's exit stack as soon as it exists, so that a failure half-way leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncrl.acting.images import network_text
from asyncrl.acting.policies import has_epsilon
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.envs.source import EnvSource
from asyncrl.errors import DeviceNotAvailable
from asyncrl.interfaces import EnvSpec
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.segment_balance import is_exact
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.policies.policy_start import begin_with_policy, policy_to_begin_with
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Algorithm, Policy
from asyncrl.run.evaluate import EvaluationPlan, EvaluationSchedule
from asyncrl.run.evaluation_copies import CopiesBySeconds, CopiesBySteps
from asyncrl.run.reporting import Reporting
from asyncrl.run.restore import restore_learner, restore_records, restore_rings
from asyncrl.run.run_state import RunCapture, keeps_rows
from asyncrl.run.saving import CheckpointSaver
from asyncrl.run.threads import warn_of_too_many_threads
from asyncrl.run.update_loops import Channels, loop_builder
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.prepare import prepare_quietly, prepare_run
from asyncrl.shm.weights import WeightMailbox
from asyncrl.storage.disk_space import warn_of_little_space
from asyncrl.storage.resume import Resumption
from asyncrl.storage.run_directory import RunDirectory

GPU_WEIGHTS = 500_000
"""`device="auto"` takes a GPU from this many weights on; below, launching kernels costs more than computing."""


@dataclass(frozen=True)
class Setup:
    """Everything a run is built from.

    Attributes:
        config, algorithm: every option.
        source, spec: the environment, and its spaces.
        directory: where logs, checkpoints and diverged batches go.
        server: forks the actors.
        clock: the training clock.
        resumed: the checkpoint that the run goes on from, or None.
        step_limit: most environment steps, where that is not `config.total_steps` (a group's).
    """

    config: TrainerConfig
    algorithm: Algorithm
    source: EnvSource
    spec: EnvSpec
    directory: RunDirectory
    server: ForkServer
    clock: TrainClock
    resumed: Resumption | None = None
    step_limit: int | None = None


@dataclass(frozen=True)
class RunParts:
    """Parts of a run that is ready to train.

    Attributes:
        spec: the environment's spaces.
        policy: the acting half, with weights of zero.
        pool: the actors, ready and waiting for the first weights.
        learner: not started.
        evaluator: plays greedy episodes in a process of its own; not started.
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


async def prepare_kernels(algorithm: Algorithm) -> None:
    """Load or compile the kernels of the learner's side; cancelled, it ends with the kernel that it is at."""
    without = {"segments": ("asyncrl.replay",), "replay": ("asyncrl.replay.sequence_gather",)}
    cancelled = threading.Event()
    try:
        await asyncio.to_thread(prepare_run, without.get(algorithm.update_loop, ()), cancelled)
    finally:
        cancelled.set()


async def build(
    setup: Setup,
    reporting: Reporting,
    stack: contextlib.AsyncExitStack,
    *,
    on_failure: Callable[[BaseException], None],
) -> RunParts:
    """Build every part in the order of its needs; `stack` closes them in reverse.

    Args:
        setup: what to build from.
        reporting: shows the actors while they start, and every evaluation.
        stack: owns the parts.
        on_failure: called with the error of an actor that cannot go on.

    Raises:
        AsyncRLError: something does not fit or is not available.
        ValueError: a pace that would deadlock.
    """
    config, algorithm, spec = setup.config, setup.algorithm, setup.spec
    thread = LearnerThread(config.torch_threads)
    stack.callback(thread.close)
    policy = algorithm.make_policy(spec)
    first = None
    if config.init_from is not None and setup.resumed is None:
        first = await asyncio.to_thread(policy_to_begin_with, Path(config.init_from), algorithm, spec)
    device = choose_device(config.device, policy.weight_count)
    warn_of_too_many_threads(config)
    loop = loop_builder(algorithm, config, spec, setup.step_limit)
    layout = loop.ring_layout()
    doorbell, mailbox = Doorbell.create(), WeightMailbox.create(policy.weight_count)
    stack.callback(doorbell.close)
    stack.callback(mailbox.close)
    policy_bytes = pack_policy(policy)
    actor_seed, evaluator_seed, core_seed = map(int, np.random.SeedSequence(config.seed).generate_state(3))
    looks: list[Callable[[], None]] = []  # at the rings, when an actor has died: its bell may be lost
    pool = ActorPool(
        setup.server,
        PoolPlan(setup.source, policy_bytes, layout, config.actors, actor_seed),
        mailbox,
        doorbell,
        limits=_limits(config),
        log_dir=setup.directory.actor_logs,
        on_failure=on_failure,
        on_death=lambda _: _call_each(looks),
    )
    stack.push_async_callback(pool.close)
    keeps = keeps_rows(algorithm, config.save_replay_buffer)
    resumed = setup.resumed
    if resumed is not None:
        restore_rings(pool, resumed, getattr(algorithm, "segment_length", 1))
    reporting.pool, reporting.has_epsilon = pool, has_epsilon(policy)
    held = layout.num_slots * layout.num_envs * config.actors
    reporting.set_parts(held, network_text(policy), is_exact(algorithm))
    evaluator = _evaluator(setup, policy_bytes, evaluator_seed)
    stack.push_async_callback(evaluator.close)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.start(), name="start-actors")
        core = tasks.create_task(
            thread.call(lambda: _make_updater(algorithm, spec, device, core_seed, first)), name="make-network"
        )
    if setup.directory.path is not None:
        state = await thread.call(core.result().state_dict)
        rows_bytes = layout.nbytes() * config.actors if keeps else 0
        kept = config.checkpoints_kept
        warn_of_little_space(setup.directory.path, kept, state, policy.weight_count, rows_bytes)
    snapshots = WeightSnapshots(config.eval_interval_steps if config.eval_interval_seconds is None else None)
    channels = Channels(pool.rings, mailbox, pool.wake, snapshots, setup.directory.path)
    learner = Learner(loop.build(core.result(), channels), doorbell, thread, config.burst_seconds, snapshots)
    looks.append(learner.data_arrived)
    saver = CheckpointSaver(
        config,
        algorithm,
        spec,
        setup.source,
        setup.directory,
        learner,
        setup.clock,
        lambda: reporting.episodes.count,
    )
    saver.on_saved = reporting.callbacks.checkpoint
    schedule = _schedule(setup, evaluator, learner, saver, reporting)
    saver.capture = RunCapture(learner, pool, reporting, schedule, setup.clock, algorithm, keeps)
    reporting.schedule = schedule
    if resumed is not None:
        await restore_learner(learner, resumed)
        await restore_records(learner, schedule, reporting, setup.clock, resumed)
    return RunParts(spec, policy, pool, learner, evaluator, saver, schedule)


def _call_each(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _make_updater(
    algorithm: Algorithm, spec: EnvSpec, device: str, seed: int, first: PortablePolicy | None
) -> Any:
    """The algorithm's network, from the weights of `first` on, and optimizer, with the kernels of their modules."""
    core = algorithm.make_updater(spec, device, seed)
    if first is not None:
        begin_with_policy(core, first)
    prepare_quietly(without=("asyncrl.replay",))
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
    return ProcessLimits(config.step_timeout_seconds, config.ready_timeout_seconds, config.max_restarts)


def _schedule(
    setup: Setup,
    evaluator: RemoteEvaluator,
    learner: Learner,
    saver: CheckpointSaver,
    reporting: Reporting,
) -> EvaluationSchedule:
    """The evaluation schedule: by steps on the learner's copies, or by seconds on its newest weights."""
    config, clock = setup.config, setup.clock
    copies = (
        CopiesBySteps(learner.snapshots, clock, learner.data_arrived)
        if config.eval_interval_seconds is None
        else CopiesBySeconds(config.eval_interval_seconds, learner, clock)
    )
    plan = EvaluationPlan(
        config.eval_episodes,
        config.target_return,
        config.target_eval_episodes,
        only_stop=config.only_evaluation_stops,
        groups=config.groups,
    )
    return EvaluationSchedule(plan, evaluator, learner, clock, copies, saver.save_best, reporting.evaluated)


def choose_device(asked: str, weight_count: int) -> str:
    """`"cpu"` or `"cuda"`.

    Raises:
        DeviceNotAvailable: a GPU was asked for and torch has none; it never falls back silently (ASYNC016).
    """
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise DeviceNotAvailable(
            "device cuda was asked for and torch sees no GPU",
            facts={"asked": "cuda", "torch": torch.__version__, "built for CUDA": torch.version.cuda or "no"},
            fix="use device cpu or auto, or install a torch built for your GPU's CUDA",
        )
    if asked == "auto":
        return "cuda" if available and weight_count >= GPU_WEIGHTS else "cpu"
    return asked


@contextlib.contextmanager
def single_error() -> Iterator[None]:
    """Raise the first error of a task group in place of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
