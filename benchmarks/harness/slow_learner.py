"""PPO and DQN with a learner that sleeps in every gradient step, or stops while a gate is closed."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

from asyncrl import DQN, PPO
from asyncrl.interfaces import EnvSpec


class Watched:
    """Wrapper of a core that delays its steps and records the staleness of its data.

    Args:
        core: the algorithm's core.
        seconds: additional time that each step sleeps.
    """

    gate: ClassVar[threading.Event] = threading.Event()
    """Gate of all cores of this process: steps wait while it is not set."""
    largest_staleness: ClassVar[int] = 0
    """Largest staleness of a row given to any core of this process."""
    rows: ClassVar[int] = 0
    """Number of rows given to the cores of this process."""

    def __init__(self, core: Any, seconds: float) -> None:
        self._core = core
        self._seconds = seconds

    def begin(self, segments: Any, progress: float) -> None:
        """Record the staleness, then begin."""
        for segment in segments:
            Watched.largest_staleness = max(Watched.largest_staleness, int(segment.staleness.max()))
            Watched.rows += segment.num_rows
        self._core.begin(segments, progress)

    def step(self) -> bool:
        """Wait for the gate, sleep, and make one gradient step."""
        Watched.gate.wait()
        if self._seconds > 0:
            time.sleep(self._seconds)
        return bool(self._core.step())

    def update(self, batch: Any) -> Any:
        """Wait for the gate, record the staleness, sleep, and update; for a core that learns from replay."""
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
    """PPO with a `Watched` core; the delay is a class attribute, as options would be written to files."""

    step_seconds: ClassVar[float] = 0.0

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """Wrap the core of PPO."""
        return Watched(super().make_updater(spec, device, seed), self.step_seconds)


class SlowDQN(DQN):
    """DQN with a `Watched` core."""

    step_seconds: ClassVar[float] = 0.0

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """Wrap the core of DQN."""
        return Watched(super().make_updater(spec, device, seed), self.step_seconds)
