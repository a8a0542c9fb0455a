"""State of one actor in the pool, over all its restarts."""

from __future__ import annotations

from asyncrl.actors.child import Child
from asyncrl.actors.heartbeat import Heartbeat
from asyncrl.actors.restarts import RestartBudget
from asyncrl.errors import EnvironmentHung
from asyncrl.shm.ring import PUBLISHED, RingReader


class SupervisedActor:
    """One actor over all its lives; written by the pool.

    Args:
        index: which actor.
        ring: its ring, the same in every life.
        budget: how often it may be started again.

    Attributes:
        child: the process of its present or last life, None before the first.
        ready: whether that life has built and reset its environments.
        ever_ready: whether any life has.
        restarts: lives begun after the first.
        hung: the report on this life, where it was found hanging and is being killed for it.
        last_error: one line, or "".
        heartbeat: signs of life.
        episodes_seen: finished episodes that the pool has handed out.
        ended: there will be no further life.
    """

    def __init__(self, index: int, ring: RingReader, budget: RestartBudget) -> None:
        self.index = index
        self.ring = ring
        self.budget = budget
        self.child: Child | None = None
        self.ready = False
        self.ever_ready = False
        self._began_at = 0
        self.restarts = 0
        self.hung: EnvironmentHung | None = None
        self.last_error = ""
        self.heartbeat = Heartbeat(index, ring)
        self.episodes_seen = 0
        self.ended = False

    @property
    def alive(self) -> bool:
        """Whether its process runs now."""
        return self.child is not None and self.child.pid != 0 and self.child.exited is None

    def begin_life(self, child: Child) -> None:
        """A new process begins."""
        self.child = child
        self.ready, self.hung = False, None
        self._began_at = int(self.ring.header[PUBLISHED])
        self.heartbeat.begin_life()

    def set_ready(self) -> None:
        """Its environments are built and reset."""
        self.ready = self.ever_ready = True

    @property
    def useful(self) -> bool:
        """Whether its present or last life has published a row."""
        return int(self.ring.header[PUBLISHED]) != self._began_at

    def state(self, closing: bool) -> str:
        """One of the states of `metrics.ActorStatistics`."""
        if closing or self.ended:
            return "stopped"
        if self.child is None:
            return "starting"
        if self.child.exited is not None or self.ring.fault:
            return "restarting"
        return self.ring.statistics().state if self.ready else "starting"
