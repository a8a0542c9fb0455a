"""Thread of a run, and the run's result.

The event loop of a run is always in its own thread ("asyncrl-coordinator"): a blocking notebook cell does not stop
training, a caller's loop is never blocked, and scripts, asyncio and Jupyter use the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.actors.forkserver import ForkServer
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.policies.portable_policy import BestPolicy, PortablePolicy
from asyncrl.protocols import Algorithm
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.switching import paused_collection
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.trainer.run_end import Workers, close_at_exit, forget, print_failure, refuse_at_exit
from asyncrl.trainer.shown_result import ShownResult

if TYPE_CHECKING:
    from asyncrl.run.coordinator import Coordinator
    from asyncrl.run.ending import Outcome
    from asyncrl.storage.resume import Resumption
    from asyncrl.trainer.ranks import Ranks

try:
    from uvloop import new_event_loop
except ImportError:  # Windows, or a platform without a wheel
    new_event_loop = asyncio.new_event_loop

CLOSE_SECONDS = 10.0
"""Time that `stop_or_kill` waits for the run to end before it kills its processes."""
KILLED_SECONDS = 1.0
"""Time that `stop_or_kill` waits for the run's thread after it has killed the processes."""
MOST_RETURNS = 400
"""Most points of `TrainResult.returns`; beyond it every second one is dropped."""
SERVED_SECONDS = 60.0
"""Time limit of `wait_until_served`; the start of the run continues afterwards."""
SIGNAL_SECONDS = 0.25
"""Longest time after which a waiting main thread runs the handler of a signal."""


@dataclass(frozen=True, repr=False)
class TrainResult(ShownResult):
    """Result of training.

    Attributes:
        policy: policy with the run's final weights, or with those that reached `target_return`; it has `save(path)`.
        best: policy of the best evaluation with that evaluation, or None without an evaluation.
        evaluation: greedy evaluation of `policy`, or None if there was none (the run was stopped).
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`, `"stopped"`,
            `"interrupted"`, or `"failed"` (in `Trainer.result` of a run that raised).
        summary: the content of `summary.json`.
        run_dir: directory of the run's files, or None.
        evaluations: the greedy evaluations, in the order of training; of more than 10,000 every second one.
        returns: steps, and mean return of the last 100 training episodes, over the run; thinned to a few hundred.
        unsaved: reason why the last checkpoint could not be written, "" if it was or the run has no directory.
    """

    policy: PortablePolicy
    evaluation: EvaluationResult | None
    stop_reason: str
    summary: dict[str, Any]
    run_dir: Path | None
    best: BestPolicy | None = None
    evaluations: tuple[EvaluationResult, ...] = ()
    returns: tuple[tuple[int, float], ...] = ()
    unsaved: str = ""


class RunThread:
    """Runs one `Coordinator` on its own thread; every public method may be called from any thread.

    Args:
        algorithm: the algorithm's record.
        source: the environment.
        server: a fork server that is already starting, or None to start one with the run.
        started: see `Coordinator`.

    Attributes:
        resumed: the checkpoint to resume from, or None; set before `start`.
        done: future of the result, or of the error that ended the run.
        started_by: thread that has called `start`.
        result: the result, also of a failed run; None before the end, or if there are no weights.
        snapshot: the newest snapshot, None before the first.
        listeners: called with every snapshot, on the run's thread.
        awaited: whether a caller waits for the result; otherwise an error is printed.
    """

    def __init__(
        self, algorithm: Algorithm, source: EnvSource, server: ForkServer | None, started: float | None
    ) -> None:
        self._algorithm = algorithm
        self._source = source
        self._server = server
        self._started_at = started
        self.resumed: Resumption | None = None
        self._thread: threading.Thread | None = None
        self.started_by = threading.current_thread()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coordinator: Coordinator | Ranks | None = None
        self._stop_reason: str | None = None
        self._lock = threading.RLock()  # a signal handler may call `stop` while this thread holds it
        self._served = threading.Event()
        self._callbacks = Callbacks(None)
        self.done: Future[TrainResult] = Future()
        self.result: TrainResult | None = None
        self.snapshot: Snapshot | None = None
        self._returns: list[tuple[int, float]] = []
        self.listeners: list[Callable[[Snapshot], None]] = []
        self.awaited = True

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    @property
    def coordinator(self) -> Coordinator | Ranks | None:
        """Coordinator of the run; None before the thread has made it."""
        return self._coordinator

    def start(
        self, config: TrainerConfig, callbacks: Callbacks, listener: Callable[[Snapshot], None] | None = None
    ) -> None:
        """Start the run and return at once. Raises RuntimeError if it was started before."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("this trainer has run already; make a new Trainer")
            refuse_at_exit()
            if self._server is None:
                self._server = ForkServer()
                self._server.start()
            self.started_by = threading.current_thread()
            close_at_exit(self)
            if listener is not None:
                self.listeners.append(listener)
            self._callbacks = callbacks
            self._thread = threading.Thread(
                target=self._run, args=(config,), name="asyncrl-coordinator", daemon=True
            )
            self._thread.start()

    def wait_until_served(self) -> None:
        """Wait until the live page has its address; a later error is printed unless a caller waits for the result.

        Raises the error that ended the run before that.
        """
        try:
            end = time.monotonic() + SERVED_SECONDS
            while not self._served.wait(SIGNAL_SECONDS) and time.monotonic() < end:  # see `wait`
                pass
        except KeyboardInterrupt:
            self.stop("interrupted")
            raise
        with self._lock:
            if not self.done.done():
                self.awaited = False
                return
        self.done.result()

    def wait(self) -> TrainResult:
        """Wait for the result; raises the error that ended the run.

        In short waits: the kernel may deliver a signal to another thread than the main one, which a wait without a
        limit then never interrupts, so that Python would not run the handler (on a busy machine 1 SIGHUP in 40).
        """
        while not wait_for_futures([self.done], SIGNAL_SECONDS).done:
            pass
        return self.done.result()

    def stop(self, reason: str) -> None:
        """End the run in the normal order; returns at once. The first reason counts."""
        with self._lock:
            self._stop_reason = self._stop_reason or reason
            coordinator, loop = self._coordinator, self._loop
        if coordinator is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the run and its loop have just ended
                loop.call_soon_threadsafe(coordinator.stop, reason)

    def kill(self) -> None:
        """Kill every process of the run at once; also from a signal handler."""
        if self._server is not None:
            self._server.kill()
        kill_ranks = getattr(self._coordinator, "kill", None)
        if kill_ranks is not None:
            kill_ranks()

    def stop_or_kill(self, reason: str = "interrupted") -> None:
        """Stop and wait; kill after `CLOSE_SECONDS`, or at a second interrupt."""
        if self._thread is None:  # interrupted while it started
            return self.close()
        try:
            self.stop(reason)
            self._thread.join(CLOSE_SECONDS)
        finally:
            if self._thread.is_alive():
                self.kill()
                self._thread.join(KILLED_SECONDS)

    def close(self) -> None:
        """Stop the run and wait for its end; kill it after `CLOSE_SECONDS`. Idempotent."""
        if threading.current_thread() is self._thread:  # a callback cannot wait for its own run
            self.stop("interrupted")
            return
        forget(self)
        if self._thread is None:
            if self._server is not None:
                self._server.close()
            return
        if self._thread.is_alive():
            # Its own reason: a run that was stopped while it is built ends with a policy, see `Coordinator`.
            self.stop_or_kill(self._stop_reason or "interrupted")

    # --- on the run's thread -----------------------------------------------------------------------------------------

    def _run(self, config: TrainerConfig) -> None:
        result: TrainResult | None = None
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.get_loop().set_default_executor(Workers(thread_name_prefix="asyncio"))
                result = runner.run(self._main(config))
        except BaseException as raised:
            error = raised
        forget(self)
        with self._lock:
            if result is not None:
                self.done.set_result(result)
            else:
                self.done.set_exception(error)
            if error is not None and not self.awaited:
                print_failure(config, error)
        self._served.set()

    async def _main(self, config: TrainerConfig) -> TrainResult:
        assert self._server is not None
        # Imported here because it imports torch, which then loads in parallel with the fork server, and is not loaded
        # by an actor whose environment's module imports Trainer.
        try:
            with paused_collection():
                from asyncrl.trainer.make_run import join_groups, make_run

            group = await join_groups(
                config, self._algorithm, self.resumed, cancelled=lambda: self._stop_reason is not None
            )
            rest = (self._server, self._receive, self._started_at, self._callbacks)
            coordinator = make_run(group, self._source, *rest)
        except BaseException:
            self._server.close()
            raise
        with self._lock:
            self._coordinator, self._loop = coordinator, asyncio.get_running_loop()
            reason = self._stop_reason
        if reason is not None:
            coordinator.stop(reason)
        try:
            result = self.result = self._result(await coordinator.run(), config)
        finally:
            if self.result is None and coordinator.outcome is not None:
                self.result = self._result(coordinator.outcome, config)
            self._callbacks.end(self.result)
        if self._callbacks.error is not None:
            raise self._callbacks.error
        return result

    def _receive(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        if snapshot.error is None:  # else the run ends now, and `wait_until_served` raises its error
            self._served.set()
        if snapshot.return_mean is not None:
            point = (snapshot.env_steps, snapshot.return_mean)
            if point not in self._returns[-1:]:  # a new state of the run is shown with the old numbers
                self._returns.append(point)
            if len(self._returns) > MOST_RETURNS:
                del self._returns[1::2]
        for listener in self.listeners:
            listener(snapshot)

    def _result(self, outcome: Outcome, config: TrainerConfig) -> TrainResult:
        return TrainResult(
            policy=outcome.policy,
            best=outcome.best,
            evaluation=outcome.evaluation,
            evaluations=outcome.snapshot.evaluations,
            returns=tuple(self._returns),
            stop_reason=outcome.snapshot.stop_reason or "stopped",
            summary=outcome.summary,
            run_dir=Path(config.run_dir) if config.run_dir else None,
            unsaved=outcome.unsaved,
        )
