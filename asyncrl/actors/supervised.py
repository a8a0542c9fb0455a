"""State of one actor in the pool, over all its restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asyncrl.actors.child import Child
from asyncrl.actors.exit_errors import actor_too_large
from asyncrl.actors.heartbeat import Heartbeat, private_bytes
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import SAVE
from asyncrl.actors.restarts import RestartBudget
from asyncrl.errors import ActorKilled, EnvironmentHung
from asyncrl.shm.ring import PUBLISHED, RingReader

WEIGH_SECONDS = 1.0
"""Interval at which an actor's private memory is compared with its limit."""


class SupervisedActor:
    """One actor over all its lives; written by the pool.

    Args:
        index: index of the actor.
        ring: its ring, the same in every life.
        budget: its restart budget.
        log: file of its output; None for standard error.

    Attributes:
        child: process of the current or last life, None before the first.
        ready: whether that life has built and reset its environments.
        ever_ready: whether any life has.
        restarts: number of lives after the first.
        killed_for: error for which the pool kills the current life, None if it does not.
        last_error: one line, or "".
        heartbeat: its heartbeat.
        episodes_seen: number of finished episodes that the pool has returned.
        ended: there will be no further life.
        first_incarnation: index of the first life of this run; lower ones were in the run that it resumes.
        first_state: state from which the first life continues, or None.
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
        self.killed_for: EnvironmentHung | ActorKilled | None = None
        self._unlooked_seconds = 0.0
        self.last_error = ""
        self.heartbeat = Heartbeat(index, ring)
        self.episodes_seen = 0
        self.ended = False
        self.first_incarnation = 0
        self.first_state: bytes | None = None
        self._asked: asyncio.Future[dict[str, Any] | None] | None = None

    @property
    def incarnation(self) -> int:
        """Index of the current or next life."""
        return self.first_incarnation + self.restarts

    @property
    def state_to_begin_with(self) -> bytes | None:
        """State for the next life; None after the first, which begins new episodes."""
        return self.first_state if self.restarts == 0 else None

    def ask_state(self) -> asyncio.Future[dict[str, Any] | None]:
        """Send SAVE; return a future of the actor's state frame, which is None if it is not ready or dies."""
        self._asked = asyncio.get_running_loop().create_future()
        if self.ready and self.alive and self.child is not None:
            self.child.send_bytes(SAVE)
        else:
            self._asked.set_result(None)
        return self._asked

    async def listen(self, child: Child) -> None:
        """Receive the frames of a working actor until it ends. Raises `ChildDied` or the error that it sent."""
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
        """Whether its process is running."""
        return self.child is not None and self.child.pid != 0 and self.child.exited is None

    def begin_life(self, child: Child) -> None:
        """Record the start of a new process."""
        self.child = child
        self.ready, self.killed_for = False, None
        self._began_at = int(self.ring.header[PUBLISHED])
        self.heartbeat.begin_life()

    async def take_pulse(self, awake_seconds: float, limits: ProcessLimits) -> None:
        """Kill it if its ring is corrupt, its memory too large, or if it had no heartbeat for too long.

        Args:
            awake_seconds: seconds that this process was awake since the last call.
            limits: time limits of a step and of becoming ready, limit of memory.
        """
        child = self.child
        if not self.ring.look_over() and self.alive and child is not None:
            child.kill()
            return
        self._weigh(awake_seconds, limits.max_actor_bytes)
        silent = self.heartbeat.poll(awake_seconds)
        limit = limits.step_timeout_seconds if self.ready else limits.ready_timeout_seconds
        if silent <= limit or not self.alive or child is None or self.killed_for is not None:
            return
        stack = await child.python_stack()
        if self.child is child and self.alive:  # it may have died meanwhile
            self.killed_for = self.heartbeat.hung(silent, self.ready, stack)
            child.kill()

    def _weigh(self, awake_seconds: float, limit_bytes: int | None) -> None:
        """Kill it if its private memory exceeds the limit; looks every `WEIGH_SECONDS`."""
        self._unlooked_seconds += awake_seconds
        if limit_bytes is None or self._unlooked_seconds < WEIGH_SECONDS:
            return
        self._unlooked_seconds = 0.0
        child = self.child
        if child is None or not self.alive or self.killed_for is not None:
            return
        held = private_bytes(child.pid)
        if held > limit_bytes:
            self.killed_for = actor_too_large(self.index, child.pid, held, limit_bytes)
            child.kill()

    def set_ready(self) -> None:
        """Record that its environments are built and reset."""
        self.ready = self.ever_ready = True

    @property
    def useful(self) -> bool:
        """Whether its current or last life has published a row."""
        return int(self.ring.header[PUBLISHED]) != self._began_at

    def state(self, closing: bool) -> str:
        """Return one of the states of `ActorStatistics`."""
        if closing or self.ended:
            return "stopped"
        if self.child is None:
            return "starting"
        if self.child.exited is not None or self.ring.fault:
            return "restarting"
        return self.ring.statistics().state if self.ready else "starting"
