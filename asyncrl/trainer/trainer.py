"""The trainer: one object per run, used the same way in a script, a shell and a notebook cell."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Never, Unpack

from asyncrl.actors.forkserver import ForkServer
from asyncrl.config import TrainerConfig
from asyncrl.envs.changes import described
from asyncrl.envs.source import EnvSource
from asyncrl.errors import BlockingCallInLoop
from asyncrl.protocols import Algorithm
from asyncrl.run.callbacks import Callbacks
from asyncrl.show.metrics import Snapshot
from asyncrl.show.notebook import LiveCard, ShownByCard, live_card, running_cell
from asyncrl.storage.config_file import options_by_table
from asyncrl.trainer import running
from asyncrl.trainer.arguments import RunOptions, algorithm_and_options, check_learn_arguments, require_steps
from asyncrl.trainer.kernel_interrupt import interrupt_stops
from asyncrl.trainer.resumable import Resumable
from asyncrl.trainer.run_thread import RunThread, TrainResult
from asyncrl.trainer.with_block import ClosedByWith


class Trainer(ClosedByWith, ShownByCard, Resumable):
    """Trains one agent in one environment; one run per object.

        trainer = Trainer("CartPole-v1", DQN(learning_rate=1e-3), num_actors=2, seed=0)
        result = trainer.learn(total_steps=200_000)         # blocks
        result = await trainer.run(total_steps=200_000)     # asyncio and Jupyter
        action, _ = result.policy.predict(obs)

    Args:
        env: Gymnasium id, registered spec, or zero-argument factory (sent to the actors by cloudpickle).
        algorithm: a record such as `DQN(...)`, or an algorithm's name for its preset for the environment.
        server: a fork server that is already starting, or None to start one with the run.
        options: fields of `TrainerConfig`, see `help(TrainerConfig)`; `wrappers` may also have classes and functions.

    Attributes:
        config: every option of the run except its algorithm's.
        algorithm: the algorithm's record.

    Raises:
        TypeError: an option does not exist, or the algorithm is a class instead of a record.
        ValueError: a value is outside its range.
        FactoryNotPicklable: the factory cannot be sent to another process (ASYNC001).
    """

    def __init__(
        self,
        env: Any,
        algorithm: Algorithm | str = "dqn",
        *,
        server: ForkServer | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        wrappers = options.pop("wrappers", ())
        wrappers = tuple(wrappers.split(",") if isinstance(wrappers, str) else wrappers)
        source = EnvSource.from_user(env)
        record, given = algorithm_and_options(algorithm, source.name, dict(options))
        named = tuple(described(wrapper) for wrapper in wrappers)
        self.config = TrainerConfig(env=source.name, algo=record.name, wrappers=named, **given)
        self.algorithm = record
        source = source.changed(self.config.env_kwargs, wrappers)
        self._run = RunThread(record, source, server, None)

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
        """Make a trainer from two records.

        Args:
            config: options of the run.
            algorithm: options of the algorithm.
            env: the environment, if `config.env` only names a factory and `config.env_file` is not set.
            server: see `Trainer`.
            started: `time.monotonic()` at which wall and start-up time begin; None is the start of the run.
        """
        trainer = cls.__new__(cls)
        if env is None and config.env_file is not None:
            source = EnvSource.from_file(config.env, Path(config.env_file))
        else:
            source = EnvSource.from_user(config.env if env is None else env)
            source = source.changed(config.env_kwargs, config.wrappers)
        trainer.config, trainer.algorithm = config, algorithm
        trainer._run = RunThread(algorithm, source, server, started)
        return trainer

    # --- running -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
        on_snapshot: Callable[[Snapshot], None] | None = None,
        callbacks: Sequence[Any] = (),
        **unknown: Never,
    ) -> TrainResult:
        """Train until a stopping rule holds; blocks. The first Ctrl-C stops the run and is raised, the second kills it.

        The result of an interrupted run is in `self.result`.

        Args:
            total_steps: environment steps over all actors.
            max_seconds: seconds of training.
            target_return: mean return of a confirmed greedy evaluation.
            on_snapshot: called with every snapshot, on the run's thread; an exception in it does not end the run.
            callbacks: objects with methods of `Callback`, called on the run's thread; one that raises ends the run.
            unknown: refused.

        Raises:
            BlockingCallInLoop: this thread runs an event loop (ASYNC014).
            TypeError: an argument does not exist; the text names that of another library here.
            AsyncRLError: the error that ended the run.
        """
        check_learn_arguments("learn", unknown)
        if _loop_is_running():
            raise BlockingCallInLoop(
                "trainer.learn() blocks, and this thread runs an event loop",
                facts={"called from": "a coroutine or a notebook cell"},
                fix="write `result = await trainer.run(...)`",
            )
        try:
            self._start(total_steps, max_seconds, target_return, callbacks, on_snapshot)
            return self._run.wait()
        except KeyboardInterrupt:
            self._run.stop_or_kill()
            raise

    async def run(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
        callbacks: Sequence[Any] = (),
        **unknown: Never,
    ) -> TrainResult:
        """Train like `learn`, without blocking the caller's event loop; a notebook cell shows a live card.

        A notebook's Interrupt ends the run and returns its result. Cancellation stops the run first.
        """
        check_learn_arguments("run", unknown)
        await asyncio.to_thread(running.close_earlier_runs_of, running_cell())
        self._start(total_steps, max_seconds, target_return, callbacks)
        card = live_card()
        if card is None:
            return await self.wait()
        shower = asyncio.create_task(_show(self, card), name="asyncrl-live-card")
        try:
            return await self.wait()
        finally:
            shower.cancel()
            if self._run.snapshot is not None:
                with contextlib.suppress(Exception):  # the run has its result, whether or not it is shown
                    card.show(self._run.snapshot)

    def start(
        self,
        total_steps: int | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
        callbacks: Sequence[Any] = (),
        **unknown: Never,
    ) -> None:
        """Start the run in the background; returns when `url` is set.

        In a notebook, runs that an earlier execution of the same cell has started are stopped first. An error that
        ends the run later is printed once, unless a caller waits for the result.

        Raises:
            RuntimeError: the run was started before.
            AsyncRLError: the error that ended the run before `url` was set.
        """
        check_learn_arguments("start", unknown)
        running.close_earlier_runs_of(running_cell())
        self._start(total_steps, max_seconds, target_return, callbacks)
        self._run.wait_until_served()

    def _start(
        self,
        total_steps: int | None,
        max_seconds: float | None,
        target_return: float | None,
        callbacks: Sequence[Any],
        on_snapshot: Callable[[Snapshot], None] | None = None,
    ) -> None:
        given = {"total_steps": total_steps, "max_seconds": max_seconds, "target_return": target_return}
        rules: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        config = dataclasses.replace(self.config, **rules)
        require_steps(self.algorithm, config, self._run.resumed)
        called = Callbacks(self, callbacks)
        if not self._run.started:
            self.config = config
        self._run.start(config, called, on_snapshot)
        running.add(self, running_cell())
        self._run.done.add_done_callback(lambda _: running.remove(self))

    async def wait(self) -> TrainResult:
        """Wait for the result of a started run. Raises the error that ended it.

        A notebook's Interrupt ends the run and returns its result.
        """
        if not self._run.started:
            raise RuntimeError("the run was not started; call trainer.start() first")
        self._run.awaited = True
        try:
            with interrupt_stops(lambda: self.stop("interrupted")):
                return await asyncio.shield(asyncio.wrap_future(self._run.done))
        except asyncio.CancelledError:
            await asyncio.to_thread(self._run.stop_or_kill)
            raise

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; any thread. Returns at once. The first reason counts."""
        self._run.stop(reason)

    def kill(self) -> None:
        """Kill every process of the run at once; any thread, also a signal handler."""
        self._run.kill()

    def close(self) -> None:
        """Stop the run and wait until it has ended; idempotent."""
        self._run.close()

    # --- watching ----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str | None:
        """Address of the live page, None before it is served or with `http="off"`."""
        return self._run.coordinator.url if self._run.coordinator is not None else None

    @property
    def page_url(self) -> str | None:
        """`url` with the run's token in its fragment, which the page's Stop and Checkpoint buttons need."""
        return self._run.coordinator.page_url if self._run.coordinator is not None else None

    @property
    def options(self) -> dict[str, Any]:
        """All options of the run by name, the algorithm's as `dqn.gamma`; a function as its text."""
        run, own = options_by_table(self.config, self.algorithm).values()
        return run | {f"{self.config.algo}.{name}": value for name, value in own.items()}

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._run.done.done()

    @property
    def result(self) -> TrainResult | None:
        """The result, also of a run that failed after it had learned; None before the end, or without weights."""
        return self._run.result

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._run.snapshot

    def _show_in(self, card: LiveCard) -> None:
        """Redraw `card` with every new snapshot."""
        self._run.listeners.append(card.follow)

    async def stream(self, interval_seconds: float = 1.0) -> AsyncIterator[Snapshot]:
        """Yield snapshots during the run, at most one per interval, and the last one."""
        shown = None
        while not self.done:
            if self._run.snapshot is not None and self._run.snapshot is not shown:
                shown = self._run.snapshot
                yield shown
            with contextlib.suppress(TimeoutError, Exception):
                async with asyncio.timeout(interval_seconds):
                    await asyncio.shield(asyncio.wrap_future(self._run.done))
        if self._run.snapshot is not None and self._run.snapshot is not shown:
            yield self._run.snapshot


def train(env: Any, algorithm: Algorithm | str = "dqn", **options: Unpack[RunOptions]) -> TrainResult:
    """Train in one line: `asyncrl.train("CartPole-v1", "dqn", total_steps=50_000)`. Options as for `Trainer`."""
    with Trainer(env, algorithm, **options) as trainer:
        return trainer.learn()


async def _show(trainer: Trainer, card: LiveCard) -> None:
    async for snapshot in trainer.stream():
        card.show(snapshot)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
