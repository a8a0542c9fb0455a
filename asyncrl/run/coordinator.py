"""One run on its event loop: built from below, trained, and taken down from above, whatever happens.

    reserve memory ─ start actors ─┐
                                   ├─ learn ─ evaluate ─ report ─ checkpoint ─ serve ─┐
    build network (its thread) ────┘                                                  │
    <───────── actors, evaluator, fork server, thread, segments: closed in reverse ───┘

Every task has a name and the run's task group as parent. The run ends when one of these happens first: the learner has
used up `total_steps`, the clock passes `max_seconds`, an evaluation confirms `target_return`, somebody says `stop`, or
anything raises. Nothing here steps an environment, touches a row or computes a gradient.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import secrets
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.policies import TrainedPolicy
from asyncrl.actors.descriptors import require_descriptors
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.pool import ActorPool, probe
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ListenerFailed, SamplesTooStale, StoppedWhileStarting, describe_error
from asyncrl.interfaces import Algorithm
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner, LearnerReport
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.run.building import Blueprint, build, single_error
from asyncrl.run.config import TrainerConfig
from asyncrl.run.config_file import dump_config
from asyncrl.run.ending import Ending, Outcome, evaluation_seconds, save_before_evaluating
from asyncrl.run.evaluate import EvaluationPlan, EvaluationSchedule
from asyncrl.run.evaluation_copies import Copies, CopiesBySeconds, CopiesBySteps
from asyncrl.run.report import Reporter
from asyncrl.run.report_times import ReportTimes
from asyncrl.run.run_directory import RunDirectory, describe_run, refuse_unwritable
from asyncrl.run.saving import CheckpointSaver
from asyncrl.server import RunServer, write_http_file
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.writers import RunWriters

WATCH_SECONDS = 0.02
"""How often the stopping rules are looked at."""
SWITCH_SECONDS = 0.0005
"""Interpreter's switch interval during a run: beside a busy learner thread the loop answers in 0.3 ms, not 3.5."""
STOP_SECONDS = 60.0
"""How long a stopped run may go on building, so as to leave a policy; an interrupt ends it at once."""
STALE_SHARE = 0.5
"""Discarded share from which ASYNC020 warns, once."""


class Coordinator:
    """One run; made and used on the run's event-loop thread.

    Args:
        config: every option but the algorithm's.
        algorithm: what to learn with.
        source: the environment.
        server: a fork server that is already starting; it is closed with the run.
        on_snapshot: called on the loop thread with every new snapshot.
        started: `time.monotonic()` from which wall and start-up time count; None is now.

    Attributes:
        outcome: what the run has left, also one that failed; None before its end, or where it had no weights.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: Algorithm,
        source: EnvSource,
        server: ForkServer,
        on_snapshot: Callable[[Snapshot], None],
        started: float | None = None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.source = source
        self.url: str | None = None
        self._on_snapshot = on_snapshot
        self._clock = TrainClock(created=started)
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server = server
        self._directory = RunDirectory(
            Path(config.run_dir) if config.run_dir else None, config.checkpoints_kept
        )
        self._reporter = Reporter(config, 0, self._clock)
        self._report_times = ReportTimes(config.report_interval_seconds, config.report_interval_steps)
        self._writers: RunWriters | None = None
        self._pool: ActorPool | None = None
        self._learner: Learner | None = None
        self._schedule: EvaluationSchedule | None = None
        self._last: Snapshot | None = None
        self._final_weights: NDArray[np.float32] | None = None
        self._report: LearnerReport | None = None
        self._evaluator: RemoteEvaluator | None = None
        self._stop_requested = asyncio.Event()
        self._state = "starting"
        self._warned = self._warned_of_listener = False
        self.outcome: Outcome | None = None
        self._saver: CheckpointSaver | None = None

    def stop(self, reason: str = "stopped") -> None:
        """End the run in good order; the first reason counts. Loop thread only."""
        if reason in ("stopped", "interrupted"):
            self._stop_requested.set()
        if not self._ended.done():
            self._ended.set_result(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with `error`. Loop thread only."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def run(self) -> Outcome:
        """Build, train, end in good order, take down. Raises what ended the run, if it was an error."""
        switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            async with contextlib.AsyncExitStack() as stack:
                reason, error = await self._run(stack)
                self.outcome, error = await self._end(reason, error)
                if error is not None:
                    raise error
            assert self.outcome is not None
            return self.outcome
        finally:
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # one that came after the error that has ended the run
            gc.unfreeze()
            sys.setswitchinterval(switch_seconds)
            self._directory.remove("http.json")
            # aiohttp caches the last applications' handlers in its module, and they hold this object: drop the rings.
            self._pool = self._learner = self._schedule = self._saver = self._evaluator = None
            if self._writers is not None:
                self._writers.close()
            self._directory.close()

    async def _run(self, stack: contextlib.AsyncExitStack) -> tuple[str, BaseException | None]:
        """Build and train; why training ended, and the error that ended it."""
        try:
            await self._build_unless_stopped(stack)
            gc.collect()
            gc.freeze()
            return await self._train(), None
        except (asyncio.CancelledError, StoppedWhileStarting) as error:
            return "interrupted", error
        except BaseException as error:
            return "failed", error

    # --- build -------------------------------------------------------------------------------------------------------

    async def _build_unless_stopped(self, stack: contextlib.AsyncExitStack) -> None:
        """Build, with an ear for `stop` and `fail`.

        Raises `StoppedWhileStarting` where the run is interrupted, or stopped and not built `STOP_SECONDS` later.
        """
        building = asyncio.create_task(self._build(stack), name="build")
        try:
            await asyncio.wait((building, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not building.done() and self._ended.result() != "interrupted":
                await asyncio.wait((building,), timeout=STOP_SECONDS)
            if not building.done():
                raise StoppedWhileStarting(
                    "The run was stopped while it started; it leaves no policy.",
                    facts={"after": f"{self._clock.startup_seconds:.1f} s"},
                )
            building.result()
        finally:
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)

    async def _build(self, stack: contextlib.AsyncExitStack) -> None:
        """Everything in the order of its needs; `stack` takes it down in reverse."""
        stack.callback(self._server.close)
        require_descriptors(self.config.actors)
        await self._serve(stack)
        self._publish(None)
        spec = self._spec = await probe(self._server, self.source, self.config.ready_timeout_seconds)
        if spec.vector_envs is not None:
            self.config = dataclasses.replace(self.config, envs_per_actor=spec.vector_envs)
        config, algorithm = self.config, self.algorithm
        algorithm.check(spec)
        self._write_options()
        if self._directory.path is not None:
            with refuse_unwritable(self._directory.path):
                self._writers = RunWriters(self._directory.path)
        with single_error():
            parts = await build(
                Blueprint(config, algorithm, self.source, spec, self._directory, self._server),
                stack,
                on_failure=self.fail,
                on_death=lambda: self._learner.data_arrived() if self._learner else None,
                on_pool=self._see_pool,
            )
        learner = self._learner = parts.learner
        self._policy = parts.policy
        self._evaluator = parts.evaluator
        self._reporter.replay_capacity = parts.capacity_steps
        plan = EvaluationPlan(
            config.eval_episodes,
            config.target_return,
            config.target_eval_episodes,
            only_stop=config.only_evaluation_stops,
        )
        self._saver = CheckpointSaver(
            config,
            algorithm,
            spec,
            self._directory,
            learner,
            self._clock,
            lambda: self._reporter.episodes.count,
        )
        self._schedule = EvaluationSchedule(
            plan,
            parts.evaluator,
            learner,
            self._clock,
            self._copies(learner, parts.snapshots),
            self._saver.save_best,
            self._see_evaluation,
        )

    def _copies(self, learner: Learner, snapshots: WeightSnapshots) -> Copies:
        """Which weights are evaluated: copies at fixed steps, or the newest at an interval of seconds."""
        if self.config.eval_interval_seconds is not None:
            return CopiesBySeconds(self.config.eval_interval_seconds, learner, self._clock)
        return CopiesBySteps(snapshots, self._clock, learner.data_arrived)

    def _see_pool(self, pool: ActorPool) -> None:
        """Actors are shown while they start."""
        self._pool = pool

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        if self.config.http == "off":
            return
        token = secrets.token_urlsafe(24)
        server = RunServer(
            snapshot=self._current,
            config=self._options,
            stop=lambda: self.stop("stopped"),
            checkpoint=self._save_on_request,
            ready=lambda: self._learner is not None and self._learner.inserted_steps > 0,
            host=self.config.host,
            port=0 if self.config.http == "auto" else int(self.config.http),
            token=token,
        )
        await server.start()
        stack.push_async_callback(server.close)
        self.url = server.url
        if self._directory.path is not None:
            with refuse_unwritable(self._directory.path):
                write_http_file(
                    self._directory.path / "http.json", url=server.url, pid=os.getpid(), token=token
                )

    # --- train -------------------------------------------------------------------------------------------------------

    async def _train(self) -> str:
        """Learn until the run ends; returns why. Raises what a task or an actor raised."""
        assert self._learner is not None and self._schedule is not None and self._saver is not None
        learner = self._learner
        self._state = "training"
        with single_error():
            async with asyncio.TaskGroup() as tasks:
                learning = tasks.create_task(self._learn(learner), name="learner")
                background = [
                    tasks.create_task(self._watch(), name="watch"),
                    tasks.create_task(self._report_regularly(), name="report"),
                    tasks.create_task(self._evaluate(self._schedule), name="evaluate"),
                    tasks.create_task(self._saver.save_regularly(), name="checkpoint"),
                ]
                try:
                    reason = await self._ended
                finally:
                    self._state = "stopping"
                    self._clock.pause()
                    learner.stop()
                    for task in background:
                        task.cancel()
                await learning
        return reason

    async def _learn(self, learner: Learner) -> None:
        # Every actor stands ready and waits for the weights that the learner publishes first of all.
        self._clock.start()
        await learner.run()
        assert self._schedule is not None and self._saver is not None
        if not self._ended.done():  # the steps are used up, and copies may wait for the evaluator
            await save_before_evaluating(self._saver)
        self._schedule.training_ended(evaluation_seconds(self._clock))

    async def _watch(self) -> None:
        """Collects finished episodes, looks at `target_training_return` and `max_seconds`."""
        assert self._pool is not None
        limit, target = self.config.max_seconds, self.config.target_training_return
        episodes = self._reporter.episodes
        while True:
            episodes.extend(self._pool.episodes())
            self._reporter.count_waiting(self._pool.wait_seconds())
            mean = episodes.return_mean if episodes.full else None
            if target is not None and mean is not None and mean >= target:
                self.stop("target_training_return")
            if limit is not None and self._clock.train_seconds >= limit:
                self.stop("max_seconds")
            await asyncio.sleep(WATCH_SECONDS)

    async def _evaluate(self, schedule: EvaluationSchedule) -> None:
        self._final_weights = await schedule.run()
        self.stop("total_steps" if self._final_weights is None else "target_return")

    def _see_evaluation(self, result: EvaluationResult) -> None:
        """Every evaluation is written at once, and shown by a report of its own."""
        if self._writers is not None:
            self._writers.write_evaluation(result)
        self._report_times.ask()

    async def _report_regularly(self) -> None:
        assert self._learner is not None
        learner, times = self._learner, self._report_times
        while True:
            await times.wait(lambda: learner.inserted_steps)
            times.reported(learner.inserted_steps)
            self._publish(await learner.report())

    # --- end ---------------------------------------------------------------------------------------------------------

    async def _end(
        self, reason: str, error: BaseException | None
    ) -> tuple[Outcome | None, BaseException | None]:
        """Checkpoint, evaluation, last snapshot, `summary.json`; see `ending.py`."""
        ending = Ending(
            self._directory,
            self._clock,
            self._publish_end,
            lambda: self._reporter.actor_wait_seconds,
            self._stop_requested,
            self.config.target_eval_episodes,
            on_evaluation=lambda: self._enter("evaluating"),
            last_report=self._report,
        )
        if self._saver is not None:
            ending.learner, ending.saver = self._learner, self._saver
            ending.schedule, ending.evaluator = self._schedule, self._evaluator
            ending.make_policy = lambda weights: TrainedPolicy(self._spec, self._policy, weights)
            ending.weights = self._final_weights
        try:
            return await ending.end(reason, error)
        except Exception as failed:
            return None, error or failed  # what ended the run is not to be masked

    def _enter(self, state: str) -> None:
        self._state = state

    def _publish_end(self, report: LearnerReport | None, reason: str, error: str | None) -> Snapshot:
        """The last snapshot, shown to everybody."""
        self._state = "stopped" if error is None else "failed"
        try:
            if self._pool is not None:
                self._reporter.episodes.extend(self._pool.episodes())
            return self._publish(report, reason, error)
        except Exception:  # parts that have failed may not be able to say how they are
            if self._last is None:
                raise
            self._last = dataclasses.replace(self._last, state=self._state, stop_reason=reason, error=error)
            self._show(self._last)
            return self._last

    # --- show and save -----------------------------------------------------------------------------------------------

    def _current(self) -> Snapshot:
        assert self._last is not None
        return self._last

    def _options(self) -> dict[str, Any]:
        return {
            "trainer": dataclasses.asdict(self.config),
            self.algorithm.name: dataclasses.asdict(self.algorithm),  # type: ignore[call-overload]
        }

    def _publish(
        self, report: LearnerReport | None, stop_reason: str | None = None, error: str | None = None
    ) -> Snapshot:
        """Make a snapshot and hand it to everybody who shows one."""
        schedule = self._schedule
        self._report = report
        state = self._state
        if state == "training" and schedule is not None and schedule.holds_training:
            state = "evaluating"
        snapshot = self._reporter.snapshot(
            state,
            actors=self._pool.statistics() if self._pool is not None else (),
            learner=report,
            exploration_rate=self._pool.exploration_rate() if self._pool is not None else None,
            evaluations=schedule.evaluations if schedule is not None else (),
            best=schedule.best if schedule is not None else None,
            stop_reason=stop_reason,
            error=error,
        )
        self._last = snapshot
        if self._writers is not None:
            self._writers.write(snapshot)
        self._show(snapshot)
        self._warn_of_staleness(snapshot)
        return snapshot

    def _show(self, snapshot: Snapshot) -> None:
        """Give `snapshot` to whoever listens; a listener that fails is told once and ends nothing."""
        try:
            self._on_snapshot(snapshot)
        except Exception as error:
            if not self._warned_of_listener:
                self._warned_of_listener = True
                text = (
                    f"[ASYNC042] what is called with every snapshot raised {describe_error(error)}; training goes "
                    "on, and it is called again with the next; mend the callback"
                )
                warnings.warn(ListenerFailed(text), stacklevel=2)

    def _warn_of_staleness(self, snapshot: Snapshot) -> None:
        if self._warned or snapshot.discarded_fraction < STALE_SHARE or snapshot.updates == 0:
            return
        self._warned = True
        warnings.warn(
            SamplesTooStale(
                f"[ASYNC020] {snapshot.discarded_fraction:.0%} of the steps became too stale to learn from: "
                f"actors make {snapshot.env_steps_per_second:,.0f} steps/s, "
                f"the learner {snapshot.updates_per_second:,.0f} updates/s; "
                "raise max_staleness or samples_per_insert, or lower num_actors"
            ),
            stacklevel=2,
        )

    def _write_options(self) -> None:
        if self._directory.path is not None:
            with refuse_unwritable(self._directory.path):
                self._directory.write_text("config.toml", dump_config(self.config, self.algorithm))
                self._directory.write_json("meta.json", describe_run(self.config.seed))

    async def _save_on_request(self) -> str:
        """Checkpoint the learner now; the file's path, "" without a directory. Raises `ResourceError`."""
        return await self._saver.save_on_request() if self._saver is not None else ""
