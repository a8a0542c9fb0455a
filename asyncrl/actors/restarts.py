"""Restart budget of a process, and the pause before a restart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0
PAUSES_SECONDS = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Pauses before successive restarts after lives that were not useful; the last one applies to all further ones."""


class RestartBudget:
    """Restarts of one process: at most `limit` within any `WINDOW_SECONDS`.

    Older restarts do not count, so a process that is killed once an hour is always restarted, and one that always dies
    at once ends the run within seconds. The pause grows only over lives that were not useful: a process that worked
    until it was killed is started again at once.

    Args:
        limit: number of restarts within the window; 0 for none.
        now: source of monotonic seconds (tests pass their own).
    """

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._now = now
        self._spent: deque[float] = deque()
        self._futile = 0

    def spend(self, *, useful: bool) -> float | None:
        """Use one restart; return the pause before it in seconds, or None if the budget is used up.

        Args:
            useful: whether the life that has just ended did any work.
        """
        now = self._now()
        while self._spent and now - self._spent[0] >= WINDOW_SECONDS:
            self._spent.popleft()
        if len(self._spent) >= self.limit:
            return None
        if useful or not self._spent:
            self._futile = 0
        pause = PAUSES_SECONDS[min(self._futile, len(PAUSES_SECONDS) - 1)]
        self._futile += 1
        self._spent.append(now)
        return pause
