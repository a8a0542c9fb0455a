"""Processes and threads: the number that a run needs, checked before it starts.

The limits are those of the user and of the control groups, such as a container's. Both count a thread like a process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from asyncrl.errors import ResourceError
from asyncrl.shm.control_groups import control_groups

PER_ACTOR = 1
"""An actor has one thread; what its environments start is not known before."""
BESIDES = 16
"""Other processes and threads that are still to start: evaluator, learner, worker threads, and a reserve."""


@dataclass(frozen=True)
class _Limit:
    """A limit of processes and threads: what sets it, the number allowed and running now, and how to raise it."""

    name: str
    allowed: int
    running: int
    fix: str


def require_processes(num_actors: int) -> None:
    """Raise `ResourceError` if a limit of processes leaves fewer than a run needs."""
    needed = BESIDES + PER_ACTOR * num_actors
    for limit in _limits():
        left = max(0, limit.allowed - limit.running)
        if needed > left:
            raise ResourceError(
                f"A run with {num_actors} actors needs {needed:,} more processes and threads, but {limit.name} "
                f"leaves {left:,}.",
                facts={
                    "allowed": limit.allowed,
                    "running already": limit.running,
                    "for each actor": PER_ACTOR,
                    "for everything else": BESIDES,
                },
                fix=f"{limit.fix.format(limit.running + needed)}, or lower num_actors",
            )


def _limits() -> Iterator[_Limit]:
    if (allowed := _allowed_to_user()) is not None:
        fix = "run `ulimit -u {}` in the shell before"
        yield _Limit("the limit of this user (ulimit -u)", allowed, _running_of_user(), fix)
    for group, _ in control_groups("pids"):
        with contextlib.suppress(OSError, ValueError):  # "max", or a group without the controller
            allowed, running = (int((group / name).read_text()) for name in ("pids.max", "pids.current"))
            fix = "raise it to {} (docker: --pids-limit)"
            yield _Limit(f"the container or control group ({group / 'pids.max'})", allowed, running, fix)


def _allowed_to_user() -> int | None:
    """RLIMIT_NPROC, None if it is unlimited or not enforced: Linux does not hold root to it."""
    if sys.platform == "win32" or os.getuid() == 0:
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft == resource.RLIM_INFINITY else soft


def _running_of_user() -> int:
    """Threads of all processes of this user; on other systems than Linux their number of processes."""
    own, count = os.getuid(), 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == own:
                count += process.num_threads() if sys.platform == "linux" else 1
    return count
