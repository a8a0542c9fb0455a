"""File descriptors: the standard ones, the number that a run needs, and the error when there are too few."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from asyncrl.errors import TooFewDescriptors

PER_ACTOR = 8
"""Descriptors per actor: ring, request block and their mappings, socket, stack file; at its start also the other end of
the socket and its payload."""
BESIDES = 64
"""Other descriptors: mailbox, doorbell, evaluator, event loop, files of the run, the page and a few of its readers, and
a reserve."""


def open_standard_descriptors() -> None:
    """Open descriptors 0 to 2 on the null device if they are closed, as in a daemon.

    Otherwise a file or socket of the run would get their numbers: libuv aborts on that, and prints of an environment
    would be written to it.
    """
    while (lowest_free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest_free, True)
    os.close(lowest_free)


def require_descriptors(num_actors: int) -> None:
    """Raise `TooFewDescriptors` (ASYNC030) if the limit of open files of this process is below what a run needs."""
    limit, held = _limit(), _held()
    needed = held + BESIDES + PER_ACTOR * num_actors
    if limit is not None and needed > limit:
        raise TooFewDescriptors(
            f"A run with {num_actors} actors needs {needed:,} file descriptors, but {limit:,} are allowed.",
            facts={"open already": held, "for each actor": PER_ACTOR, "for everything else": BESIDES},
            fix=f"run `ulimit -n {_round_up(needed)}` in the shell before, or lower num_actors",
        )


@contextlib.contextmanager
def descriptors_or_error(who: str) -> Iterator[None]:
    """Turn the system's "too many open files" into `TooFewDescriptors` (ASYNC030).

    Args:
        who: subject of the message, which cannot be started.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit = _limit()
        raise TooFewDescriptors(
            f"{who} cannot be started: {os.strerror(error.errno)}.",
            facts={"allowed": limit},
            fix=f"run `ulimit -n {_round_up(2 * (limit or 1024))}` in the shell before, or lower num_actors",
        ) from error


def _limit() -> int | None:
    """Limit of descriptors of this process, None if unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _held() -> int:
    """Number of open descriptors of this process; 0 if the system does not list them."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(directory))
    return 0


def _round_up(count: int) -> int:
    """Round up to a power of two, at least 1,024: a usual value of the limit."""
    return max(1024, 1 << (count - 1).bit_length())
