"""Registry of this process's runs that have not ended, with the notebook cell that started each.

A notebook cell that is executed again ends the runs of its earlier execution, because their variables were rebound. The
end of the process ends all runs, in the normal order.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.show.notebook import Cell


class Run(Protocol):
    """A started run: a `Trainer`."""

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        ...

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; returns at once."""
        ...

    def close(self) -> None:
        """Stop the run and wait until it has ended."""
        ...


@dataclass(frozen=True)
class _Started:
    run: Run
    cell: Cell | None
    thread: threading.Thread
    """Thread that has started it."""


_POLL_SECONDS = 0.25
_started: list[_Started] = []
_exiting = False
_lock = threading.RLock()  # a signal handler may call `stop_all` while its thread holds it


def add(run: Run, cell: Cell | None) -> None:
    """Add a run that this thread starts in `cell`, None outside a notebook."""
    with _lock:
        _started.append(_Started(run, cell, threading.current_thread()))


def remove(run: Run) -> None:
    """Remove a run that has ended; the list would keep its memory until the process ends."""
    with _lock:
        _started[:] = [started for started in _started if started.run is not run]


def running() -> tuple[Run, ...]:
    """Return the runs that have not ended, oldest first."""
    with _lock:
        return tuple(started.run for started in _started if not started.run.done)


def stop_all() -> None:
    """Stop every run of this process in the normal order, and wait until all have ended."""
    _close(running())


def close_earlier_runs_of(cell: Cell | None) -> None:
    """Stop the runs that an earlier execution of `cell` has started, and wait for them."""
    if cell is None:
        return
    with _lock:
        earlier = tuple(s.run for s in _started if s.cell is not None and cell.is_again(s.cell))
    _close(earlier)


def _close(runs: tuple[Run, ...], reason: str = "stopped") -> None:
    for run in runs:  # all at once, then wait
        run.stop(reason)
    for run in runs:
        run.close()


def refuse_at_exit() -> None:
    """Raise RuntimeError if the interpreter ends: its thread pools have ended, and no run can be trained."""
    if _exiting:
        raise RuntimeError(
            "a run cannot be started while the program ends (in atexit, or after the main thread's last line): "
            "start it before, or let the main thread join the thread that starts it"
        )


def _close_at_exit() -> None:
    """Stop the runs at the end of the main thread, but first wait for the threads that have started some.

    The interpreter waits for them anyway, as for every thread that is no daemon. Ctrl-C ends the wait.
    """
    global _exiting
    try:
        for started in tuple(_started):
            if not _keeps_process(started.thread):
                started.run.stop("interrupted")
        while kept := [started.thread for started in tuple(_started) if _keeps_process(started.thread)]:
            while kept[0].is_alive():
                kept[0].join(_POLL_SECONDS)  # in short waits, so that signals are handled
    finally:
        _exiting = True
        _close(running(), "interrupted")


def _keeps_process(thread: threading.Thread) -> bool:
    return thread.is_alive() and not thread.daemon and thread is not threading.main_thread()


# Functions of `atexit` are called after Python has ended all thread pools, without which no checkpoint is written. The
# pools are ended by a function registered like this one when their module was imported; the last one is called first.
_register: Any = getattr(threading, "_register_atexit", atexit.register)
try:
    _register(_close_at_exit)
except RuntimeError:  # this module is imported by a program that ends
    _exiting = True
if hasattr(os, "register_at_fork"):  # a child of `multiprocessing` has copies of its parent's runs
    os.register_at_fork(after_in_child=_started.clear)
