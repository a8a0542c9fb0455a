"""Limits of the processes of a run: time, its clock, and restarts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

READY_SECONDS = 60.0
LONGEST_GAP_SECONDS = 0.5
WINDOW_SECONDS = 60.0
PAUSES_SECONDS = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Pauses before successive restarts after lives that were not useful; the last one applies to all further ones."""


@dataclass(frozen=True)
class ProcessLimits:
    """Time and restart limits of a process.

    Attributes:
        step_timeout_seconds: time limit of one step (or reset), after which its process counts as hung and is killed.
        ready_timeout_seconds: the same for building and resetting all environments of a process.
        max_restarts: limit of restarts of one process within a minute, after it was killed or hung; 0 for none.
            Restarts after the death of the fork server do not count: its own restart limit applies.
        max_actor_bytes: private memory beyond which an actor is killed, None without limit; see `private_bytes`.
    """

    step_timeout_seconds: float = 60.0
    ready_timeout_seconds: float = READY_SECONDS
    max_restarts: int = 3
    max_actor_bytes: int | None = None


class AwakeClock:
    """Clock of the seconds during which the supervisor was awake, for time limits on other processes.

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
        return min(elapsed, LONGEST_GAP_SECONDS)


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
