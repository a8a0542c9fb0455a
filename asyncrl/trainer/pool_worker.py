"""Worker of a `RunPool`: `python -m asyncrl.trainer.pool_worker FD` trains one run after another.

FD is its end of the connection; `run_pool.py` lists the messages. It ends when the connection does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from asyncrl.errors import AsyncRLWarning
from asyncrl.run.job import Job
from asyncrl.run.switching import own_process
from asyncrl.show.metrics import Snapshot
from asyncrl.trainer.channel import Channel, sendable
from asyncrl.trainer.run_pool import SIGNALS, Ended, Progressed, Started, Warned
from asyncrl.trainer.trainer import Trainer


class Worker:
    """Trains the runs that the connection asks for, in the main thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._jobs: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._current: tuple[int, Trainer] | None = None
        self._stops: dict[int, str] = {}
        self._hung_up = False
        self._lock = threading.RLock()  # a signal handler may stop a run while the main thread holds it

    def work(self) -> None:
        """Train runs until the connection ends."""
        threading.Thread(target=self._receive, name="asyncrl-run-pool", daemon=True).start()
        while (job := self._jobs.get()) is not None:
            self._train(*job)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: end the run in progress in the normal order, and without one the process, as by default."""
        if not self._stop():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _stop(self, reason: str = "interrupted") -> bool:
        """End the run in progress in the normal order; returns whether there is one."""
        with self._lock:
            if self._current is None:
                return False
            self._current[1].stop(reason)
            return True

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            kind, key, *values = message
            if kind == "run":
                self._jobs.put((key, *values))
                continue
            with self._lock:
                self._stops[key] = values[0]
                if self._current is not None and self._current[0] == key:
                    self._current[1].stop(values[0])
        self._jobs.put(None)
        with self._lock:
            self._hung_up = True  # a run that has not begun yet hears of it, too
            self._stop()

    def _train(self, key: int, path: list[str], packed: bytes) -> None:
        """Train one run and report its end."""
        trainer, error = None, None
        try:
            sys.path[:] = path  # on which the modules of environment and algorithm may be
            job: Job = pickle.loads(packed)
            trainer = Trainer._of_job(job)
            with self._lock:
                self._current = key, trainer
            send_snapshots(
                trainer,
                lambda page: self._channel.send(Started(key, page)),
                lambda snapshot: self._channel.send(Progressed(key, snapshot)),
            )
            trainer._start()
            if (reason := self._stops.get(key, "interrupted" if self._hung_up else None)) is not None:
                trainer.stop(reason)
            error = error_of(trainer)
        except BaseException as raised:
            error = raised
        result = None if trainer is None else trainer.result
        if trainer is not None:
            trainer.close()
        self._channel.send(Ended(key, result, sendable(error)))
        with self._lock:
            self._current = None  # only now: a signal would end the process before the result is sent


def send_snapshots(
    trainer: Trainer, send_page: Callable[[str | None], None], send: Callable[[Snapshot], None]
) -> None:
    """Send every snapshot of the run, and before the first the address of its page with the token, None without."""
    page_sent = False

    def listen(snapshot: Snapshot) -> None:
        nonlocal page_sent
        if not page_sent:
            page_sent = True
            send_page(trainer.page_url)
        send(snapshot)

    trainer._listeners.append(listen)


def error_of(trainer: Trainer) -> BaseException | None:
    """Wait for the end of the run; returns its error."""
    while True:
        with contextlib.suppress(TimeoutError):  # in short waits, so that signals are handled
            return trainer._done.exception(timeout=0.2)


def _send_warnings(channel: Channel) -> None:
    """Send the package's warnings, which the other process shows; others are shown here."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, AsyncRLWarning):
            channel.send(Warned(str(message)))
        else:
            before(message, category, *where, **more)

    warnings.showwarning = show


def main(descriptor: int) -> None:
    """Work until the connection with this descriptor ends."""
    channel = Channel(socket.socket(fileno=descriptor))
    worker = Worker(channel)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after `nohup`
            signal.signal(number, worker.interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the pool has held signals until now: a mask passes exec
    _send_warnings(channel)
    worker.work()


if __name__ == "__main__":
    with own_process():
        main(int(sys.argv[1]))
