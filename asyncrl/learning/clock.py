"""The training clock: starts at the first environment step, stands still while an evaluation holds training."""

from __future__ import annotations

import time
from collections.abc import Callable

PROGRAM_START = time.monotonic() - time.process_time()
"""`time.monotonic()` at which this program started: what a command counts its start-up from.

By the processor time used up to this module's import, not by the process's age: after a shell's `exec` that is the
shell's age. So the command line imports this module first.
"""


class TrainClock:
    """Seconds of training since the first environment step, pauses excluded. Event-loop thread only.

    Args:
        now: source of monotonic seconds (tests give their own).
        created: when the wall clock started, on the same source; None is now.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, created: float | None = None) -> None:
        self._now = now
        self._created = now() if created is None else created
        self._started: float | None = None
        self._resumed: float | None = None
        self._counted = 0.0
        self._startup_before = self._wall_before = 0.0

    def go_on_from(self, train_seconds: float, startup_seconds: float, wall_seconds: float) -> None:
        """Count on from an earlier run's three clocks; before `start`."""
        self._counted = train_seconds
        self._startup_before, self._wall_before = startup_seconds, wall_seconds

    def start(self) -> None:
        """The first environment step was seen; later calls change nothing."""
        if self._started is None:
            self._started = self._resumed = self._now()

    def pause(self) -> None:
        """Stand still until `resume`."""
        if self._resumed is not None:
            self._counted += self._now() - self._resumed
            self._resumed = None

    def resume(self) -> None:
        """Go on, if it was started at all."""
        if self._started is not None and self._resumed is None:
            self._resumed = self._now()

    @property
    def running(self) -> bool:
        """Whether it was started and does not stand still."""
        return self._resumed is not None

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far."""
        return self._counted + (self._now() - self._resumed if self._resumed is not None else 0.0)

    @property
    def startup_seconds(self) -> float:
        """Seconds from `created` to the first environment step (or until now, before it)."""
        started = self._now() if self._started is None else self._started
        return self._startup_before + started - self._created

    @property
    def wall_seconds(self) -> float:
        """Seconds since `created`."""
        return self._wall_before + self._now() - self._created
