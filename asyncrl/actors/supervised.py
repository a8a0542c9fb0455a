"""State of one actor in the pool, over all its restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asyncrl.actors.child import Child
from asyncrl.actors.heartbeat import Heartbeat
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import SAVE
from asyncrl.actors.restarts import RestartBudget
from asyncrl.errors import EnvironmentHung
from asyncrl.shm.ring import PUBLISHED, RingReader


class SupervisedActor:
    """One actor over all its lives; written by the pool.

    Args:
        index: which actor.
        ring: its ring, the same in every life.
        budget: how often it may be started again.
        log: where its output goes; None is standard error.

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
        first_incarnation: which life the first one of this run is; those before were of the run that it goes on from.
        first_state: the actor's state that its first life goes on with, or None.
    """

    def __init__(self, index: int, ring: RingReader, budget: RestartBudget, log: Path | None = None) -> None:
        self.index = index
        self.ring = ring
        self.budget = budget
        self.log = log
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
        self.first_incarnation = 0
        self.first_state: bytes | None = None
        self._asked: asyncio.Future[dict[str, Any] | None] | None = None

    @property
    def incarnation(self) -> int:
        """Which life the present or next one is."""
        return self.first_incarnation + self.restarts

    @property
    def state_to_begin_with(self) -> bytes | None:
        """The state for a life that begins now: a later one begins new episodes."""
        return self.first_state if self.restarts == 0 else None

    def ask_state(self) -> asyncio.Future[dict[str, Any] | None]:
        """Ask for the actor's state; the future gives its frame, or None where it has none to send or dies."""
        self._asked = asyncio.get_running_loop().create_future()
        if self.ready and self.alive and self.child is not None:
            self.child.send_bytes(SAVE)
        else:
            self._asked.set_result(None)
        return self._asked

    async def listen(self, child: Child) -> None:
        """Take what a working actor sends, until it ends. Raises `ChildDied` or the error that it shipped."""
        try:
            while True:
                self._answer(await child.receive())
        finally:
            self._answer(None)

    def _answer(self, frame: dict[str, Any] | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(frame)

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

    async def take_pulse(self, awake_seconds: float, limits: ProcessLimits) -> None:
        """End it where its ring is spoilt, or where it has shown no life for too long: then its Python stack is kept.

        Args:
            awake_seconds: since the last call, time in which this process was stopped excluded.
            limits: how long a step, or becoming ready, may take.
        """
        child = self.child
        if not self.ring.look_over() and self.alive and child is not None:
            child.kill()
            return
        silent = self.heartbeat.look(awake_seconds)
        limit = limits.step_timeout_seconds if self.ready else limits.ready_timeout_seconds
        if silent <= limit or not self.alive or child is None or self.hung is not None:
            return
        stack = await child.python_stack()
        if self.child is child and self.alive:  # it may have died while it was asked
            self.hung = self.heartbeat.hung(silent, self.ready, stack)
            child.kill()

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
