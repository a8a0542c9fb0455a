"""Timer slack of a thread, on Linux: how late the kernel may end its timed waits. Elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import sys

USUAL_NANOSECONDS = 50_000
"""What the kernel gives a thread by default."""

_PR_SET_TIMERSLACK = 29
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def set_timer_slack(nanoseconds: int) -> None:
    """Set the slack of the calling thread, and of threads and processes that it starts from now on."""
    if _libc is not None:
        _libc.prctl(_PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0)
