"""One run on its event loop: `build`, `train`, `end`. Whoever reads this file from top to bottom sees a run's life.

    build   page ─ probe ─ rings ─┬─ start actors ─┬─ learner ─ evaluations, checkpoints ─ restore
                                  └─ make network ─┘
                               (learner's thread)
    train   learner | stopping rules | reports | evaluations | checkpoints
    end     learner stopped ─ its last report ─ checkpoint ─ final evaluation ─ summary ─ last snapshot shown
    close   everything that was built, in reverse

A run ends at `total_steps`, `max_seconds`, a confirmed `target_return`, `target_training_return`, `stop`, or an error.
Its end has the same steps in the same order, whether it succeeded or failed. The checkpoint comes before everything
that can fail or take long, and the summary before page, terminal and metrics show the end, so that whoever sees it
finds the summary. A step that fails gives a warning, or the run's error if there is none yet; the next step follows.
Every step has a time limit. A request to stop ends only the evaluation.

No code here touches a row or computes a gradient.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import make_policy
from asyncrl.acting.images import network_text
from asyncrl.acting.network_policy import is_served
from asyncrl.acting.policies import has_epsilon
from asyncrl.actors.connections import Connections, RequestBlocks
from asyncrl.actors.descriptors import require_descriptors
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.actors.probe import probe
from asyncrl.actors.processes import require_processes
from asyncrl.actors.statistics import over_actors
from asyncrl.algorithms import agent_policies
from asyncrl.algorithms.agent_policies import check_agents
from asyncrl.algorithms.policy_options import with_policy_options
from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.config import TrainerConfig
from asyncrl.envs.checks import require_same_spaces
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.envs.goals import GoalRewards, goal_rewards, goals_text
from asyncrl.envs.observations import unread_text
from asyncrl.errors import (
    AsyncRLError,
    FilesNotWritten,
    ResourceError,
    StoppedWhileStarting,
    TextLeftOut,
    TrainingDiverged,
    describe_error,
    error_text,
    single_error,
    warn,
)
from asyncrl.interfaces import EnvSpec, SelfPlay
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.inference_server import InferenceServer, request_layout, start_server
from asyncrl.learning.learner import Learner, LearnerReport
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.make_loop import make_loop
from asyncrl.learning.ring_sizes import ring_layout, self_play_of
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.options import option_values
from asyncrl.policies.policy_start import begin_with_policy, policy_to_begin_with
from asyncrl.policies.portable_policy import BestPolicy, PolicyOrigin, PortablePolicy, final_rate
from asyncrl.protocols import Algorithm, Policy, Updater
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.env_kwargs import EnvKwargsChanges
from asyncrl.run.episode_window import Ratings
from asyncrl.run.evaluate import EvaluationFilms, EvaluationSchedule
from asyncrl.run.grouped import Alone, Group
from asyncrl.run.logged import LoggedMetrics
from asyncrl.run.machine import (
    ResourceMeter,
    choose_device,
    require_float32,
    take_own_gpu,
    warn_of_too_many_threads,
)
from asyncrl.run.reporting import Reporter
from asyncrl.run.result import TrainResult
from asyncrl.run.saving import CheckpointSaver, restore_rings
from asyncrl.run.slow_stop import warned_of_slow_stop, within_limit
from asyncrl.run.summary import COMPLETE, send_summary, summarize, without_secrets
from asyncrl.run.switching import fast_switching, frozen_objects
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.past_weights import PastWeights
from asyncrl.shm.prepare import prepare_quietly, prepare_run
from asyncrl.shm.ring import RingLayout, RingReader
from asyncrl.shm.weights import WeightMailbox
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.storage.checkpoint import CheckpointMeta, refused_if_damaged
from asyncrl.storage.checkpoint_meta import PolicyWeights
from asyncrl.storage.config_file import options_by_table
from asyncrl.storage.disk_space import warn_of_file
from asyncrl.storage.run_directory import DirectoryLost, RunDirectory, refuse_unwritable
from asyncrl.storage.run_files import write_run_files

TOKEN_BYTES = 15
"""Random bytes of the page's token. They make 20 characters, so that the address fits 50 columns."""
WATCH_SECONDS = 0.02
"""Interval at which the stopping rules are checked."""
ALONE_SECONDS = 5.0
"""Longest time for which the page waits for the probe of the environment, whose mistakes are then told alone."""
STOP_SECONDS = 60.0
"""Time limit for a stopped run to finish building, so that it has a policy; an interrupt ends it at once."""

SHOWN_OPTIONS = ("algo", "env", "seed", *COMPLETE)
"""Options that a snapshot has too."""


class Run:
    """One run; made and used on the run's event-loop thread.

    Args:
        group: this process's group of the run, or the only one.
        server: a fork server that is already starting; it is closed with the run.
        on_snapshot: called on the loop thread with every new snapshot.
        started: `time.monotonic()` at which wall and start-up time begin; None is now.
        trainer, callbacks: the user's callbacks, and their first argument.
        logged: the numbers that the user logs.
        probing: a probe of the environment that has begun; None begins one.

    Attributes:
        whole_config, whole_algorithm: options of the whole run.
        config, algorithm, source, resumed: those of this group.
        built: whether `build` has returned, so that the parts exist.
        spec: the environment's spaces, once it was probed.
        policy: the acting half, with weights of zero.
        pool: the actors.
        learner: trains.
        evaluator: plays greedy episodes in its own process.
        films: films evaluations in processes of their own; None without `eval_film`.
        schedule: evaluates copies of the weights during training.
        saver: writes checkpoints, and restores one.
        env_kwargs: changes of the training environments' keyword arguments.
        url: address of the live page, None if none is served.
        page_url: the same with the token in its fragment.
        result: the result, also of a failed run; None before the end, or if there are no weights.

    Raises:
        ConfigurationError: the run directory cannot be used.
    """

    spec: EnvSpec
    policy: Policy
    thread: LearnerThread
    mailbox: WeightMailbox
    doorbell: Doorbell
    pool: ActorPool
    resources: ResourceMeter
    inference: InferenceServer | None
    evaluator: RemoteEvaluator
    films: EvaluationFilms | None
    learner: Learner
    schedule: EvaluationSchedule
    origin: PolicyOrigin
    saver: CheckpointSaver

    def __init__(
        self,
        group: Group | Alone,
        server: ForkServer,
        on_snapshot: Callable[[Snapshot], None],
        *,
        started: float | None = None,
        trainer: Any = None,
        callbacks: Sequence[Any] = (),
        logged: LoggedMetrics | None = None,
        probing: asyncio.Task[EnvSpec] | None = None,
    ) -> None:
        own, self.group, self.built = group.job, group, False
        self.whole_config, self.whole_algorithm = group.whole.config, group.whole.algorithm
        self.config, self.algorithm, self.source = own.config, own.algorithm, own.source
        self.resumed = own.resumed
        self.url: str | None = None
        self.page_url: str | None = None
        self.result: TrainResult | None = None
        self.clock = TrainClock(created=started)
        self.directory = RunDirectory(
            own.config.run_dir, own.config.checkpoints_kept, own.resumed is not None
        )
        run_dir = self.whole_config.run_dir
        self._run_dir = Path(run_dir).absolute() if run_dir else None  # the working directory may change
        self.callbacks = Callbacks(trainer, callbacks, self.stop, self.fail)
        exact = own.algorithm.exact
        self.reporter = Reporter(
            own.config, self.clock, on_snapshot, self.callbacks, exact=exact, logged=logged
        )
        self.env_kwargs = EnvKwargsChanges(own, server, self.directory, self.fail)
        self._server, self._probing = server, probing
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._stop_requested, self._interrupted = asyncio.Event(), asyncio.Event()
        self._target_weights: NDArray[np.float32] | None = None
        self._learned = LearnerReport()  # the last one

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; the first reason counts. Loop thread only."""
        if reason in ("stopped", "interrupted"):
            self._stop_requested.set()
        if reason == "interrupted":
            self._interrupted.set()
        if not self._ended.done():
            self._ended.set_result(reason)
            self.group.tell_stop(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with `error`. Loop thread only."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def set_env_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Change keyword arguments of the training environments for episodes that begin from now on. Loop thread only.

        Raises:
            RuntimeError: the run does not train now, or has several groups, or is repeatable and this is no event whose
                step is the same in every run.
            ValueError: it has no training environments.
            TypeError: a value is not a Python literal.
        """
        if isinstance(self.group, Group):
            raise RuntimeError(
                f"set_env_kwargs works in runs of one group, got groups={self.whole_config.groups}"
            )
        if not self.built:
            raise RuntimeError(
                "set_env_kwargs works while the run trains; give Trainer(env_kwargs=...) before it"
            )
        if not self.config.actors:
            raise ValueError(
                f"set_env_kwargs needs training environments, and {self.config.algo} learns from a dataset"
            )
        if self.algorithm.exact and self.callbacks.event not in ("on_start", "on_evaluation"):
            raise RuntimeError(
                f"with discipline={self.learner.discipline!r} set_env_kwargs is called in on_start or on_evaluation: "
                "at any other time equal runs would change at different steps"
            )
        self.env_kwargs.set(kwargs, self.spec)

    def write_logged(self) -> None:
        """Write what `on_end` has logged to the metric files."""
        self.reporter.close()

    def kill(self) -> None:
        """Kill every process of the run at once; any thread, also a signal handler."""
        self._server.kill()

    async def run(self) -> TrainResult:
        """Build, train, end and close. Raises the error that ended the run, if any."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(fast_switching())
                stack.enter_context(warned_of_slow_stop(self._stop_requested, lambda: self.directory.current))
                reason, error = await self._build_and_train(stack)
                try:
                    self.result, error = await self.end(reason, error)
                except Exception as failed:  # it must not mask the error that ended the run
                    error = error or failed
                    self.reporter.show_state("failed", stop_reason="failed", error=describe_error(error))
                if error is not None:
                    raise error
            assert self.result is not None
            return self.result
        finally:
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # an error that came after the one that ended the run
            self.directory.remove("http.json")
            self.built = False
            for part in Run.__annotations__:  # frees the rings too, even if this object lives on
                vars(self).pop(part, None)
            self.reporter.close()
            self.directory.close()

    async def _build_and_train(self, stack: contextlib.AsyncExitStack) -> tuple[str, BaseException | None]:
        """Build and train; returns the stop reason, and the error that ended training or None."""
        try:
            await self._build_unless_stopped(stack)
            stack.enter_context(frozen_objects())
            self.callbacks.start()
            return await self.train(), None
        except (asyncio.CancelledError, StoppedWhileStarting) as error:
            return "interrupted", error
        except BaseException as error:
            self.group.tell_failure(error)
            return "failed", error

    # --- build -------------------------------------------------------------------------------------------------------

    async def _build_unless_stopped(self, stack: contextlib.AsyncExitStack) -> None:
        """Build, unless `fail` is called, whose error is raised, or `stop`.

        Raises `StoppedWhileStarting` if the run is interrupted or killed, or stopped and not built within
        `STOP_SECONDS`.
        """
        building = asyncio.create_task(self.build(stack), name="build")
        interrupted = asyncio.create_task(self._interrupted.wait(), name="interrupted")
        try:
            await asyncio.wait((building, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not building.done() and self._ended.result() != "interrupted":
                either = building, interrupted
                await asyncio.wait(either, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not building.done():
                raise StoppedWhileStarting(
                    "The run was stopped while it started; it leaves no policy.",
                    facts={"after": f"{self.clock.startup_seconds:.1f} s"},
                )
            if building.exception() is not None and self._server.killed:
                raise StoppedWhileStarting(
                    "The run was killed while it started; it leaves no policy."
                ) from building.exception()
            building.result()
        finally:
            interrupted.cancel()
            building.cancel()
            await asyncio.gather(building, interrupted, return_exceptions=True)

    async def build(self, stack: contextlib.AsyncExitStack) -> None:
        """Build all parts in the order of their dependencies.

        `stack` gets every part as soon as it exists, and closes them in reverse, also after a failure.

        Raises:
            AsyncRLError: something does not fit or is not available.
            ValueError: the pace would deadlock.
        """
        stack.callback(self._server.close)
        stack.push_async_callback(self.env_kwargs.close)
        self._begin_to_probe(stack)
        require_float32()
        require_descriptors(self.config.actors)
        require_processes(self.config.actors)
        if self.resumed is not None:
            with refused_if_damaged(self.resumed.path):
                trained, startup, wall = self.resumed.run["clock"]
                self.clock.go_on_from(trained, startup, wall)
        await self._hear_of_mistakes()
        await self._serve_page(stack)
        self.reporter.show(self.snapshot())
        with single_error():
            self.spec = await self._probe()
        if self.resumed is not None:
            first = self.resumed.meta.spec
            require_same_spaces(first, self.spec)
            # Its weights belong to its scaling of bytes.
            self.spec = dataclasses.replace(self.spec, observation_kind=first.observation_kind)
        self.reporter.episodes.agents = tuple(agent.name for agent in self.spec.agents)
        self.reporter.episodes.policies = self.spec.policies
        envs = self.spec.vector_envs or self.whole_config.envs
        self.config, self.whole_config = (
            dataclasses.replace(config, envs_per_actor=envs) for config in (self.config, self.whole_config)
        )
        self.whole_algorithm = _for_run(self.whole_algorithm, self.whole_config, self.spec)
        share = self.group.share(self.algorithm, self.whole_algorithm)
        self.algorithm = _for_run(share, self.config, self.spec)
        if self.resumed is None:
            self._write_options()
        with single_error():
            await self._make_parts(stack)
        stack.push_async_callback(self.group.leave)
        await self.group.attach(self.learner, self.stop, self.fail)
        if self.resumed is not None:  # everything fits, so the files of the last end may be replaced
            self._write_options()
        self.built = True

    def _begin_to_probe(self, stack: contextlib.AsyncExitStack) -> None:
        if self._probing is None:
            probing = probe(self._server, self.source, self.config.ready_timeout_seconds)
            self._probing = asyncio.create_task(probing, name="probe")
        stack.push_async_callback(ended, self._probing)

    async def _hear_of_mistakes(self) -> None:
        """Wait a moment for the probe: a mistake in the environment is told before the page's address.

        Raises what `probe` raises, or `SpacesDoNotFit` if the algorithm cannot act in the environment (ASYNC005).
        """
        assert self._probing is not None
        await asyncio.wait((self._probing,), timeout=ALONE_SECONDS)
        if self._probing.done():
            await self._probed()

    async def _probed(self) -> EnvSpec:
        """The spaces. Raises what `probe` raises, or `SpacesDoNotFit` if the algorithm cannot act there (ASYNC005)."""
        assert self._probing is not None
        spec = with_policy_options(await self._probing, self.config.policy_options)
        check_agents(self.algorithm, spec)
        return spec

    async def _serve_page(self, stack: contextlib.AsyncExitStack) -> None:
        """Serve the live page, unless `http` is off, until `stack` closes it; its address is in `http.json`."""
        if self.config.http == "off":
            return
        # Imported here because it imports aiohttp, which a run without a page does not need.
        from asyncrl.server.run_server import RunServer

        async def save_checkpoint() -> str:
            return await self.saver.save_on_request() if self.built else ""

        token = secrets.token_urlsafe(TOKEN_BYTES)
        server = RunServer(
            snapshot=self.reporter.current,
            config=lambda: without_secrets(options_by_table(self.whole_config, self.whole_algorithm)),
            stop=lambda: self.stop("stopped"),
            checkpoint=save_checkpoint,
            ready=lambda: self.built and self.learner.inserted_steps > 0,
            film=lambda: self.films.path if self.built and self.films is not None else None,
            host=self.config.host,
            port=0 if self.config.http == "auto" else int(self.config.http),
            token=token,
        )
        await server.start()
        stack.push_async_callback(server.close)
        if self.directory.path is not None:
            page = json.dumps({"url": server.url, "pid": os.getpid(), "token": token})
            with refuse_unwritable(self.directory.path):
                self.directory.write_bytes("http.json", f"{page}\n".encode(), mode=0o600)
        self.url, self.page_url = server.url, f"{server.url}/#token={token}"

    async def _probe(self) -> EnvSpec:
        """Wait for the probe, and check that the algorithm can act there; meanwhile prepare the learner's kernels.

        Meanwhile the fork server, which both tasks wait for, loads or compiles the actors' kernels. Nothing is printed
        before the check: its error is printed alone. Raises an `ExceptionGroup` of the errors of both tasks.
        """
        algorithm = self.algorithm
        sequences, joint = "asyncrl.replay.sequence_replay", "asyncrl.replay.joint_replay"
        joint_sequences = "asyncrl.replay.joint_sequence_replay"
        of_team = joint if getattr(algorithm, "sequence_shape", None) is not None else joint_sequences
        replay = {
            "segments": ("asyncrl.replay",),
            "replay": (sequences, joint, joint_sequences),
            "sequences": (joint, joint_sequences),
            "joint": (sequences, of_team),
        }
        without: tuple[str, ...] = replay.get(algorithm.update_loop, ())
        if not is_served(algorithm):
            without += ("asyncrl.shm.requests",)
        cancelled, checked = threading.Event(), threading.Event()

        async def check() -> EnvSpec:
            spec = await self._probed()
            for _, level in self.source.levels:
                require_same_spaces(spec, await probe(self._server, level, self.config.ready_timeout_seconds))
            checked.set()
            if spec.unread:
                warn(TextLeftOut(f"[ASYNC047] {spec.name}: {unread_text(spec)}"))
            return spec

        try:
            async with asyncio.TaskGroup() as tasks:
                preparing = asyncio.to_thread(prepare_run, without, cancelled, checked)
                tasks.create_task(preparing, name="prepare-kernels")
                probing = tasks.create_task(check(), name="probe")
        finally:
            cancelled.set()  # the thread ends after its current kernel
        return probing.result()

    def _write_options(self) -> None:
        """Write the run's options and machine, and open its metric files, if it has a directory."""
        if self.directory.path is not None:
            with refuse_unwritable(self.directory.path):
                resumed = self.resumed.record() if self.resumed is not None else None
                write_run_files(self.directory, self.whole_config, self.whole_algorithm, self.source, resumed)
                self.reporter.open_files(self.directory)

    async def _make_parts(self, stack: contextlib.AsyncExitStack) -> None:
        """Make memory, then actors and network in parallel, then the learner over both."""
        config, algorithm, spec = self.config, self.algorithm, self.spec
        seeds = map(int, np.random.SeedSequence(config.seed).generate_state(3))
        actor_seed, evaluator_seed, core_seed = seeds
        self.thread = LearnerThread(config.torch_threads)
        stack.callback(self.thread.close)
        try:
            self.policy = make_policy(algorithm, spec)
        except MemoryError as error:
            what = f"The network does not fit in memory: {error_text(error)}"
            raise ResourceError(what, fix="make it smaller, by hidden_sizes or network") from error
        first = await self._policy_to_begin_with()
        device = choose_device(config.device, self.policy.weight_count)
        own_device = take_own_gpu(device)
        warn_of_too_many_threads(config)
        packed, layout = pack_policy(self.policy), ring_layout(config, algorithm, spec)
        self.resources = ResourceMeter(own_device)
        self._make_actors(stack, packed, layout, actor_seed)
        self._start_inference(stack, own_device)
        self._make_evaluator(stack, packed, evaluator_seed)
        dataset = await self._dataset(stack)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pool.start(), name="start-actors")
            make = partial(make_updater, algorithm, spec, device, core_seed, first)
            core = tasks.create_task(self.thread.call(make), name="make-network")
            rewarded = tasks.create_task(self._rewards_of_goals(stack), name="rewards-of-goals")
        self._make_learner(core.result(), rewarded.result(), dataset)
        stack.push_async_callback(self.learner.close)
        self._make_saver()
        stack.push_async_callback(self.saver.close)
        await self.saver.look_at_disk(layout.nbytes() * config.actors)
        if self.resumed is not None:
            await self.saver.restore(self.resumed)
            self.resumed.release()

    def _make_evaluator(self, stack: contextlib.AsyncExitStack, packed: bytes, seed: int) -> None:
        """Make the evaluator, not started, and its films if they are wanted."""
        self.evaluator = RemoteEvaluator(
            self._server,
            self.source,
            self.spec,
            packed,
            seed=seed,
            limits=self._limits(),
            max_episode_steps=self.config.eval_max_episode_steps,
            deterministic=self.config.eval_deterministic,
        )
        stack.push_async_callback(self.evaluator.close)
        self.films = None
        if self.config.eval_film:
            request = self.reporter.times.request
            self.films = EvaluationFilms(self._server, self.evaluator, self.directory, request)
            stack.push_async_callback(self.films.close)

    async def _policy_to_begin_with(self) -> PortablePolicy | None:
        """Load the policy of `init_from`, whose weights a new run starts with; None without one or when resumed."""
        path = self.config.init_from
        if path is None or self.resumed is not None:
            return None
        return await asyncio.to_thread(policy_to_begin_with, path, self.algorithm, self.spec)

    def _limits(self) -> ProcessLimits:
        config = self.config
        return ProcessLimits(
            config.step_timeout_seconds,
            config.ready_timeout_seconds,
            config.max_restarts,
            config.max_actor_bytes,
        )

    def _make_actors(
        self, stack: contextlib.AsyncExitStack, packed: bytes, layout: RingLayout, seed: int
    ) -> None:
        """Make rings, mailbox and doorbell, request blocks if the actors are served, and the actors, not started."""
        actors, requests = self.config.actors, None
        if is_served(self.algorithm):
            requests = RequestBlocks(request_layout(self.policy, layout), actors)
            stack.callback(requests.close)
        self.doorbell = Doorbell.create()
        stack.callback(self.doorbell.close)
        self_play = self._make_mailbox()
        stack.callback(self.mailbox.close)
        plan = PoolPlan(
            self.source,
            packed,
            layout,
            num_actors=actors,
            seed=seed,
            requests=None if requests is None else requests.layout,
            among=self.group.among,
            self_play=self_play,
            staggered=self._staggered_limit(),
        )
        self.pool = ActorPool(
            self._server,
            plan,
            Connections(self.mailbox, self.doorbell, self.env_kwargs.writer, requests),
            limits=self._limits(),
            log_of=self.directory.actor_log,
            on_failure=self.fail,
            on_death=self._actor_died,
        )
        stack.push_async_callback(self.pool.close)
        if self.resumed is not None:
            restore_rings(self.pool, self.resumed, getattr(self.algorithm, "segment_rows", 1))
            with refused_if_damaged(self.resumed.path):
                self.env_kwargs.restore(self.resumed)

    def _staggered_limit(self) -> int:
        """Time limit over which the actors spread their first episodes; 0 if they do not."""
        return self.algorithm.staggered_limit(self.spec) if isinstance(self.algorithm, SegmentLearning) else 0

    def _start_inference(self, stack: contextlib.AsyncExitStack, device: str) -> None:
        """Start the server that runs the network for the actors, if they do not run it themselves."""
        self.inference = None
        if is_served(self.algorithm):
            policy, exact = self.algorithm.make_policy(self.spec), self.algorithm.exact
            self.inference = start_server(policy, self.pool, device, exact=exact, on_failure=self.fail)
            stack.callback(self.inference.close)

    def _make_mailbox(self) -> SelfPlay | None:
        """Make the mailbox, for self-play with past versions, whose ratings are counted; returns how that is done."""
        config, count = self.config, self.policy.weight_count
        self_play = self_play_of(config, self.algorithm, self.spec)
        if self_play is None:
            self.mailbox = WeightMailbox.create(count)
            return None
        self.mailbox = PastWeights.create_for(count, self_play)
        self.reporter.episodes.ratings = Ratings(self_play.kept, config.actors, by_steps=self.algorithm.exact)
        return self_play

    def _actor_died(self, index: int) -> None:
        """Let the learner read the rings, because the actor's last signal may be lost."""
        if self.built:
            self.learner.data_arrived()

    async def _rewards_of_goals(self, stack: contextlib.AsyncExitStack) -> GoalRewards | None:
        """Rewards of other goals on the learner's thread, where the algorithm relabels goals."""
        if not getattr(self.algorithm, "n_sampled_goal", 0):
            return None
        function = getattr(self.algorithm, "goal_reward", None)
        rewards = await self.thread.call(partial(goal_rewards, self.source, self.spec, function))
        stack.callback(rewards.close)
        return rewards

    async def _dataset(self, stack: contextlib.AsyncExitStack) -> RingReader | None:
        """Read the dataset, or the demonstrations, into a ring of its own; None without either."""
        path, algorithm = self.config.dataset or self.config.demonstrations, self.algorithm
        if path is None:
            return None
        # Imported here because it imports gymnasium, which other runs do not need in this process.
        from asyncrl.storage.dataset import read_dataset

        n_step, frame_stack = (getattr(algorithm, name, 1) for name in ("n_step", "frame_stack"))
        segment, ring = await asyncio.to_thread(read_dataset, path, self.spec, n_step, frame_stack)
        stack.callback(segment.close)
        return ring

    def _make_learner(self, core: Updater, rewards: GoalRewards | None, dataset: RingReader | None) -> None:
        """Make the learner over all rings, and the schedule of its evaluations."""
        config, algorithm = self.config, self.algorithm
        in_turn = algorithm.exact and self.callbacks.hear_evaluations
        snapshots = WeightSnapshots(config.eval_interval_steps, arrived=self._copy_arrived, in_turn=in_turn)
        loop = make_loop(
            algorithm,
            config,
            self.spec,
            core,
            self.pool.rings,
            self.mailbox,
            wake=self.pool.wake,
            snapshots=snapshots,
            total_steps=config.total_steps,
            max_env_steps=self.group.max_env_steps,
            other_steps=self.group.scheduled_elsewhere,
            dump_dir=lambda: self.directory.current,
            env_kwargs=self.env_kwargs.writer,
            goal_rewards=rewards,
            dataset=dataset,
        )
        self.learner = Learner(loop, self.doorbell, self.thread, config.burst_seconds, snapshots)
        self.schedule = EvaluationSchedule(self)

    def _make_saver(self) -> None:
        config, algorithm = self.config, self.algorithm
        meta = CheckpointMeta(
            env=config.env,
            algo=config.algo,
            spec=self.spec,
            options={**option_values(algorithm), **final_rate(algorithm)},
            seed=config.seed,
        )
        self.origin = PolicyOrigin(algorithm, self.source, meta)
        self.saver = CheckpointSaver(self)

    def _copy_arrived(self) -> None:
        """Called on the learner's thread when it has copied its weights for an evaluation."""
        self._loop.call_soon_threadsafe(lambda: self.schedule.copy_arrived())

    async def evaluated(
        self, result: EvaluationResult, weights: NDArray[np.float32], key: tuple[int, ...], *, best: bool
    ) -> None:
        """Save the best weights, report the evaluation, and film it. Called by `schedule` with every result."""
        if best:
            await self.saver.save_best(result, weights)
        self.reporter.evaluated(result)
        if self.films is not None:
            self.films.evaluated(result, weights, key)

    # --- train -------------------------------------------------------------------------------------------------------

    async def train(self) -> str:
        """Train until the run ends; returns the stop reason. Raises the error that ended the run."""
        self.reporter.state = "training"
        with single_error():
            async with asyncio.TaskGroup() as tasks:
                learning = tasks.create_task(self._learn(), name="learner")
                background = [
                    tasks.create_task(self._watch(), name="watch"),
                    tasks.create_task(self._report(), name="report"),
                    tasks.create_task(self._evaluate(), name="evaluate"),
                    tasks.create_task(self.saver.save_regularly(), name="checkpoint"),
                ]
                try:
                    reason = await self._ended
                finally:
                    self.clock.pause()
                    self.learner.stop()
                    for task in background:
                        task.cancel()
                    self.reporter.show_state("stopping")
                await learning
        return reason

    async def _learn(self) -> None:
        await self.env_kwargs.settle()  # what `on_start` has set
        # All actors are ready and wait for the first weights, which the learner publishes before anything else.
        self.clock.start()
        await self.group.learn(self.learner)
        if not self._ended.done():  # the steps are used up, but copies may still wait for evaluation
            self.schedule.training_ended()  # the clock stops before the disk is waited for
            await self.saver.save_after_training()
        self.schedule.training_ended(limited=True)

    async def _watch(self) -> None:
        """Collect finished episodes; check `target_training_return` and `max_seconds`."""
        limit, target = self.config.max_seconds, self.config.target_training_return
        episodes = self.reporter.episodes
        while True:
            self.reporter.read_actors(self.pool)
            mean = episodes.return_mean if episodes.full else None
            if target is not None and mean is not None and mean >= target:
                self.stop("target_training_return")
            if limit is not None and self.clock.train_seconds >= limit:
                self.stop("max_seconds")
            await asyncio.sleep(WATCH_SECONDS)

    async def _report(self) -> None:
        """Show a report whenever one is due, until cancelled."""
        while True:
            await self.reporter.times.wait(lambda: self.learner.inserted_steps)
            self.reporter.times.reported(self.learner.inserted_steps)
            self._learned = await self.learner.report()
            self.reporter.show(self.snapshot())

    async def _evaluate(self) -> None:
        self._target_weights = await self.schedule.run()
        self.stop("total_steps" if self._target_weights is None else "target_return")

    def snapshot(self, stop_reason: str | None = None, error: str | None = None) -> Snapshot:
        """Present numbers of the run, and the learner's of its last report; on rank 0 over all groups."""
        learned, state, parts = self._learned, self.reporter.state, dict[str, Any]()
        measured = dict(learned.metrics)
        if self.built:
            actors = self.pool.statistics()
            if stop_reason is not None:  # they may still run, but train no more
                actors = tuple(dataclasses.replace(actor, state="stopped") for actor in actors)
            measured |= over_actors(actors) | (self.inference.statistics() if self.inference else {})
            measured |= self.pool.step_times.statistics() | self.resources.measure(a.pid for a in actors)
            if has_epsilon(self.policy):
                measured["rollout/exploration_rate"] = self.pool.exploration_rate()
            parts = {
                "actors": actors,
                "discipline": self.learner.discipline,
                "network": network_text(self.policy),
                "goals": goals_text(self.spec, self.algorithm),
                "opponents": self.reporter.episodes.opponents(),
                "evaluation": self.schedule.last,
                "evaluations": self.schedule.evaluations,
                "best_evaluation": self.schedule.best,
                "film": None if self.films is None else self.films.newest,
            }
            measured |= self.schedule.last.by_level() if self.schedule.last is not None else {}
            state = "evaluating" if state == "training" and self.schedule.holds_training else state
        return self.group.shown(
            Snapshot(
                state=state,
                metrics=self.reporter.metrics(measured),
                distributions=learned.distributions,
                bins=self.reporter.episodes.bins() | learned.bins,
                value_pairs=learned.value_pairs,
                stop_reason=stop_reason,
                error=error,
                **{name: getattr(self.config, name) for name in SHOWN_OPTIONS},
                **parts,
            )
        )

    # --- end ---------------------------------------------------------------------------------------------------------

    async def end(
        self, reason: str, error: BaseException | None
    ) -> tuple[TrainResult | None, BaseException | None]:
        """Run every step of the end, before any part of the run is closed.

        Args:
            reason: why training ended.
            error: the error that ended it, or None.

        Returns:
            The result of the run, None without usable weights; and `error`, or the first error of these steps.
        """
        reached, weights = self._target_weights is not None, self._target_weights
        if self.built:
            weights, error = await self._last_weights(error)
        ended_early = isinstance(error, (asyncio.CancelledError, StoppedWhileStarting))
        learned = self.built and self.learner.updates > 0
        evaluation, failure = self.schedule.last if reached else None, None
        try:
            if weights is not None and (learned or error is None):
                await self.saver.save_after_training(weights, evaluation)
            if (
                error is None
                and reason in COMPLETE
                and weights is not None
                and self.group.leads
                and not reached
            ):
                evaluation, failure = await self._evaluate_finally(weights)
            if self.built and self.films is not None and error is None:
                await self.films.finish(self._interrupted)
        except Exception as failed:  # the weights are NaN, or the program turns warnings into errors
            weights = None if isinstance(failed, TrainingDiverged) else weights
            error = error or failed
        reason = reason if error is None or ended_early else "failed"
        snapshot = self._last_snapshot(reason, None if error is None else describe_error(error))
        summary = self._summary(snapshot, evaluation, failure)
        try:
            self._write_summary(summary)
        except Exception as failed:  # a warning again
            error = error or failed
        if self.group.leads and self.config.on_end is not None:
            send_summary(self.config.on_end, summary, self.config.run_dir)
        with contextlib.suppress(Exception):  # the run has its result, whether or not it is shown
            self.reporter.show(snapshot)
        if weights is None:
            return None, error
        last = PolicyWeights(weights, await self._last_critics(), self.learner.reward_scale)
        return self._result(last, evaluation, summary, snapshot), error

    async def _evaluate_finally(
        self, weights: NDArray[np.float32]
    ) -> tuple[EvaluationResult | None, str | None]:
        """Make the final evaluation, and save the weights with it; returns it or None, and the reason for None."""
        evaluation, failure = await self.schedule.evaluate_finally(
            self._stop_requested,
            lambda done: self.reporter.show_state("evaluating", final_evaluation=done),
        )
        if evaluation is not None:
            await self.saver.save_after_training(weights, evaluation)  # again
        return evaluation, failure

    async def _last_weights(
        self, error: BaseException | None
    ) -> tuple[NDArray[np.float32] | None, BaseException | None]:
        """Take the learner's last report; returns the weights to keep (None if it diverged) and the run's error."""
        weights = self._target_weights
        try:
            self._learned = await within_limit(self.learner.report())
        except Exception as raised:
            # A learner whose error ended the run may fail again here; the first error is kept.
            error = error or raised
            if isinstance(raised, AsyncRLError):  # it does not answer, or has diverged
                return weights, error
        try:
            if weights is None and not isinstance(error, TrainingDiverged):
                weights, _ = await within_limit(self.learner.current_weights())
        except Exception as raised:
            error = error or raised
        return weights, error

    async def _last_critics(self) -> NDArray[np.float32] | None:
        """Weights of the critics for the result's policy; None without any, or if the learner does not answer."""
        with contextlib.suppress(Exception):  # a result without them is better than none
            return await within_limit(self.learner.critics())
        return None

    def _last_snapshot(self, reason: str, error: str | None) -> Snapshot:
        """Make the run's last snapshot; if that fails, from the snapshot before it, with a warning (ASYNC040)."""
        state = self.reporter.state = "failed" if reason == "failed" else "stopped"
        try:
            if self.built:
                self.reporter.episodes.extend(self.pool.episodes())
            return self.snapshot(reason, error)
        except Exception as failed:
            if self.reporter.last is None:
                raise
            if error is None:  # an error that is told already may be the cause
                text = f"[ASYNC040] last report failed: {describe_error(failed)}; summary.json has the one before"
                warn(FilesNotWritten(text))
            return dataclasses.replace(self.reporter.last, state=state, stop_reason=reason, error=error)

    def _summary(
        self, snapshot: Snapshot, evaluation: EvaluationResult | None, failure: str | None
    ) -> dict[str, Any]:
        """The content of `summary.json`."""
        summary = summarize(snapshot, evaluation, self.reporter.actor_wait_seconds)
        summary["reward_threshold"] = self.spec.reward_threshold if self.built else None
        cut = self.evaluator.cut_episodes if evaluation is not None else 0
        greedy = self.config.eval_deterministic
        summary["eval"] |= {"deterministic": greedy, "cut_episodes": cut, "error": failure}
        return summary

    def _write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`; a resumed run that was not built leaves the one before it."""
        if self.resumed is not None and not self.built:
            return
        try:
            self.directory.write_json("summary.json", summary)
        except DirectoryLost:
            pass  # a warning was given
        except Exception as failed:
            warn_of_file("summary.json", failed)

    def _result(
        self,
        last: PolicyWeights,
        evaluation: EvaluationResult | None,
        summary: dict[str, Any],
        snapshot: Snapshot,
    ) -> TrainResult:
        make_policy, schedule, best = self.origin.policy, self.schedule, None
        if schedule.best is not None and schedule.best_weights is not None:
            best = BestPolicy(make_policy(schedule.best_weights, schedule.best), schedule.best)
        return TrainResult(
            policy=make_policy(last, evaluation or snapshot),
            evaluation=evaluation,
            stop_reason=snapshot.stop_reason or "stopped",
            summary=summary,
            run_dir=self._run_dir,
            best=best,
            evaluations=snapshot.evaluations,
            returns=tuple(self.reporter.returns),
            unsaved=self.saver.failure or ("the disk did not answer in time" if self.saver.hangs else ""),
        )


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel the task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def make_updater(
    algorithm: Algorithm, spec: EnvSpec, device: str, seed: int, first: PortablePolicy | None
) -> Updater:
    """Make the algorithm's updater, with the weights of `first` if given, and prepare the kernels of its modules."""
    take_own_gpu(device)
    core = agent_policies.make_updater(algorithm, spec, device, seed)
    if first is not None:
        begin_with_policy(core, first, algorithm, spec)
    prepare_quietly(without=("asyncrl.replay", "asyncrl.shm.requests"))  # `Run._probe` prepares these
    return core


def _for_run(algorithm: Algorithm, config: TrainerConfig, spec: EnvSpec) -> Algorithm:
    """The algorithm's record with a value for every option that is left to the run; a user's may leave none."""
    chosen: Algorithm = algorithm.for_run(config, spec) if hasattr(algorithm, "for_run") else algorithm
    return chosen
