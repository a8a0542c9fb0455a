"""PPO and DQN with a learner that sleeps in every gradient step, or stands still while it is told to."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

from asyncrl import DQN, PPO
from asyncrl.interfaces import EnvSpec


class Watched:
    """A core that passes everything on, slows its steps, and notes the staleness of what it was given.

    Args:
        core: the algorithm's own.
        seconds: how much longer each step takes, asleep.
    """

    gate: ClassVar[threading.Event] = threading.Event()
    """Steps wait while it is not set; of all cores of this process."""
    largest_staleness: ClassVar[int] = 0
    """Largest staleness of a row that any core of this process was given."""
    rows: ClassVar[int] = 0
    """How many rows that were."""

    def __init__(self, core: Any, seconds: float) -> None:
        self._core = core
        self._seconds = seconds

    def begin(self, segments: Any, progress: float) -> None:
        """Look at what came, and pass it on."""
        for segment in segments:
            Watched.largest_staleness = max(Watched.largest_staleness, int(segment.staleness.max()))
            Watched.rows += segment.num_rows
        self._core.begin(segments, progress)

    def step(self) -> bool:
        """One gradient step, when the gate is open, after a nap."""
        Watched.gate.wait()
        if self._seconds > 0:
            time.sleep(self._seconds)
        return bool(self._core.step())

    def update(self, batch: Any) -> Any:
        """The same for a core that learns from replay."""
        Watched.gate.wait()
        Watched.largest_staleness = max(Watched.largest_staleness, int(batch.staleness.max()))
        Watched.rows += batch.size
        if self._seconds > 0:
            time.sleep(self._seconds)
        return self._core.update(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


Watched.gate.set()


class SlowPPO(PPO):
    """PPO whose core is `Watched`; the nap is an attribute of the class, because options travel into files."""

    step_seconds: ClassVar[float] = 0.0

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """The core of PPO, watched."""
        return Watched(super().make_updater(spec, device, seed), self.step_seconds)


class SlowDQN(DQN):
    """DQN whose core is `Watched`."""

    step_seconds: ClassVar[float] = 0.0

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """The core of DQN, watched."""
        return Watched(super().make_updater(spec, device, seed), self.step_seconds)
