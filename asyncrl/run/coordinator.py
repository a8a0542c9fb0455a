"""Coordinator of one run on its event loop: build, train, end, close in reverse order.

    build ── learn, watch, report, evaluate, checkpoint, serve ── end ── close actors, evaluator, server, thread, memory

The run ends at `total_steps`, `max_seconds`, a confirmed `target_return`, `target_training_return`, `stop`, or
an error. No code here touches a row or computes a gradient.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.descriptors import require_descriptors
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.processes import require_processes
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.errors import StoppedWhileStarting
from asyncrl.learning.clock import TrainClock
from asyncrl.printable import describe_error
from asyncrl.protocols import Algorithm
from asyncrl.run.alone import Alone
from asyncrl.run.build import build, single_error
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.ending import Ending, Outcome, evaluation_seconds, save_before_evaluating
from asyncrl.run.grouped import Group
from asyncrl.run.kernels import probe_and_prepare
from asyncrl.run.machine import require_float32
from asyncrl.run.parts import RunParts, Setup
from asyncrl.run.reporting import Reporting
from asyncrl.run.slow_stop import slow_stop_told
from asyncrl.run.switching import fast_switching, frozen_objects
from asyncrl.show.metrics import Snapshot
from asyncrl.storage.config_file import options_by_table
from asyncrl.storage.run_directory import RunDirectory, refuse_unwritable
from asyncrl.storage.run_files import write_run_files

TOKEN_BYTES = 15
"""Random bytes of the page's token. They make 20 characters, so that the address fits 50 columns."""
WATCH_SECONDS = 0.02
"""Interval at which the stopping rules are checked."""
STOP_SECONDS = 60.0
"""Time limit for a stopped run to finish building, so that it has a policy; an interrupt ends it at once."""


class Coordinator:
    """One run; made and used on the run's event-loop thread.

    Args:
        group: this run's group, with its options and the checkpoint to resume from.
        source: the environment.
        server: a fork server that is already starting; it is closed with the run.
        on_snapshot: called on the loop thread with every new snapshot.
        started: `time.monotonic()` at which wall and start-up time begin; None is now.
        callbacks: the user's callbacks.

    Attributes:
        parts: the run's parts, None before they are built and after they are closed.
        url: address of the live page, None if none is served.
        page_url: the same with the token in its fragment.
        outcome: the result, also of a failed run; None before the end, or if there are no weights.
    """

    def __init__(
        self,
        group: Group | Alone,
        source: EnvSource,
        server: ForkServer,
        on_snapshot: Callable[[Snapshot], None],
        started: float | None,
        callbacks: Callbacks,
    ) -> None:
        self._group = group
        self.config, self.algorithm, self.source = group.config, group.algorithm, source
        self.parts: RunParts | None = None
        self.url: str | None = None
        self.page_url: str | None = None
        self.outcome: Outcome | None = None
        self._server = server
        self._clock = TrainClock(created=started)
        run_dir, kept = group.config.run_dir, group.config.checkpoints_kept
        self._directory = RunDirectory(run_dir, kept, group.resumed is not None)
        self._reporting = Reporting(group.config, self._clock, on_snapshot, callbacks)
        self._reporting.callbacks.attach(self.stop, self.fail)
        self._reporting.shown = group.shown
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stop_requested = asyncio.Event()
        self._interrupted = asyncio.Event()
        self._target_weights: NDArray[np.float32] | None = None

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; the first reason counts. Loop thread only."""
        if reason in ("stopped", "interrupted"):
            self._stop_requested.set()
        if reason == "interrupted":
            self._interrupted.set()
        if not self._ended.done():
            self._ended.set_result(reason)
            self._group.tell_stop(reason)

    def fail(self, error: BaseException) -> None:
        """End the run with `error`. Loop thread only."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def run(self) -> Outcome:
        """Build, train, end and close. Raises the error that ended the run, if any."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(fast_switching())
                stack.enter_context(slow_stop_told(self._stop_requested, lambda: self._directory.current))
                reason, error = await self._build_and_train(stack)
                self.outcome, error = await self._end(reason, error)
                if error is not None:
                    raise error
            assert self.outcome is not None
            return self.outcome
        finally:
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # an error that came after the one that ended the run
            self._directory.remove("http.json")
            self.parts = None  # frees the rings too, even if this object lives on
            self._reporting.close()
            self._directory.close()

    async def _build_and_train(self, stack: contextlib.AsyncExitStack) -> tuple[str, BaseException | None]:
        """Build and train; returns the stop reason, and the error that ended training or None."""
        try:
            parts = self.parts = await self._build_unless_stopped(stack)
            stack.enter_context(frozen_objects())
            self._reporting.callbacks.start()
            return await self._train(parts), None
        except (asyncio.CancelledError, StoppedWhileStarting) as error:
            return "interrupted", error
        except BaseException as error:
            self._group.tell_failure(error)
            return "failed", error

    # --- build -------------------------------------------------------------------------------------------------------

    async def _build_unless_stopped(self, stack: contextlib.AsyncExitStack) -> RunParts:
        """Build, unless `fail` is called, whose error is raised, or `stop`.

        Raises `StoppedWhileStarting` if the run is interrupted, or stopped and not built within `STOP_SECONDS`.
        """
        building = asyncio.create_task(self._build(stack), name="build")
        interrupted = asyncio.create_task(self._interrupted.wait(), name="interrupted")
        try:
            await asyncio.wait((building, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not building.done() and self._ended.result() != "interrupted":
                either = building, interrupted
                await asyncio.wait(either, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not building.done():
                raise StoppedWhileStarting(
                    "The run was stopped while it started; it leaves no policy.",
                    facts={"after": f"{self._clock.startup_seconds:.1f} s"},
                )
            return building.result()
        finally:
            interrupted.cancel()
            building.cancel()
            await asyncio.gather(building, interrupted, return_exceptions=True)

    async def _build(self, stack: contextlib.AsyncExitStack) -> RunParts:
        """Serve the page, probe the environment, then build the run; `stack` closes everything in reverse."""
        stack.callback(self._server.close)
        require_float32()
        require_descriptors(self.config.actors)
        require_processes(self.config.actors)
        await self._serve(stack)
        self._reporting.publish(None)
        with single_error():
            spec = await probe_and_prepare(self.config, self.algorithm, self.source, self._server)
        if (resumed := self._group.resumed) is not None:  # its weights belong to its scaling of bytes
            spec = dataclasses.replace(spec, observation_kind=resumed.meta.spec.observation_kind)
        if spec.vector_envs is not None:
            self.config = dataclasses.replace(self.config, envs_per_actor=spec.vector_envs)
        self._choose_options()
        self._open_files()
        where = (self._directory, self._server, self._clock)
        setup = Setup(self.config, self.algorithm, self.source, spec, *where, self._group)
        with single_error():
            parts = await build(setup, self._reporting, stack, on_failure=self.fail)
        stack.push_async_callback(self._group.leave)
        await self._group.attach(parts.learner, self.stop, self.fail)
        return parts

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Serve the live page, unless `http` is off, until `stack` closes it; its address is in `http.json`."""

        async def save_checkpoint() -> str:
            return await self.parts.saver.save_on_request() if self.parts is not None else ""

        if self.config.http == "off":
            return
        # Imported here because it imports aiohttp, which a run without a page does not need.
        from asyncrl.server import RunServer, write_http_file

        token = secrets.token_urlsafe(TOKEN_BYTES)
        server = RunServer(
            snapshot=self._reporting.current,
            config=lambda: options_by_table(*self._group.whole),
            stop=lambda: self.stop("stopped"),
            checkpoint=save_checkpoint,
            ready=lambda: self.parts is not None and self.parts.learner.inserted_steps > 0,
            host=self.config.host,
            port=0 if self.config.http == "auto" else int(self.config.http),
            token=token,
        )
        await server.start()
        stack.push_async_callback(server.close)
        if self._directory.path is not None:
            with refuse_unwritable(self._directory.path):
                file = self._directory.path / "http.json"
                write_http_file(file, url=server.url, pid=os.getpid(), token=token)
        self.url, self.page_url = server.url, f"{server.url}/#token={token}"

    def _choose_options(self) -> None:
        """Give a value to every option of the algorithm that is left to the run, of this group and of the whole run."""
        group = self._group
        group.whole = group.whole[0], _for_run(group.whole[1], group.whole[0])
        self.algorithm = group.algorithm = _for_run(self.algorithm, self.config)

    def _open_files(self) -> None:
        """Write the run's options and machine, and open its metric files, if it has a directory."""
        if self._directory.path is not None:
            with refuse_unwritable(self._directory.path):
                resumed = self._group.resumed.record() if self._group.resumed is not None else None
                write_run_files(self._directory, *self._group.whole, self.source, resumed)
                self._reporting.open_files(self._directory)

    # --- train -------------------------------------------------------------------------------------------------------

    async def _train(self, parts: RunParts) -> str:
        """Train until the run ends; returns the stop reason. Raises the error that ended the run."""
        self._reporting.state = "training"
        with single_error():
            async with asyncio.TaskGroup() as tasks:
                learning = tasks.create_task(self._learn(parts), name="learner")
                background = [
                    tasks.create_task(self._watch(), name="watch"),
                    tasks.create_task(self._reporting.run(parts.learner), name="report"),
                    tasks.create_task(self._evaluate(parts), name="evaluate"),
                    tasks.create_task(parts.saver.save_regularly(), name="checkpoint"),
                ]
                try:
                    reason = await self._ended
                finally:
                    self._reporting.tell("stopping")
                    self._clock.pause()
                    parts.learner.stop()
                    for task in background:
                        task.cancel()
                await learning
        return reason

    async def _learn(self, parts: RunParts) -> None:
        # All actors are ready and wait for the first weights, which the learner publishes before anything else.
        self._clock.start()
        await self._group.learn(parts.learner)
        if not self._ended.done():  # the steps are used up, but copies may still wait for evaluation
            parts.schedule.training_ended()  # the clock stops before the disk is waited for
            await save_before_evaluating(parts.saver)
        parts.schedule.training_ended(evaluation_seconds(self._clock))

    async def _watch(self) -> None:
        """Collect finished episodes; check `target_training_return` and `max_seconds`."""
        limit, target = self.config.max_seconds, self.config.target_training_return
        episodes = self._reporting.episodes
        while True:
            self._reporting.read_actors()
            mean = episodes.return_mean if episodes.full else None
            if target is not None and mean is not None and mean >= target:
                self.stop("target_training_return")
            if limit is not None and self._clock.train_seconds >= limit:
                self.stop("max_seconds")
            await asyncio.sleep(WATCH_SECONDS)

    async def _evaluate(self, parts: RunParts) -> None:
        self._target_weights = await parts.schedule.run()
        self.stop("total_steps" if self._target_weights is None else "target_return")

    async def _end(
        self, reason: str, error: BaseException | None
    ) -> tuple[Outcome | None, BaseException | None]:
        """Write the checkpoint, evaluate, write `summary.json` and show the last snapshot; see `ending.py`."""
        used = (self._directory, self._clock, self._reporting, self._stop_requested)
        rest = (self.parts, self._target_weights, self._group.leads)
        ending = Ending(*used, self.config.target_eval_episodes, *rest)
        try:
            return await ending.end(reason, error)
        except Exception as failed:
            error = error or failed  # the error that ended the run must not be masked
            self._reporting.tell("failed", stop_reason="failed", error=describe_error(error))
            return None, error


def _for_run(algorithm: Algorithm, config: TrainerConfig) -> Algorithm:
    """The algorithm's record with a value for every option that is left to the run; a user's may leave none."""
    chosen: Algorithm = algorithm.for_run(config) if hasattr(algorithm, "for_run") else algorithm
    return chosen
