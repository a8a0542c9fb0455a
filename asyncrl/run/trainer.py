"""The trainer: one run behind one object that works the same from a script, a shell and a notebook cell.

The run has an event loop of its own in a thread of its own ("asyncrl-coordinator"), whoever calls. A blocking
notebook cell therefore does not freeze training, a caller's loop is never blocked, and there is one way to run and
not three.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from asyncrl.actors.forkserver import ForkServer
from asyncrl.envs.source import EnvSource
from asyncrl.errors import BlockingCallInLoop
from asyncrl.interfaces import Algorithm
from asyncrl.run.config import TrainerConfig
from asyncrl.run.trainer_options import TrainResult, check_options, with_preset
from asyncrl.show.metrics import Snapshot
from asyncrl.show.notebook import LiveCard, live_card

if TYPE_CHECKING:
    from asyncrl.run.coordinator import Coordinator
    from asyncrl.run.ending import Outcome

try:
    from uvloop import new_event_loop
except ImportError:  # Windows, or a platform without a wheel
    new_event_loop = asyncio.new_event_loop

CLOSE_SECONDS = 10.0
"""How long closing waits for the run to take itself down before its processes are killed."""


class Trainer:
    """Trains one agent in one environment; one run per object.

        trainer = Trainer("CartPole-v1", DQN(learning_rate=1e-3), num_actors=2, seed=0)
        result = trainer.learn(total_steps=200_000)         # blocks
        result = await trainer.run(total_steps=200_000)     # asyncio and Jupyter
        action, _ = result.policy.predict(obs)

    Args:
        env: Gymnasium id, registered spec, or zero-argument factory (sent to the actors by cloudpickle).
        algorithm: a record such as `DQN(...)`, or an algorithm's name for its preset in this environment.
        server: a fork server that is already starting, or None to start one with the run.
        options: fields of `TrainerConfig`.

    Raises:
        TypeError: an option that does not exist.
        ValueError: a value outside its range.
        FactoryNotPicklable: the factory cannot be sent to another process (ASYNC001).
    """

    def __init__(
        self,
        env: Any,
        algorithm: Algorithm | str = "dqn",
        *,
        server: ForkServer | None = None,
        **options: Any,
    ) -> None:
        source = EnvSource.from_user(env)
        if isinstance(algorithm, str):
            algorithm, options = with_preset(algorithm, source.name, options)
        check_options(options)
        config = TrainerConfig(env=source.name, algo=algorithm.name, **options)
        self._setup(config, algorithm, source, server)

    _started: float | None = None

    @classmethod
    def from_config(
        cls,
        config: TrainerConfig,
        algorithm: Algorithm,
        *,
        env: Any = None,
        server: ForkServer | None = None,
        started: float | None = None,
    ) -> Trainer:
        """A trainer from two records.

        Args:
            config: options of the run.
            algorithm: options of the algorithm.
            env: the environment itself where `config.env` only names a factory.
            server: see `Trainer`.
            started: `time.monotonic()` from which wall and start-up time count; None is when the run starts.
        """
        trainer = cls.__new__(cls)
        trainer._started = started
        trainer._setup(config, algorithm, EnvSource.from_user(config.env if env is None else env), server)
        return trainer

    def _setup(
        self, config: TrainerConfig, algorithm: Algorithm, source: EnvSource, server: ForkServer | None
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._source = source
        self._server = server
        self._thread: threading.Thread | None = None
        self._done: Future[TrainResult] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coordinator: Coordinator | None = None
        self._stop_reason: str | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Snapshot], None]] = []
        self._snapshot: Snapshot | None = None
        self._left: TrainResult | None = None

    # --- running -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
        on_snapshot: Callable[[Snapshot], None] | None = None,
    ) -> TrainResult:
        """Train until a stopping rule holds; blocks. Ctrl-C stops in good order and is raised again; twice, it kills.

        Args:
            total_steps: environment steps over all actors.
            max_seconds: seconds of training.
            target_return: mean return of a confirmed greedy evaluation.
            on_snapshot: called with every snapshot, on the run's thread.

        Raises:
            BlockingCallInLoop: this thread runs an event loop (ASYNC014).
            AsyncRLError: what ended the run.
        """
        if _loop_is_running():
            raise BlockingCallInLoop(
                "trainer.learn() blocks, and this thread runs an event loop",
                facts={"called from": "a coroutine or a notebook cell"},
                fix="write `result = await trainer.run(...)`",
            )
        if on_snapshot is not None:
            self._listeners.append(on_snapshot)
        self.start(total_steps, max_seconds=max_seconds, target_return=target_return)
        try:
            return self._done.result()
        except KeyboardInterrupt:
            self._stop_or_kill()
            raise

    async def run(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
    ) -> TrainResult:
        """The same without blocking the caller's loop; in a notebook cell it shows a live card.

        Cancelling it (a notebook's Interrupt) stops the run first.
        """
        self.start(total_steps, max_seconds=max_seconds, target_return=target_return)
        card = live_card()
        if card is None:
            return await self.wait()
        shower = asyncio.create_task(self._show(card), name="asyncrl-live-card")
        try:
            return await self.wait()
        finally:
            shower.cancel()
            if self._snapshot is not None:
                card.show(self._snapshot)

    def start(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
    ) -> None:
        """Start the run and return at once. Raises RuntimeError if it was started before."""
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("this trainer has run already; make a new Trainer")
            given = {"total_steps": total_steps, "max_seconds": max_seconds, "target_return": target_return}
            rules = {name: value for name, value in given.items() if value is not None}
            self._config = dataclasses.replace(self._config, **rules)  # type: ignore[arg-type]
            if self._server is None:
                self._server = ForkServer()
                self._server.start()
            atexit.register(self.close)
            self._thread = threading.Thread(target=self._run_thread, name="asyncrl-coordinator", daemon=True)
            self._thread.start()

    async def wait(self) -> TrainResult:
        """The result of a started run; raises what ended it."""
        if self._thread is None:
            raise RuntimeError("the run was not started; call trainer.start() first")
        try:
            return await asyncio.shield(asyncio.wrap_future(self._done))
        except asyncio.CancelledError:
            await asyncio.to_thread(self._stop_or_kill)
            raise

    def stop(self, reason: str = "stopped") -> None:
        """End the run in good order, from any thread; returns at once. The first reason counts."""
        with self._lock:
            self._stop_reason = self._stop_reason or reason
            coordinator, loop = self._coordinator, self._loop
        if coordinator is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended, and the run with it
                loop.call_soon_threadsafe(coordinator.stop, reason)

    def kill(self) -> None:
        """Kill every process of the run at once; from any thread, also from a signal handler."""
        if self._server is not None:
            self._server.kill()

    def close(self) -> None:
        """Stop and wait until nothing of the run is left; idempotent."""
        atexit.unregister(self.close)
        if self._thread is None:
            if self._server is not None:
                self._server.close()
            return
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._stop_or_kill()

    def _stop_or_kill(self) -> None:
        """Stop; after `CLOSE_SECONDS`, or a second interrupt, kill."""
        assert self._thread is not None
        try:
            self.stop("interrupted")
            self._thread.join(CLOSE_SECONDS)
        finally:
            if self._thread.is_alive():
                self.kill()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Trainer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TrainerConfig:
        """Every option of the run but its algorithm's."""
        return self._config

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's record."""
        return self._algorithm

    @property
    def url(self) -> str | None:
        """Address of the live page, None before it is served or where `http="off"`."""
        return self._coordinator.url if self._coordinator is not None else None

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._done.done()

    @property
    def result(self) -> TrainResult | None:
        """What the run has left, also where it failed after it had learned; None before its end, or without weights."""
        return self._left

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._snapshot

    async def stream(self, interval_seconds: float = 1.0) -> AsyncIterator[Snapshot]:
        """Snapshots as the run goes on, the last one included; at most one per interval."""
        shown = None
        while not self._done.done():
            if self._snapshot is not None and self._snapshot is not shown:
                shown = self._snapshot
                yield shown
            with contextlib.suppress(TimeoutError, Exception):
                async with asyncio.timeout(interval_seconds):
                    await asyncio.shield(asyncio.wrap_future(self._done))
        if self._snapshot is not None and self._snapshot is not shown:
            yield self._snapshot

    async def _show(self, card: LiveCard) -> None:
        async for snapshot in self.stream():
            card.show(snapshot)

    # --- the run's thread --------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        result: TrainResult | None = None
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                result = runner.run(self._main())
        except BaseException as raised:
            error = raised
        atexit.unregister(
            self.close
        )  # or it would hold this object, and its memory, to the end of the process
        if result is not None:
            self._done.set_result(result)
        else:
            self._done.set_exception(error)

    async def _main(self) -> TrainResult:
        assert self._server is not None
        # Here and not at the top: torch comes with it. So it loads while the fork server does, and an actor that
        # imports the module an environment is defined in, which imports Trainer too, stays free of it.
        try:
            from asyncrl.run.coordinator import Coordinator

            coordinator = Coordinator(
                self._config, self._algorithm, self._source, self._server, self._receive, self._started
            )
        except BaseException:
            self._server.close()
            raise
        with self._lock:
            self._coordinator, self._loop = coordinator, asyncio.get_running_loop()
            reason = self._stop_reason
        if reason is not None:
            coordinator.stop(reason)
        try:
            return self._result(await coordinator.run())
        finally:
            if coordinator.outcome is not None:
                self._left = self._result(coordinator.outcome)

    def _receive(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for listener in self._listeners:
            listener(snapshot)

    def _result(self, outcome: Outcome) -> TrainResult:
        return TrainResult(
            policy=outcome.policy,
            evaluation=outcome.evaluation,
            stop_reason=outcome.snapshot.stop_reason or "stopped",
            summary=outcome.summary,
            run_dir=Path(self._config.run_dir) if self._config.run_dir else None,
        )


def train(env: Any, algorithm: Algorithm | str = "dqn", **options: Any) -> TrainResult:
    """Train in one line: `asyncrl.train("CartPole-v1", "dqn", total_steps=50_000)`. Options as for `Trainer`."""
    with Trainer(env, algorithm, **options) as trainer:
        return trainer.learn()


def _loop_is_running() -> bool:
    """Whether this thread runs an event loop now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
