"""Time during which a supervisor was awake: what limits on other processes are counted in."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_NAP_SECONDS = 0.5


class AwakeClock:
    """Seconds during which the supervisor was awake.

    Where everything is stopped for a while (SIGSTOP, a suspended laptop, a debugger), or the loop is blocked
    by the user's code, the others had no chance to answer either, or nobody looked: such a gap counts for half
    a second at most.

    Args:
        now: source of monotonic seconds (tests give their own).
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()

    def advance(self) -> float:
        """Awake seconds since the last call."""
        now = self._now()
        elapsed, self._last = now - self._last, now
        return min(elapsed, LONGEST_NAP_SECONDS)
