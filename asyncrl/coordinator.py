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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.policies import TrainedPolicy
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.pool import ActorPool, probe
from asyncrl.building import Blueprint, build, single_error
from asyncrl.clock import TrainClock
from asyncrl.config import TrainerConfig
from asyncrl.config_file import dump_config
from asyncrl.core import Algorithm
from asyncrl.envs import EnvSource
from asyncrl.errors import AsyncRLError, SamplesTooStale
from asyncrl.evaluate import EvaluationPlan, EvaluationSchedule
from asyncrl.learner import Learner, LearnerReport
from asyncrl.metrics import EvaluationResult, Snapshot
from asyncrl.report import Reporter, summarize
from asyncrl.run_directory import RunDirectory, describe_run
from asyncrl.saving import CheckpointSaver
from asyncrl.server import RunServer, write_http_file
from asyncrl.writers import RunWriters

WATCH_SECONDS = 0.02
"""How often the stopping rules are looked at."""
SWITCH_SECONDS = 0.0005
"""Interpreter's switch interval during a run: beside a busy learner thread the loop answers in 0.3 ms, not 3.5."""
STALE_SHARE = 0.5
"""Discarded share from which ASYNC020 warns, once."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves.

    Attributes:
        policy: the weights that were evaluated last (those that reached the target, if it was reached).
        evaluation: of those weights, or None where none was made.
        summary: what `summary.json` holds.
        snapshot: the last one.
    """

    policy: TrainedPolicy
    evaluation: EvaluationResult | None
    summary: dict[str, Any]
    snapshot: Snapshot


class Coordinator:
    """One run; made and used on the run's event-loop thread.

    Args:
        config: every option but the algorithm's.
        algorithm: what to learn with.
        source: the environment.
        server: a fork server that is already starting; it is closed with the run.
        on_snapshot: called on the loop thread with every new snapshot.
        started: `time.monotonic()` from which wall and start-up time count; None is now.
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
        self._directory = RunDirectory(Path(config.run_dir) if config.run_dir else None)
        self._reporter = Reporter(config, 0, self._clock)
        self._writers: RunWriters | None = None
        self._pool: ActorPool | None = None
        self._learner: Learner | None = None
        self._schedule: EvaluationSchedule | None = None
        self._last: Snapshot | None = None
        self._final_weights: NDArray[np.float32] | None = None
        self._state = "starting"
        self._warned = False
        self._saver: CheckpointSaver | None = None

    def stop(self, reason: str = "stopped") -> None:
        """End the run in good order; the first reason counts. Loop thread only."""
        if not self._ended.done():
            self._ended.set_result(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with `error`. Loop thread only."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def run(self) -> Outcome:
        """Build, train, take down. Raises what ended the run, if it was an error."""
        switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            async with contextlib.AsyncExitStack() as stack:
                await self._build(stack)
                gc.collect()
                gc.freeze()
                reason = await self._train()
                return await self._finish(reason)
        except BaseException as error:
            await self._publish_failure(error)
            raise
        finally:
            gc.unfreeze()
            sys.setswitchinterval(switch_seconds)
            self._directory.remove("http.json")
            # aiohttp caches the last applications' handlers in its module, and they hold this object: drop the rings.
            self._pool = self._learner = self._schedule = self._saver = None
            if self._writers is not None:
                self._writers.close()

    # --- build -------------------------------------------------------------------------------------------------------

    async def _build(self, stack: contextlib.AsyncExitStack) -> None:
        """Everything in the order of its needs; `stack` takes it down in reverse."""
        stack.callback(self._server.close)
        await self._serve(stack)
        self._publish(None)
        spec = self._spec = await probe(self._server, self.source)
        if spec.vector_envs is not None:
            self.config = dataclasses.replace(self.config, envs_per_actor=spec.vector_envs)
        config, algorithm = self.config, self.algorithm
        algorithm.check(spec)
        self._write_options()
        if self._directory.path is not None:
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
        self._reporter.replay_capacity = parts.capacity_steps
        plan = EvaluationPlan(
            config.eval_interval_seconds,
            config.eval_episodes,
            config.target_return,
            config.target_eval_episodes,
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
            plan, parts.evaluator, learner, self._clock, self._saver.save_best
        )

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
            checkpoint=self._save_latest,
            ready=lambda: self._learner is not None and self._learner.inserted_steps > 0,
            host=self.config.host,
            port=0 if self.config.http == "auto" else int(self.config.http),
            token=token,
        )
        await server.start()
        stack.push_async_callback(server.close)
        self.url = server.url
        if self._directory.path is not None:
            write_http_file(self._directory.path / "http.json", url=server.url, pid=os.getpid(), token=token)

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
        self.stop("total_steps")

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
        self._final_weights = await schedule.run_until_target()
        self.stop("target_return")

    async def _report_regularly(self) -> None:
        assert self._learner is not None
        while True:
            self._publish(await self._learner.report())
            await asyncio.sleep(self.config.report_interval_seconds)

    # --- finish ------------------------------------------------------------------------------------------------------

    async def _finish(self, reason: str) -> Outcome:
        """Last evaluation, last checkpoint, last snapshot, `summary.json`."""
        assert self._learner is not None and self._schedule is not None and self._pool is not None
        schedule, learner = self._schedule, self._learner
        final = schedule.best
        if self._final_weights is None:
            self._final_weights, _ = await learner.current_weights()
            final = None
            if reason in ("total_steps", "max_seconds", "target_training_return") and learner.updates:
                self._state = "evaluating"
                final = await schedule.evaluate_now(self.config.target_eval_episodes)
        await self._save_latest()
        self._reporter.episodes.extend(self._pool.episodes())
        report = await learner.report()
        self._state = "stopped"
        snapshot = self._publish(report, stop_reason=reason)
        summary = summarize(snapshot, report, final, self._reporter.actor_wait_seconds)
        self._directory.write_json("summary.json", summary)
        policy = TrainedPolicy(self._spec, self._policy, self._final_weights)
        return Outcome(policy, final, summary, snapshot)

    async def _publish_failure(self, error: BaseException) -> None:
        """The last snapshot of a run that failed says so."""
        self._state = "failed"
        reason = "interrupted" if isinstance(error, asyncio.CancelledError) else "failed"
        text = str(error) if isinstance(error, AsyncRLError) else f"{type(error).__name__}: {error}"
        snapshot = self._reporter.snapshot(self._state, stop_reason=reason, error=text)
        if self._last is not None:
            keep = {"state": self._state, "stop_reason": reason, "error": text}
            snapshot = dataclasses.replace(self._last, **keep)  # type: ignore[arg-type]
        self._last = snapshot
        self._on_snapshot(snapshot)

    # --- show and save -----------------------------------------------------------------------------------------------

    def _current(self) -> Snapshot:
        assert self._last is not None
        return self._last

    def _options(self) -> dict[str, Any]:
        return {
            "trainer": dataclasses.asdict(self.config),
            self.algorithm.name: dataclasses.asdict(self.algorithm),  # type: ignore[call-overload]
        }

    def _publish(self, report: LearnerReport | None, stop_reason: str | None = None) -> Snapshot:
        """Make a snapshot and hand it to everybody who shows one."""
        schedule = self._schedule
        state = "evaluating" if schedule is not None and schedule.confirming else self._state
        snapshot = self._reporter.snapshot(
            state,
            actors=self._pool.statistics() if self._pool is not None else (),
            learner=report,
            exploration_rate=self._pool.exploration_rate() if self._pool is not None else None,
            evaluation=schedule.last if schedule is not None else None,
            best=schedule.best if schedule is not None else None,
            stop_reason=stop_reason,
        )
        self._last = snapshot
        if self._writers is not None:
            self._writers.write(snapshot)
        self._on_snapshot(snapshot)
        self._warn_of_staleness(snapshot)
        return snapshot

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
        self._directory.write_text("config.toml", dump_config(self.config, self.algorithm))
        self._directory.write_json("meta.json", describe_run(self.config.seed))

    async def _save_latest(self) -> str:
        """Checkpoint the learner now; returns the file's path, or "" where there is none to write."""
        return await self._saver.save_latest(self._final_weights) if self._saver is not None else ""
