"""Load conditions of other machines, for scripts that show that results do not depend on them.

quiet       no change
one-core    the process and all its children are pinned to one core
busy        a process spins on every core
jitter      one random descendant of this process at a time is suspended for 20 to 200 ms, again and again

`jitter` is not among the conditions that are measured by default: its seconds say nothing, only its numbers do.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

CONDITIONS = ("quiet", "one-core", "busy")
"""Conditions that are measured by default."""
ALL_CONDITIONS = (*CONDITIONS, "jitter")


def descendants() -> list[int]:
    """Process ids of all descendants of this process, zombies excluded."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, front = [], [os.getpid()]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found += front
    return found


def any_descendant(rng: random.Random) -> list[int]:
    """A random descendant of this process, alone in a list; an empty list without descendants."""
    pids = descendants()
    return [rng.choice(pids)] if pids else []


@contextlib.contextmanager
def suspensions(
    choose: Callable[[random.Random], list[int]] = any_descendant,
    pause: tuple[float, float] = (0.02, 0.2),
    hold: tuple[float, float] = (0.02, 0.2),
) -> Iterator[list[int]]:
    """Suspend the processes `choose(rng)` again and again until the block ends; yields the ids of the suspended ones.

    Args:
        choose: returns the ids of processes to suspend together.
        pause: range of the time between two suspensions, in seconds.
        hold: range of the length of a suspension, in seconds.
    """
    over, rng = threading.Event(), random.Random(os.getpid())
    suspended: list[int] = []

    def suspend() -> None:
        while not over.wait(rng.uniform(*pause)):
            chosen = choose(rng)
            for pid in chosen:
                _signal(pid, signal.SIGSTOP)
            suspended.extend(chosen)
            over.wait(rng.uniform(*hold))
            for pid in chosen:
                _signal(pid, signal.SIGCONT)

    thread = threading.Thread(target=suspend, name="suspensions")
    thread.start()
    try:
        yield suspended
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def condition(name: str) -> Iterator[None]:
    """Apply a condition to this process and the processes that it starts meanwhile."""
    cores = os.sched_getaffinity(0)
    spinners: list[subprocess.Popen[bytes]] = []
    during: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    try:
        if name == "one-core":
            os.sched_setaffinity(0, {min(cores)})
        elif name == "busy":
            for core in sorted(cores):
                spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
                spinners.append(subprocess.Popen([sys.executable, "-c", spin]))
        elif name == "jitter":
            during = suspensions()
        elif name != "quiet":
            raise ValueError(f"condition must be one of {', '.join(ALL_CONDITIONS)}, got {name!r}")
        with during:
            yield
    finally:
        os.sched_setaffinity(0, cores)
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process has ended
        os.kill(pid, number)
