"""What the pool knows of one actor, over all its lives."""

from __future__ import annotations

from asyncrl.actors.child import Child
from asyncrl.actors.vitals import Vitals
from asyncrl.errors import EnvironmentHung
from asyncrl.shm.ring import RingReader


class SupervisedActor:
    """One actor over all its lives; written by the pool.

    Args:
        index: which actor.
        ring: its ring, the same in every life.

    Attributes:
        child: the process of its present or last life, None before the first.
        ready: whether that life has built and reset its environments.
        restarts: lives begun after the first.
        hung: the report on this life, where it was found hanging and is being killed for it.
        last_error: one line, or "".
        vitals: signs of life.
        episodes_seen: finished episodes that the pool has handed out.
        ended: there will be no further life.
    """

    def __init__(self, index: int, ring: RingReader) -> None:
        self.index = index
        self.ring = ring
        self.child: Child | None = None
        self.ready = False
        self.restarts = 0
        self.hung: EnvironmentHung | None = None
        self.last_error = ""
        self.vitals = Vitals(index, ring)
        self.episodes_seen = 0
        self.ended = False

    @property
    def alive(self) -> bool:
        """Whether its process runs now."""
        return self.child is not None and self.child.pid != 0 and self.child.exited is None

    def state(self, closing: bool) -> str:
        """One of the states of `metrics.ActorStatistics`."""
        if closing or self.ended:
            return "stopped"
        if self.child is None:
            return "starting"
        if self.child.exited is not None:
            return "restarting"
        return self.ring.statistics().state if self.ready else "starting"
