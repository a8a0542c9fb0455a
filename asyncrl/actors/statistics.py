"""Statistics of actor processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.interfaces import Metrics


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


def over_actors(actors: Sequence[ActorStatistics]) -> Metrics:
    """Numbers over all actors by public name."""
    count = max(1, len(actors))
    return {
        "time/total_timesteps": sum(actor.env_steps for actor in actors),
        "async/actor_wait_fraction": math.fsum(actor.wait_fraction for actor in actors) / count,
        "async/ring_fill": math.fsum(actor.ring_fill for actor in actors) / count,
        "async/actor_restarts": sum(actor.restarts for actor in actors),
    }
