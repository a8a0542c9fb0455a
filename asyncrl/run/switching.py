"""The interpreter during runs: its switch interval, and objects that it need not collect."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Iterator

from asyncrl.timer_slack import set_timer_slack

SWITCH_SECONDS = 1e-5
"""Interpreter's switch interval during a run: how long a thread waits for the interpreter's lock before it asks for it.

The learner's thread releases the lock in every kernel and product, and gets it back after the interval if a program
computes in Python meanwhile, as in another cell of a notebook. With half a millisecond DQN on CartPole then made 0.05
of its updates and SAC with layers of 256 half; with this, and waits of the learner's thread that end on time, 0.56 and
0.82, on two cores of another machine (`python -m benchmarks.systems.busy_caller`). Kernels that keep the lock add a
tenth to that, and would make the loop wait.
"""
LOOP_SLACK_NANOSECONDS = 1_000_000
"""Timer slack of the run's thread.

While it waits for the lock it would else set a timer every 10 us, which on a virtual machine takes long: on one core
DQN then made 0.3 of its updates (`benchmarks.systems.switching`).
"""

_lock = threading.Lock()
_runs = 0
_before = 0.0
_frozen = False
_for_good = False


@contextlib.contextmanager
def fast_switching() -> Iterator[None]:
    """Set `SWITCH_SECONDS` and, for the calling thread, the slack; the last of several runs restores the interval."""
    global _runs, _before
    set_timer_slack(LOOP_SLACK_NANOSECONDS)
    with _lock:
        _runs += 1
        if _runs == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.setswitchinterval(_before)


@functools.cache
def _program_freezes() -> bool:
    """Whether the program has excluded objects from collection itself; asked once, as counting them takes 50 ms."""
    return gc.get_freeze_count() > 0


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause garbage collection. For imports, which free nothing: `import torch` takes 1.05 s of CPU instead of 1.2."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Say that this process is ours and ends after this: objects are excluded from garbage collection for good.

    A run then need not collect before it excludes the imported objects (0.14 s), for there is no garbage of a program;
    and the interpreter, which collects at its exit, need not look at torch's objects (0.25 s after `import torch`).
    """
    global _for_good
    _for_good = True
    try:
        yield
    finally:
        gc.freeze()


@contextlib.contextmanager
def frozen_objects() -> Iterator[None]:
    """Exclude all present objects from garbage collection, which saves pauses of 85 ms.

    Does nothing where the program or another run excludes objects already: they could not be told apart.
    """
    global _frozen
    if _for_good:
        gc.freeze()
        yield
        return
    with _lock:
        mine = not _frozen and not _program_freezes()
        _frozen = _frozen or mine
    if not mine:
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen = False
