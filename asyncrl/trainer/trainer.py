"""The trainer: one object per run, used the same way in a script, a shell and a notebook cell.

The event loop of a run is always in its own thread ("asyncrl-run"): a blocking notebook cell does not stop training, a
caller's loop is never blocked, and scripts, asyncio and Jupyter use the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, Unpack

from asyncrl.actors.descriptors import open_standard_descriptors
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe
from asyncrl.algorithms.other_names import Answering, unknown_attribute
from asyncrl.config import TrainerConfig, with_final_episodes
from asyncrl.envs.changes import described
from asyncrl.envs.source import EnvSource
from asyncrl.errors import (
    BlockingCallInLoop,
    ConfigurationError,
    ListenerFailed,
    StoppedWhileStarting,
    UserError,
    describe_error,
)
from asyncrl.interfaces import EnvSpec
from asyncrl.protocols import Algorithm
from asyncrl.run.callbacks import checked, own_event
from asyncrl.run.job import Job
from asyncrl.run.logged import LoggedMetrics
from asyncrl.run.result import TrainResult
from asyncrl.run.switching import paused_collection
from asyncrl.show.metrics import Snapshot
from asyncrl.show.notebook import LiveCard, ShownByCard, interrupt_stops, live_card, running_cell
from asyncrl.storage.config_file import options_by_table
from asyncrl.trainer import running
from asyncrl.trainer.arguments import (
    RunOptions,
    algorithm_and_options,
    check_learn_arguments,
    paths_from,
    refuse_swapped,
    require_data,
    require_policies,
    require_steps,
    working_directory,
)

if TYPE_CHECKING:
    from asyncrl.run.run import Run
    from asyncrl.show.console import RunConsole
    from asyncrl.trainer.ranks import Ranks

try:
    from uvloop import new_event_loop
except ImportError:  # Windows, or a platform without a wheel
    new_event_loop = asyncio.new_event_loop

CLOSE_SECONDS = 10.0
"""Time that a run has to end after a stop, before its processes are killed."""
KILLED_SECONDS = 1.0
"""Time that a run's thread is waited for after its processes were killed."""
SERVED_SECONDS = 60.0
"""Time for which `start` waits for the page's address; the start of the run continues afterwards."""
SIGNAL_SECONDS = 0.25
"""Longest time after which a waiting main thread runs the handler of a signal.

The kernel may deliver a signal to another thread than the main one, which a wait without a limit then never interrupts,
so that Python would not run the handler (on a busy machine 1 SIGHUP in 40).
"""
WORKER_SECONDS = 60.0
"""Longest time that the end of a run waits for its loop's worker threads, which write files."""


class Trainer(ShownByCard, metaclass=Answering):
    """Trains a policy in one environment, for its agent or all of its agents, or several; one run per object.

        trainer = Trainer("CartPole-v1", DQN(learning_rate=1e-3), num_actors=2, seed=0)
        result = trainer.learn(total_steps=200_000)         # blocks
        result = await trainer.run(total_steps=200_000)     # asyncio and Jupyter
        action, _ = result.policy.predict(obs)

    Args:
        env: Gymnasium id, registered spec, PettingZoo module (`"mpe2:simple_spread_v3"`), or zero-argument factory of
            an environment of Gymnasium or PettingZoo (sent to the actors by cloudpickle).
        algorithm: a record such as `DQN(...)`, or an algorithm's name for its preset for the environment; without one
            it is PPO.
        server: a fork server that is already starting, or None to start one with the run.
        options: fields of `TrainerConfig`, see `help(TrainerConfig)`; `wrappers` may also have classes and functions.
            Relative paths are those of the working directory at this moment.

    Attributes:
        job: options, algorithm and environment of the run, and the checkpoint of one that is resumed.
        result: the result, also of a run that failed after it had learned; None before the end, or without weights.

    Raises:
        TypeError: an option does not exist, or the algorithm is a class instead of a record.
        ValueError: a value is outside its range.
        FactoryNotPicklable: the factory cannot be sent to another process (ASYNC001).
    """

    def __init__(
        self,
        env: Any,
        algorithm: Algorithm | str = "ppo",
        *,
        server: ForkServer | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        refuse_swapped(env, algorithm)
        wrappers = options.pop("wrappers", ())
        wrappers = tuple(wrappers.split(",") if isinstance(wrappers, str) else wrappers)
        eval_env = options.pop("eval_env", None)
        evaluation = None if eval_env is None else EnvSource.from_user(eval_env)
        source = EnvSource.from_user(env)
        record, given = algorithm_and_options(algorithm, source.name, with_final_episodes(options, {}))
        named = tuple(described(wrapper) for wrapper in wrappers)
        if evaluation is not None:
            given["eval_env"] = evaluation.name
        config = TrainerConfig(env=source.name, algo=record.name, wrappers=named, **given)
        if evaluation is not None:
            evaluation = evaluation.changed({}, wrappers, **config.of_agents)
        source = source.changed(config.env_kwargs, wrappers, **config.of_agents)
        source = source.evaluated_in(evaluation, config.eval_env_kwargs, config.eval_levels)
        self._prepare(Job(config, record, source), server)

    @classmethod
    def from_config(
        cls,
        config: TrainerConfig,
        algorithm: Algorithm,
        *,
        env: Any = None,
        server: ForkServer | None = None,
        started: float | None = None,
    ) -> Self:
        """Make a trainer from two records.

        Args:
            config: options of the run.
            algorithm: options of the algorithm.
            env: the environment, if `config.env` only names a factory and `config.env_file` is not set.
            server: see `Trainer`.
            started: `time.monotonic()` at which wall and start-up time begin; None is the start of the run.
        """
        if env is None and config.env_file is not None:
            source = EnvSource.from_file(config.env, Path(config.env_file))
        else:
            source = EnvSource.from_user(config.env if env is None else env)
            source = source.changed(config.env_kwargs, config.wrappers, **config.of_agents)
        evaluation = None
        if config.eval_env is not None and config.eval_env_file is not None:
            evaluation = EnvSource.from_file(config.eval_env, Path(config.eval_env_file))
        elif config.eval_env is not None:
            evaluation = EnvSource.from_user(config.eval_env).changed({}, config.wrappers, **config.of_agents)
        source = source.evaluated_in(evaluation, config.eval_env_kwargs, config.eval_levels)
        return cls._of_job(Job(config, algorithm, source), server, started)

    @classmethod
    def resume(
        cls,
        run: str | os.PathLike[str],
        total_steps: int | str | None = None,
        *,
        checkpoint: str | int = "latest",
        restore_episodes: bool = True,
        server: ForkServer | None = None,
        started: float | None = None,
        **changes: Any,
    ) -> Self:
        """Make a trainer that resumes a run in its directory; `docs/resume.md` lists what continues exactly.

        Args:
            run: directory of the run.
            total_steps: environment steps of the whole run; `"+100k"` adds that many; None leaves the number unchanged.
            checkpoint: name of the checkpoint to resume from: `latest`, or a number of steps.
            restore_episodes: whether to continue the unfinished episodes in the checkpoint.
            server: see `Trainer`.
            started: see `from_config`.
            changes: options of the run or of its algorithm to change.

        Raises:
            ConfigurationError: there is no run, it has no steps left, or an option may not change (ASYNC017).
            CheckpointError: the checkpoint is missing or damaged (ASYNC019).
        """
        # Imported here because it imports torch.
        from asyncrl.storage.resume import prepare_resumption

        steps: Any = total_steps
        if not isinstance(steps, str | int | None):  # 2e5, or a NumPy integer
            steps = str(steps)
        config, algorithm, resumed = prepare_resumption(
            Path(run).expanduser(), str(checkpoint), steps, changes, restore_episodes
        )
        trainer = cls.from_config(config, algorithm, server=server, started=started)
        trainer.job = dataclasses.replace(trainer.job, resumed=resumed)
        return trainer

    @classmethod
    def _of_job(cls, job: Job, server: ForkServer | None = None, started: float | None = None) -> Self:
        trainer = cls.__new__(cls)
        trainer._prepare(job, server, started)
        return trainer

    def _prepare(self, job: Job, server: ForkServer | None, started: float | None = None) -> None:
        require_data(job.algorithm, job.config)
        require_policies(job.algorithm, job.config)
        self.job = job
        self.result: TrainResult | None = None
        self._server, self._started_at = server, started
        self._done: Future[TrainResult] = Future()
        self._thread: threading.Thread | None = None
        self._run: Run | Ranks | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_reason: str | None = None
        self._lock = threading.RLock()  # a signal handler may call `stop` while this thread holds it
        self._served = threading.Event()
        self._awaited = True  # whether a caller waits for the result; otherwise an error is printed
        self._snapshot: Snapshot | None = None
        self._listeners: list[Callable[[Snapshot], None]] = []
        self._callbacks: tuple[Any, ...] = ()
        self._logged = LoggedMetrics()
        self._made_in = working_directory()

    if not TYPE_CHECKING:  # a type checker would take every name

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

    # --- running -----------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_steps: int | str | None = None,
        *,
        max_seconds: float | None = None,
        target_return: float | None = None,
        on_snapshot: Callable[[Snapshot], None] | None = None,
        callbacks: Sequence[Any] = (),
        progress: Literal["auto"] | bool = "auto",
        **unknown: Never,
    ) -> TrainResult:
        """Train until the first limit is reached, then evaluate and return the result; blocks.

        Without a limit, here or among the trainer's options, the run goes on until it is stopped. The first Ctrl-C
        stops it and is raised, the second kills it. So do SIGTERM and SIGHUP, unless the program handles or ignores
        them; they then end it by SystemExit with the code 128 + their number. The result of an interrupted run is in
        `self.result`.

        Args:
            total_steps: stop after this many environment steps over all actors, rounded up to whole batches; of a
                resumed run those of the whole run, and `"+100k"` adds that many.
            max_seconds: stop after this many seconds of training.
            target_return: stop when the mean return of a confirmed evaluation reaches this.
            on_snapshot: called with every snapshot, on the run's thread; an exception in it does not end the run.
            callbacks: objects with methods of `Callback`, called on the run's thread; one that raises ends the run.
            progress: `"auto"` shows the screen of `asyncrl train` if standard output is a terminal, otherwise a line on
                standard error every ten seconds, in a notebook nothing; False shows nothing.
            unknown: refused.

        Raises:
            BlockingCallInLoop: this thread runs an event loop (ASYNC014).
            TypeError: an argument does not exist; the text names that of another library here.
            ValueError: a value is outside its range.
            AsyncRLError: the error that ended the run.
        """
        check_learn_arguments("learn", unknown)
        if progress not in ("auto", True, False):
            raise ValueError(f"progress must be 'auto', True or False, got {progress!r}")
        if _loop_is_running():
            raise BlockingCallInLoop(
                "trainer.learn() blocks, and this thread runs an event loop",
                facts={"called from": "a coroutine or a notebook cell"},
                fix="write `result = await trainer.run(...)`",
            )
        with _Terminations():
            try:
                self._start(total_steps, max_seconds, target_return, callbacks, on_snapshot)
            except KeyboardInterrupt:
                self._stop_or_kill()
                raise
            return self._follow(progress)

    def _follow(self, progress: Literal["auto"] | bool) -> TrainResult:
        """Show the run and wait for its end. An exception of a signal handler, such as of a time limit, ends it."""
        view = None
        try:
            view = self._view() if progress else None
            while not wait_for_futures([self._done], SIGNAL_SECONDS).done:
                pass
            return self._done.result()
        except BaseException as raised:
            if not self.done:  # else it is the run's own
                if isinstance(raised, KeyboardInterrupt) and view is not None and view.live:
                    view.notify("interrupted: stopping, Ctrl-C again to kill")
                self._stop_or_kill()
            raise
        finally:
            if view is not None:
                view.close()

    def _view(self) -> RunConsole | None:
        """Show every snapshot in the view of a script, if there is one."""
        try:
            # Imported here, as the run starts meanwhile.
            from asyncrl.show.console import script_console

            view = script_console()
        except Exception as error:  # the run goes on
            text = f"[ASYNC042] the progress cannot be shown: {describe_error(error)}; training goes on without it"
            warnings.warn(ListenerFailed(text), stacklevel=3)
            return None
        if view is not None:
            for line in self.resumed_from:
                # Nobody may read, or the output's encoding may lack a character of a path.
                with contextlib.suppress(OSError, ValueError):
                    print(line, file=sys.stdout if view.live else sys.stderr, flush=True)
            self._listeners.append(lambda snapshot: view.follow(snapshot, self.page_url))
        return view

    async def run(
        self,
        total_steps: int | str | None = None,
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
            if self._snapshot is not None:
                with contextlib.suppress(Exception):  # the run has its result, whether or not it is shown
                    card.show(self._snapshot)

    def start(
        self,
        total_steps: int | str | None = None,
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
        try:
            end = time.monotonic() + SERVED_SECONDS
            while not self._served.wait(SIGNAL_SECONDS) and time.monotonic() < end:
                pass
        except BaseException:  # of a signal's handler
            self.stop("interrupted")
            raise
        with self._lock:
            if not self._done.done():
                self._awaited = False
                return
        self._done.result()

    def _start(
        self,
        total_steps: int | str | None = None,
        max_seconds: float | None = None,
        target_return: float | None = None,
        callbacks: Sequence[Any] = (),
        on_snapshot: Callable[[Snapshot], None] | None = None,
    ) -> None:
        if isinstance(total_steps, str) and self.job.resumed is not None:
            from asyncrl.storage.resume import total_of  # imports torch, as has what made `resumed`

            total_steps = total_of(total_steps, self.job.resumed.total_steps)
        given = {"total_steps": total_steps, "max_seconds": max_seconds, "target_return": target_return}
        rules: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self._made_in is not None and self._made_in != working_directory():
            rules |= paths_from(self._made_in, self.config)
        job = dataclasses.replace(self.job, config=dataclasses.replace(self.config, **rules))
        require_steps(job)
        called = checked(callbacks)
        with self._lock:
            if self._thread is not None:
                raise RuntimeError(
                    "this trainer has run already; make a new Trainer, or go on with a run that has a directory: "
                    "Trainer.resume(run_dir, '+100k').learn()"
                )
            running.refuse_at_exit()
            self.job, self._callbacks = job, called
            open_standard_descriptors()
            if self._server is None:
                self._server = ForkServer()
                self._server.start()
            if on_snapshot is not None:
                self._listeners.append(lambda snapshot: on_snapshot(own_event(snapshot)))
            running.add(self, running_cell())
            self._thread = threading.Thread(target=self._run_in_thread, name="asyncrl-run", daemon=True)
            self._thread.start()

    async def wait(self) -> TrainResult:
        """Wait for the result of a started run. Raises the error that ended it.

        A script without an event loop writes `asyncio.run(trainer.wait())`.

        A notebook's Interrupt ends the run and returns its result.
        """
        if self._thread is None:
            raise RuntimeError("the run was not started; call trainer.start() first")
        self._awaited = True
        try:
            with interrupt_stops(lambda: self.stop("interrupted")):
                end = self._end()
                # No shield: in Python 3.14 it logs the error of a run whose caller has gone.
                await asyncio.wait((end,))
                return end.result()
        except asyncio.CancelledError:
            await asyncio.to_thread(self._stop_or_kill)
            raise

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; any thread. Returns at once. The first reason counts."""
        with self._lock:
            self._stop_reason = self._stop_reason or reason
            run, loop = self._run, self._loop
        if run is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the run and its loop have just ended
                loop.call_soon_threadsafe(run.stop, reason)

    def log(self, name: str | Mapping[str, Any], value: Any = None) -> None:
        """Log numbers of your own beside the run's metrics: `log("probe/success", 0.5)`, `log({"a": 1, "b": 2})`.

        They are in the next row of `metrics.jsonl` and TensorBoard, at its environment steps, and on the page, each in
        a chart; of several values of a name until then the last counts. Any thread, from before the run until `on_end`.
        Training does not wait for it, and nothing that is learned depends on it.

        Args:
            name: name of the number, or numbers by name; not one in the sections of the run's own metrics (`train/`).
            value: an int, a float, or one element of NumPy or torch; NaN and infinity are gaps in the charts.

        Raises:
            TypeError: a value is not one real number, or a name no text.
            ValueError: there are too many names, or one is the run's own, or has characters that are not taken.
            RuntimeError: the run has ended.
        """
        if self.done:
            raise RuntimeError(
                "log works until the run has ended; call it in a callback, on_end at the latest"
            )
        if isinstance(name, Mapping) and value is not None:
            raise TypeError(f"log takes a name and its value, or one dict, got a dict and {value!r:.60}")
        self._logged.log(name if isinstance(name, Mapping) else {name: value})

    def set_env_kwargs(self, **kwargs: Any) -> None:
        """Change keyword arguments of the training environments while the run goes on; any thread.

        They hold for the episodes that begin afterwards. Every actor makes a new environment at the end of an episode,
        unless the environment has a method `set_env_kwargs(**kwargs)`, which is called instead. Keyword arguments that
        are not named keep their values; evaluations keep those that the run began with (see `eval_levels`).

        In lockstep and synchronous runs it is called in `on_evaluation` (or `on_start`), and counts from the next
        evaluation's step on. Keyword arguments that the environment does not take, or that change its spaces, end the
        run with an error (ASYNC004, ASYNC005).

        Raises:
            RuntimeError: the run does not train now, has several groups, or is repeatable and this is another event;
                or its event loop does not answer for 10 s, and nothing is changed.
            ValueError: the run has no training environments.
            TypeError: a value is not a Python literal.
        """
        with self._lock:
            run, loop = self._run, self._loop
        change = getattr(run, "set_env_kwargs", None)
        if self.config.groups > 1 or (run is not None and change is None):
            raise RuntimeError(f"set_env_kwargs works in runs of one group, got groups={self.config.groups}")
        if change is None or loop is None or loop.is_closed():
            raise RuntimeError(
                "set_env_kwargs works while the run trains; give Trainer(env_kwargs=...) before it"
            )
        if threading.current_thread() is self._thread:
            change(kwargs)
            return

        changed: Future[None] = Future()

        def on_loop() -> None:
            if changed.set_running_or_notify_cancel():
                try:
                    changed.set_result(change(kwargs))
                except BaseException as error:
                    changed.set_exception(error)

        loop.call_soon_threadsafe(on_loop)
        wait_for_futures([changed], CLOSE_SECONDS)
        if changed.cancel():
            raise RuntimeError(
                f"set_env_kwargs had no answer from the run for {CLOSE_SECONDS:g} s: a callback, or this very thread, "
                "keeps its event loop from running"
            )
        changed.result()

    def kill(self) -> None:
        """Kill every process of the run at once; any thread, also a signal handler."""
        self._stop_reason = self._stop_reason or "interrupted"  # a run that is not made yet hears of it
        if self._server is not None:
            self._server.kill()
        if self._run is not None:
            self._run.kill()

    def close(self) -> None:
        """Stop the run and wait until it has ended; kill it after `CLOSE_SECONDS`. Idempotent."""
        if threading.current_thread() is self._thread:  # a callback cannot wait for its own run
            self.stop("interrupted")
        elif self._thread is None:
            running.remove(self)
            if self._server is not None:
                self._server.close()
        elif self._thread.is_alive():
            # Its own reason: a run that was stopped while it is built ends with a policy, see `Run`.
            self._stop_or_kill(self._stop_reason or "interrupted")
            running.remove(self)

    def _stop_or_kill(self, reason: str = "interrupted") -> None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await asyncio.to_thread(self.close)

    # --- watching ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TrainerConfig:
        """Every option of the run except its algorithm's."""
        return self.job.config

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's record."""
        return self.job.algorithm

    @property
    def url(self) -> str | None:
        """Address of the live page, None before it is served or with `http="off"`."""
        return self._run.url if self._run is not None else None

    @property
    def page_url(self) -> str | None:
        """`url` with the run's token in its fragment, which the page's Stop and Checkpoint buttons need."""
        return self._run.page_url if self._run is not None else None

    @property
    def options(self) -> dict[str, Any]:
        """All options of the run by name, the algorithm's as `dqn.gamma`; a function as its text."""
        run, own = options_by_table(self.config, self.algorithm).values()
        return run | {f"{self.config.algo}.{name}": value for name, value in own.items()}

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the training environments, with the newest changes by `set_env_kwargs`."""
        changes = getattr(self._run, "env_kwargs", None)
        return dict(self.config.env_kwargs) if changes is None else changes.values

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._done.done()

    @property
    def resumed_from(self) -> tuple[str, ...]:
        """Lines about the checkpoint of a resumed run and about what does not continue exactly; empty for a new run."""
        return () if self.job.resumed is None else self.job.resumed.lines()

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot, None before the first."""
        return self._snapshot

    def _show_in(self, card: LiveCard) -> None:
        """Redraw `card` with every new snapshot."""
        self._listeners.append(card.follow)

    async def stream(self, interval_seconds: float = 1.0) -> AsyncIterator[Snapshot]:
        """Yield snapshots during the run, at most one per interval, and the last one."""
        shown, end = None, self._end()
        while not self.done:
            if self._snapshot is not None and self._snapshot is not shown:
                shown = self._snapshot
                yield shown
            await asyncio.wait((end,), timeout=interval_seconds)
        if self._snapshot is not None and self._snapshot is not shown:
            yield self._snapshot

    def _end(self) -> asyncio.Future[TrainResult]:
        """Future of the result on the running loop. It must not be cancelled: that would cancel `_done`."""
        end = asyncio.wrap_future(self._done)
        # Its caller may have gone, and asyncio prints the traceback of an error that nobody has retrieved.
        end.add_done_callback(lambda ended: ended.exception())
        return end

    # --- on the run's thread -----------------------------------------------------------------------------------------

    def _run_in_thread(self) -> None:
        result: TrainResult | None = None
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.get_loop().set_default_executor(_Workers(thread_name_prefix="asyncio"))
                result = runner.run(self._train())
        except BaseException as raised:
            error = raised
        running.remove(self)
        with self._lock:
            if result is not None:
                self._done.set_result(result)
            else:
                self._done.set_exception(error)
            if error is not None and not self._awaited:
                self._print_failure(error)
        self._served.set()

    async def _train(self) -> TrainResult:
        assert self._server is not None
        try:
            run = await self._make_run(self._server)
        except BaseException:
            self._server.close()
            raise
        with self._lock:
            self._run, self._loop = run, asyncio.get_running_loop()
            reason = self._stop_reason
        if reason is not None:
            run.stop(reason)
        try:
            result = await run.run()
        finally:
            self.result = run.result
            run.callbacks.end(self.result)
            run.write_logged()
        if run.callbacks.error is not None:
            raise run.callbacks.error
        return result

    async def _probe_while_loading(self, server: ForkServer) -> asyncio.Task[EnvSpec] | None:
        """Load the modules of a run; returns the probe that has begun meanwhile, None for one of several groups.

        What the user can mend is raised at once; the run hears of any other error of the probe, and keeps it.
        """
        probing = None
        if self.config.groups == 1 and "RANK" not in os.environ:
            own = probe(server, self.job.source, self.config.ready_timeout_seconds)
            probing = asyncio.create_task(own, name="probe")
        else:
            from asyncrl.groups.place import quiet_stores

            quiet_stores()
        await _loaded(probing)
        return probing

    async def _make_run(self, server: ForkServer) -> Run | Ranks:
        """Make the run: of this process, as one of several groups under torchrun, or of the processes of its groups.

        Raises:
            ConfigurationError: the run directory cannot be used, or the groups' options do not match.
            GroupLost: a group did not join.
            StoppedWhileStarting: `stop` was called meanwhile.
        """
        probing = await self._probe_while_loading(server)
        of_user: dict[str, Any] = {"trainer": self, "callbacks": self._callbacks, "logged": self._logged}
        from asyncrl.run.grouped import Alone, Group, own_place
        from asyncrl.run.run import Run, ended
        from asyncrl.trainer.ranks import Ranks

        job, config = self.job, self.config
        place = own_place(config)
        if place is None and config.groups > 1 and "RANK" not in os.environ:
            server.close()  # the ranks start their own
            return Ranks(job, self._receive, **of_user)
        if place is not None and config.policies:
            raise ConfigurationError(
                "policies must be none in one of several groups",
                fix="leave policies out, or start without torchrun",
            )
        group: Group | Alone = Alone(job)
        if place is not None:
            group = await Group.join(place, job, lambda: self._stop_reason is not None)
        try:
            return Run(
                group,
                server,
                self._receive,
                started=self._started_at,
                probing=probing,
                **of_user,
            )
        except BaseException as error:
            group.tell_failure(error)  # the other groups would wait for this one
            if probing is not None:
                await ended(probing)
            raise

    def _receive(self, snapshot: Snapshot) -> None:
        self._snapshot = own_event(snapshot)  # `snapshot` and `stream` give it to the user
        if snapshot.error is None:  # else the run ends now, and `start` raises its error
            self._served.set()
        for listener in self._listeners:
            listener(snapshot)

    def _print_failure(self, error: BaseException) -> None:
        """Print the error that ended a background run."""
        if isinstance(error, StoppedWhileStarting):
            return
        text = (
            f"asyncrl: the run of {self.config.algo} in {self.config.env} has failed\n{describe_error(error)}"
        )
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class _Terminations:
    """Context manager in which SIGTERM and SIGHUP raise KeyboardInterrupt; does nothing but on the main thread.

    They leave it as SystemExit with the code 128 + their number. A signal that the program handles or ignores (`nohup`)
    stays as it is.
    """

    def __init__(self) -> None:
        self._number = 0  # the last of these signals
        self._raised: list[int] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._raised.append(number)
                    signal.signal(number, self._raise)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number in self._raised:
            signal.signal(number, signal.SIG_DFL)
        if self._number and kind is KeyboardInterrupt:
            raise SystemExit(128 + self._number) from None

    def _raise(self, number: int, frame: object) -> None:
        self._number = number
        raise KeyboardInterrupt


class _Workers(ThreadPoolExecutor):
    """Worker threads of a run's loop; `shutdown` leaves one that a disk holds behind after `WORKER_SECONDS`."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            waiting = threading.Thread(target=super().shutdown, name="end-workers", daemon=True)
            waiting.start()
            waiting.join(WORKER_SECONDS)


def train(
    env: Any,
    algorithm: Algorithm | str = "ppo",
    *,
    progress: Literal["auto"] | bool = "auto",
    **options: Unpack[RunOptions],
) -> TrainResult:
    """Train in one line: `asyncrl.train("CartPole-v1", "dqn", total_steps=50_000)`.

    Algorithm and options are those of `Trainer`, and `progress` is that of `Trainer.learn`.
    """
    with Trainer(env, algorithm, **options) as trainer:
        return trainer.learn(progress=progress)


async def _show(trainer: Trainer, card: LiveCard) -> None:
    async for snapshot in trainer.stream():
        card.show(snapshot)


async def _loaded(probing: asyncio.Task[EnvSpec] | None) -> None:
    """Wait until the modules of a run are imported, which import torch, on a thread of their own.

    They are imported only here, in parallel with the fork server, and not by an actor whose environment's module
    imports Trainer. The thread is no daemon: torch's code must not be cut off at the end of the program.

    Raises:
        UserError: the probe has found a mistake meanwhile; the import goes on.
    """
    modules = ("asyncrl.run.run", "asyncrl.trainer.ranks")
    if all(module in sys.modules for module in modules):
        return
    loop = asyncio.get_running_loop()
    imported: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not imported.done():
            imported.set_result(None) if error is None else imported.set_exception(error)

    def load() -> None:
        failed = None
        try:
            with paused_collection():
                for module in modules:
                    importlib.import_module(module)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, failed)

    threading.Thread(target=load, name="asyncrl-import").start()
    first = (imported,) if probing is None else (imported, probing)
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if probing is not None and probing.done() and isinstance(probing.exception(), UserError):
        probing.result()
    await imported


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
