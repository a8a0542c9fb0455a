"""End of a run's thread: runs that still train when the process ends, and worker threads that a disk holds."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from asyncrl.config import TrainerConfig
from asyncrl.errors import StoppedWhileStarting
from asyncrl.printable import describe_error

WORKER_SECONDS = 60.0
"""Longest time that the end of a run waits for its loop's worker threads, which write files."""


class Workers(ThreadPoolExecutor):
    """Worker threads of a run's loop; `shutdown` leaves one that a disk holds behind after `WORKER_SECONDS`."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            waiting = threading.Thread(target=super().shutdown, name="end-workers", daemon=True)
            waiting.start()
            waiting.join(WORKER_SECONDS)


class Open(Protocol):
    """A started run: a `RunThread`."""

    @property
    def started_by(self) -> threading.Thread:
        """Thread that has started it."""
        ...

    def stop(self, reason: str) -> None:
        """End the run in the normal order; returns at once."""
        ...

    def close(self) -> None:
        """Stop the run and wait until it has ended."""
        ...


_LOOK_SECONDS = 0.25
_open: list[Open] = []
_exiting = False


def close_at_exit(run: Open) -> None:
    """Close `run` when the process ends, unless `forget` is called before."""
    _open.append(run)


def forget(run: Open) -> None:
    """Undo `close_at_exit`; the list would keep the run's memory until the process ends."""
    _open[:] = [other for other in _open if other is not run]


def refuse_at_exit() -> None:
    """Raise RuntimeError if the interpreter ends: its thread pools have ended, and no run can be trained."""
    if _exiting:
        raise RuntimeError(
            "a run cannot be started while the program ends (in atexit, or after the main thread's last line): "
            "start it before, or let the main thread join the thread that starts it"
        )


def _close_all() -> None:
    """Stop the runs at the end of the main thread, but first wait for the threads that have started some.

    The interpreter waits for them anyway, as for every thread that is no daemon. Ctrl-C ends the wait.
    """
    global _exiting
    try:
        for run in tuple(_open):
            if not _keeps_process(run.started_by):
                run.stop("interrupted")
        while kept := [run.started_by for run in tuple(_open) if _keeps_process(run.started_by)]:
            while kept[0].is_alive():
                kept[0].join(_LOOK_SECONDS)  # in short waits, so that signals are handled
    finally:
        _exiting = True
        _stop_all()


def _keeps_process(thread: threading.Thread) -> bool:
    return thread.is_alive() and not thread.daemon and thread is not threading.main_thread()


def _stop_all() -> None:
    for run in tuple(_open):  # all at once, then wait
        run.stop("interrupted")
    for run in tuple(_open):
        run.close()


def print_failure(config: TrainerConfig, error: BaseException) -> None:
    """Print the error that ended a background run."""
    if isinstance(error, StoppedWhileStarting):
        return
    text = f"asyncrl: the run of {config.algo} in {config.env} has failed\n{describe_error(error)}"
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


# Functions of `atexit` are called after Python has ended all thread pools, without which no checkpoint is written. The
# pools are ended by a function registered like this one when their module was imported; the last one is called first.
_register: Any = getattr(threading, "_register_atexit", atexit.register)
try:
    _register(_close_all)
except RuntimeError:  # this module is imported by a program that ends
    _exiting = True
if hasattr(os, "register_at_fork"):  # a child of `multiprocessing` has copies of its parent's runs
    os.register_at_fork(after_in_child=_open.clear)
