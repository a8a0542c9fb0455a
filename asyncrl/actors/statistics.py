"""Statistics of actor processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Metrics
from asyncrl.shm.ring import RingReader
from asyncrl.shm.ring_layout import ENV_NS, INFERENCE_NS, STEPS, TIMED_ROWS, WAIT_NS, WRITE_NS


@dataclass(frozen=True)
class ActorStatistics:
    """Statistics of one actor process.

    Attributes:
        index: index of the actor, from 0.
        pid: its process id, or 0 while none runs.
        state: `"starting"`, `"running"`, `"waiting"` (blocked on the balance), `"restarting"` or `"stopped"`.
        env_steps: environment steps of all its lives (RESET rows are not steps).
        env_steps_per_second: rate over the last report interval.
        heartbeat_age_seconds: awake time since its last heartbeat.
        wait_fraction: share of the last report interval spent waiting for a grant.
        ring_fill: share of its ring's slots with rows that the learner side may still read.
        restarts: number of restarts.
        last_error: one line, or "".
        private_bytes: private memory (RSS minus shared), 0 if unknown.
        wait_seconds: time spent waiting for a grant, over all its lives.
    """

    index: int
    pid: int
    state: str
    env_steps: int
    env_steps_per_second: float
    heartbeat_age_seconds: float
    wait_fraction: float
    ring_fill: float
    restarts: int
    last_error: str
    private_bytes: int
    wait_seconds: float = 0.0


class StepTimes:
    """Mean times of an environment step over all actors; one reader.

    The parts of a step are measured in every 64th row, waiting in all. A part keeps its last mean while no row was
    timed, as environments may be slow.
    """

    def __init__(self, rings: Sequence[RingReader]) -> None:
        self._rings = tuple(rings)
        self._before = self._totals()
        self._means: Metrics = {}

    def statistics(self) -> Metrics:
        """Means since the last call by public name; none before the first row was timed."""
        now = self._totals()
        grown = np.maximum(0, now - self._before)
        parts, timed_steps, waited, steps = grown[:3], int(grown[3]), grown[4], int(grown[5])
        if timed_steps and steps:
            self._before = now
            names = ("inference", "env", "write")
            means: Metrics = {
                f"time/step_{name}_seconds": float(part) / 1e9 / timed_steps
                for name, part in zip(names, parts, strict=True)
            }
            self._means = {**means, "time/step_wait_seconds": float(waited) / 1e9 / steps}
        return self._means

    def _totals(self) -> NDArray[np.int64]:
        """Nanoseconds of inference, environments and writing, steps in timed rows, nanoseconds waited, steps."""
        totals = np.zeros(6, np.int64)
        for ring in self._rings:
            words = ring.header[[INFERENCE_NS, ENV_NS, WRITE_NS, TIMED_ROWS, WAIT_NS, STEPS]]
            words[3] *= ring.environments
            totals += words
        return totals


def over_actors(actors: Sequence[ActorStatistics]) -> Metrics:
    """Numbers over all actors by public name; none without actors."""
    count = len(actors)
    if not count:
        return {}
    return {
        "time/total_timesteps": sum(actor.env_steps for actor in actors),
        "async/actor_wait_fraction": math.fsum(actor.wait_fraction for actor in actors) / count,
        "async/ring_fill": math.fsum(actor.ring_fill for actor in actors) / count,
        "async/actor_restarts": sum(actor.restarts for actor in actors),
    }
