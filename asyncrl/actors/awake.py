"""Time during which a supervisor was awake, the clock of time limits on other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_NAP_SECONDS = 0.5


class AwakeClock:
    """Clock of the seconds during which the supervisor was awake.

    A gap between two calls counts as half a second at most. During a longer one either all processes were stopped
    (SIGSTOP, a suspended laptop, a debugger), or the user's code blocked the event loop, which then read no answers.

    Args:
        now: source of monotonic seconds (tests pass their own).
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()

    def advance(self) -> float:
        """Return the awake seconds since the last call."""
        now = self._now()
        elapsed, self._last = now - self._last, now
        return min(elapsed, LONGEST_NAP_SECONDS)
