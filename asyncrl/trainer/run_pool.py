"""Several runs side by side, each in a process of its own, so that no run shares an interpreter's lock with another.

this process ── worker (`pool_worker.py`) ── run, then the next run
             ── worker ── ...

    this process -> worker    ("run", key, sys.path, pickled Job), ("stop", key, reason)
    worker -> this process    an `Event`

A worker is kept for the next run, which saves the import of torch, and replaced if its run failed or it has died. A
worker whose connection ends stops its run with a checkpoint, and a run whose worker dies has ended with an error; the
others go on. A signal to a worker stops its run with a checkpoint, and ends a worker that trains none.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.actors.exit_errors import how_it_ended
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import AsyncRLError, ResourceError, StoppedWhileStarting
from asyncrl.run.job import Job
from asyncrl.trainer.channel import Channel

if TYPE_CHECKING:
    from asyncrl.run.result import TrainResult
    from asyncrl.show.metrics import Snapshot

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a worker's run; a terminal sends them to every process of its group."""
SIGNAL_SECONDS = 0.25
"""Longest time after which a waiting main thread runs the handler of a signal, see `trainer.py`."""
CLOSE_SECONDS = 20.0
"""Time that all runs together have to end after `close`, before their workers are killed."""


@dataclass(frozen=True)
class Started:
    """A run begins; `page` is its address with the token, None without a page."""

    key: int
    page: str | None


@dataclass(frozen=True)
class Progressed:
    """A new snapshot of a run."""

    key: int
    snapshot: Snapshot


@dataclass(frozen=True)
class Ended:
    """A run has ended: its result, None without weights, and the error that ended it, or None."""

    key: int
    result: TrainResult | None
    error: BaseException | None


@dataclass(frozen=True)
class Warned:
    """A run has given a warning."""

    text: str


Event = Started | Progressed | Ended | Warned


def runs_at_once(config: TrainerConfig, asked: int | None = None) -> int:
    """Number of runs at a time: that which is asked for, or for None as many as this machine has cores for.

    A run needs a core for every actor and every learner. Raises ValueError for less than one run.
    """
    if asked is not None and asked < 1:
        raise ValueError(
            f"at_once must be at least 1, or None for as many as there are cores for, got {asked}"
        )
    return asked or max(1, usable_cores() // (config.groups * (config.actors + 1)))


class RunPool:
    """Workers that train runs; one thread begins runs and waits for events, `stop` and `kill` may come from any.

    A context manager: at its end the runs are stopped and all processes have ended.

    Attributes:
        stop_reason: reason of the first `stop`, after which no run should begin; None before.
    """

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._idle: list[_Worker] = []
        self._busy: dict[int, _Worker] = {}
        self._lock = threading.RLock()  # a signal handler may call `kill` while its thread holds it

    def __enter__(self) -> RunPool:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        """Number of runs that have begun and whose end `wait` has not returned."""
        return len(self._busy)

    def begin(self, key: int, job: Job) -> None:
        """Begin a run under a key that no other run in progress has."""
        with self._lock:
            dead = [worker for worker in self._idle if worker.closed]
            self._idle = [worker for worker in self._idle if not worker.closed]
            worker = self._idle.pop() if self._idle else _Worker(self._events)
            self._busy[key] = worker
        for ended in dead:
            ended.end(CLOSE_SECONDS)
        worker.begin(key, job)
        if self.stop_reason is not None:
            worker.stop(key, self.stop_reason)

    def wait(self, seconds: float | None = None) -> Event | None:
        """Wait for the next event; None after `seconds`."""
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            with contextlib.suppress(queue.Empty):  # in short waits, so that signals are handled
                event = self._events.get(timeout=SIGNAL_SECONDS)
                if isinstance(event, Ended):
                    self._note_end(event)
                return event
        return None

    def _note_end(self, event: Ended) -> None:
        with self._lock:
            worker = self._busy.pop(event.key)
            if event.error is None and not worker.closed:
                self._idle.append(worker)
                return
        worker.end(CLOSE_SECONDS)

    def stop_run(self, key: int, reason: str = "stopped") -> None:
        """End one run in the normal order; does nothing if it has ended."""
        with self._lock:
            worker = self._busy.get(key)
        if worker is not None:
            worker.stop(key, reason)

    def stop(self, reason: str = "stopped") -> None:
        """End all runs in the normal order; any thread. Returns at once. The first reason counts."""
        with self._lock:
            self.stop_reason = self.stop_reason or reason
            busy = dict(self._busy)
        for key, worker in busy.items():
            worker.stop(key, reason)

    def kill(self) -> None:
        """Kill all workers at once, whose actors end with them; any thread, also a signal handler."""
        for worker in [*self._busy.values(), *self._idle]:
            worker.kill()

    def close(self) -> None:
        """Stop the runs and end the workers; those that have not ended after `CLOSE_SECONDS` are killed."""
        self.stop("interrupted")
        with self._lock:
            workers = [*self._busy.values(), *self._idle]
            self._busy, self._idle = {}, []
        end = time.monotonic() + CLOSE_SECONDS
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.end(max(0.0, end - time.monotonic()))


class _Worker:
    """One process that trains one run at a time.

    Attributes:
        closed: whether its connection has ended.
    """

    def __init__(self, events: queue.SimpleQueue[Event]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", "asyncrl.trainer.pool_worker", str(theirs.fileno()))
            # A signal while the worker imports would end it with a traceback: it is blocked until it has its handlers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._channel, self._events = Channel(ours), events
        self._key: int | None = None
        self._trains = False
        self._lock = threading.Lock()
        self.closed = False
        self._receiver = threading.Thread(target=self._receive, name="asyncrl-run-pool", daemon=True)
        self._receiver.start()

    def begin(self, key: int, job: Job) -> None:
        packed = pack_policy(job)
        self._key, self._trains = key, False
        self._channel.send("run", key, sys.path, packed)
        if self.closed:  # it has just died
            self._report_loss(self._error_of_exit())

    def stop(self, key: int, reason: str) -> None:
        self._channel.send("stop", key, reason)

    def hang_up(self) -> None:
        """Close the connection: the worker stops its run and ends."""
        self._channel.close()

    def end(self, seconds: float) -> None:
        """Wait for the process after `hang_up`, and kill it after `seconds`."""
        self.hang_up()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._receiver.join()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, signal.SIGKILL)

    def _receive(self) -> None:
        """Pass on the worker's events; a connection that ends during a run is that run's end."""
        try:
            while (message := self._channel.receive()) is not None:
                (event,) = message
                self._trains = self._trains or isinstance(event, Started | Progressed)
                if isinstance(event, Ended):
                    self._key = None
                self._events.put(event)
        except Exception as error:  # the result holds something that only the worker can import
            failure: BaseException = error
            self._channel.close()
        else:
            failure = self._error_of_exit()
        self.closed = True
        self._report_loss(failure)

    def _report_loss(self, error: BaseException) -> None:
        """Report the end of the run in progress, if there is one."""
        with self._lock:
            key, self._key = self._key, None
        if key is not None:
            self._events.put(Ended(key, None, error))

    def _error_of_exit(self) -> AsyncRLError:
        status = self._process.wait()
        if not self._trains and -status in SIGNALS:
            name = signal.Signals(-status).name
            return StoppedWhileStarting(
                f"The run was stopped by {name} while it started; it leaves no policy."
            )
        return ResourceError(
            f"The process of a run {how_it_ended(status)}.",
            facts={"pid": self._process.pid},
            fix="look at its output above; `dmesg` tells of a process that the kernel has killed",
        )
