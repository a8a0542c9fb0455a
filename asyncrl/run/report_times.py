"""When a run reports: by seconds, by environment steps and after every evaluation, whichever comes first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

LEAST_SECONDS = 0.05
"""Least time between two reports that no evaluation asked for."""
LOOK_SECONDS = 0.02
"""How often the environment steps are looked at."""


class ReportTimes:
    """Says when the next report is due; event-loop thread only.

    Args:
        interval_seconds: seconds from one report to the next at the latest.
        interval_steps: a report is due when the environment steps have passed another multiple of this; None counts
            no steps.
        now: monotonic seconds.
    """

    def __init__(
        self, interval_seconds: float, interval_steps: int | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_seconds = interval_seconds
        self._interval_steps = interval_steps
        self._now = now
        self._then = -float("inf")
        self._next_steps = interval_steps
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Make a report due now: an evaluation has ended."""
        self._asked.set()

    def due(self, env_steps: int) -> bool:
        """Whether to report now."""
        seconds = self._now() - self._then
        if self._asked.is_set() or seconds >= self._interval_seconds:
            return True
        passed = self._next_steps is not None and env_steps >= self._next_steps
        return passed and seconds >= LEAST_SECONDS

    def reported(self, env_steps: int) -> None:
        """A report of now begins; what is asked for from here on is for the next one."""
        self._then = self._now()
        self._asked.clear()
        if self._interval_steps is not None:
            self._next_steps = (env_steps // self._interval_steps + 1) * self._interval_steps

    async def wait(self, env_steps: Callable[[], int]) -> None:
        """Return when a report is due."""
        while not self.due(env_steps()):
            # Not `wait_for`: before Python 3.12 it drops a cancellation that comes together with the event, and the
            # last evaluation asks for a report just before it ends the run.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
