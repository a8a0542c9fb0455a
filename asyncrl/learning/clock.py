"""Training clock, which starts at the first environment step and stops while an evaluation holds training."""

from __future__ import annotations

import time
from collections.abc import Callable

PROGRAM_START = time.monotonic() - time.process_time()
"""`time.monotonic()` at the start of this program, from which a command counts its start-up time.

Computed from the processor time used before this module's import, not from the age of the process, which after a
shell's `exec` is the shell's age. So the command line imports this module first.
"""


class TrainClock:
    """Seconds of training since the first environment step, pauses excluded. Event-loop thread only.

    Args:
        now: source of monotonic seconds (replaced in tests).
        created: start of the wall clock, from the same source; None is now.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, created: float | None = None) -> None:
        self._now = now
        self._created = now() if created is None else created
        self._started: float | None = None
        self._resumed: float | None = None
        self._counted = 0.0
        self._startup_before = self._wall_before = 0.0

    def go_on_from(self, train_seconds: float, startup_seconds: float, wall_seconds: float) -> None:
        """Continue the three clocks of an earlier run; called before `start`."""
        self._counted = train_seconds
        self._startup_before, self._wall_before = startup_seconds, wall_seconds

    def start(self) -> None:
        """Start the clock at the first environment step; later calls have no effect."""
        if self._started is None:
            self._started = self._resumed = self._now()

    def pause(self) -> None:
        """Stop the clock until `resume`."""
        if self._resumed is not None:
            self._counted += self._now() - self._resumed
            self._resumed = None

    def resume(self) -> None:
        """Continue after `pause`; no effect before `start`."""
        if self._started is not None and self._resumed is None:
            self._resumed = self._now()

    @property
    def running(self) -> bool:
        """Whether the clock is started and not paused."""
        return self._resumed is not None

    def statistics(self) -> dict[str, float]:
        """The three clocks by public name."""
        return {
            "time/time_elapsed": self.wall_seconds,
            "train_seconds": self.train_seconds,
            "startup_seconds": self.startup_seconds,
        }

    @property
    def train_seconds(self) -> float:
        """Seconds of training so far."""
        return self._counted + (self._now() - self._resumed if self._resumed is not None else 0.0)

    @property
    def startup_seconds(self) -> float:
        """Seconds from `created` to the first environment step, or until now before it."""
        started = self._now() if self._started is None else self._started
        return self._startup_before + started - self._created

    @property
    def wall_seconds(self) -> float:
        """Seconds since `created`."""
        return self._wall_before + self._now() - self._created
