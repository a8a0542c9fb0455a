"""An actor of the pool, over all its restarts; and the states of all actors at one position."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asyncrl.actors.child import Child, ChildDied
from asyncrl.actors.exit_errors import actor_killed, actor_too_large
from asyncrl.actors.heartbeat import Heartbeat, private_bytes
from asyncrl.actors.limits import ProcessLimits, RestartBudget
from asyncrl.actors.plans import SAVE
from asyncrl.errors import ActorKilled, AsyncRLError, EnvironmentHung, RingQuarantined, warn
from asyncrl.shm.ring import PUBLISHED, RingReader

MEMORY_CHECK_SECONDS = 1.0
"""Interval at which an actor's private memory is compared with its limit."""
_CHECK_SECONDS = 0.002


class SupervisedActor:
    """One actor over all its lives; written by the pool.

    Args:
        index: index of the actor.
        ring: its ring, the same in every life.
        budget: its restart budget.
        log_of: returns the file of its output; None for standard error.

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

    def __init__(
        self,
        index: int,
        ring: RingReader,
        budget: RestartBudget,
        log_of: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.index = index
        self.ring = ring
        self.budget = budget
        self._log_of = log_of
        self.child: Child | None = None
        self.ready = False
        self.ever_ready = False
        self._began_at = 0
        self.restarts = 0
        self.killed_for: EnvironmentHung | ActorKilled | None = None
        self._since_memory_check = 0.0
        self.last_error = ""
        self.heartbeat = Heartbeat(index, ring)
        self.episodes_seen = 0
        self.ended = False
        self.first_incarnation = 0
        self.first_state: bytes | None = None
        self._state_frame: asyncio.Future[dict[str, Any] | None] | None = None

    @property
    def log(self) -> Path | None:
        """File of its output; None for standard error, also once the run's directory is no longer the run's."""
        return self._log_of()

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
        self._state_frame = asyncio.get_running_loop().create_future()
        if self.ready and self.alive and self.child is not None:
            self.child.send_bytes(SAVE)
        else:
            self._state_frame.set_result(None)
        return self._state_frame

    async def listen(self, child: Child) -> None:
        """Receive the frames of a working actor until it ends. Raises `ChildDied` or the error that it sent."""
        try:
            while True:
                self._answer(await child.receive())
        finally:
            self._answer(None)

    def _answer(self, frame: dict[str, Any] | None) -> None:
        if self._state_frame is not None and not self._state_frame.done():
            self._state_frame.set_result(frame)

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

    async def check(self, awake_seconds: float, limits: ProcessLimits) -> None:
        """Kill it if its ring is corrupt, its memory too large, or if it had no heartbeat for too long.

        Args:
            awake_seconds: seconds that this process was awake since the last call.
            limits: time limits of a step and of becoming ready, limit of memory.
        """
        child = self.child
        if not self.ring.check_header():  # its words are not to be read, for the rates either
            if self.alive and child is not None:
                child.kill()
            return
        self._check_memory(awake_seconds, limits.max_actor_bytes)
        silent = self.heartbeat.poll(awake_seconds)
        if child is None or not self.alive:
            # The fork server may take longer to start than the limit: the time of a life counts from its fork.
            self.heartbeat.begin_life()
            return
        limit = limits.step_timeout_seconds if self.ready else limits.ready_timeout_seconds
        if silent <= limit or self.killed_for is not None:
            return
        stack = await child.python_stack()
        if self.child is child and self.alive:  # it may have died meanwhile
            self.killed_for = self.heartbeat.hung(silent, self.ready, stack)
            child.kill()

    def _check_memory(self, awake_seconds: float, limit_bytes: int | None) -> None:
        """Kill it if its private memory exceeds the limit; checks every `MEMORY_CHECK_SECONDS`."""
        self._since_memory_check += awake_seconds
        if limit_bytes is None or self._since_memory_check < MEMORY_CHECK_SECONDS:
            return
        self._since_memory_check = 0.0
        child = self.child
        if child is None or not self.alive or self.killed_for is not None:
            return
        held = private_bytes(child.pid)
        if held > limit_bytes:
            self.killed_for = actor_too_large(self.index, child.pid, held, limit_bytes)
            child.kill()

    def why_it_died(self, died: ChildDied) -> AsyncRLError:
        """Return the error for a life that ended without an error frame; append a crash report to the actor's log."""
        log = self.log
        if log is not None and died.crash:
            with contextlib.suppress(OSError), log.open("a") as lines:
                lines.write(died.crash)
        if self.killed_for is not None:
            return self.killed_for
        return actor_killed(f"Actor {self.index}", died.exit, self.restarts, crash=died.crash, log=log)

    def pause_after(self, died: ChildDied) -> float | None:
        """Return the pause before its next life in seconds, or None if there will be none."""
        if died.exit.server_lost:
            return 0.0
        if self.killed_for is not None and not self.ever_ready:
            return None
        return self.budget.spend(useful=self.useful)

    def quarantine(self) -> float | None:
        """Mark the ring of the actor, which has ended, as abandoned, for the learner's thread to reset, with a warning.

        Returns the pause before the next life as `pause_after` does; with None nothing is marked.
        """
        pause = self.budget.spend(useful=False)
        if pause is None:
            return None
        text = (
            f"[ASYNC043] the ring of actor {self.index} was overwritten from outside ({self.ring.fault}); its rows "
            "are given up and the actor is started again; look for native code in the environment that writes "
            "outside of its own arrays"
        )
        warn(RingQuarantined(text))
        self.ring.abandoned = True
        return pause

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


async def states_of(
    actors: Sequence[SupervisedActor], positions: Sequence[int], limit_seconds: float
) -> tuple[list[bytes] | None, str]:
    """Return the state of every actor at its position; or None and the reason.

        run                                                 actors
        learner is paused (no further grants)               make all rows that were granted, then sleep
        waits until every ring has them ── SAVE ──>         answer between two rows: rows published, state
        accepts answers at these positions

    Every wait has a limit, and the answer of an actor that dies is None at once. If one state is missing the others are
    useless: then the checkpoint contains no states.

    Args:
        actors: in the order of their rings.
        positions: number of rows that each will have published once it has used its grant.
        limit_seconds: time limit of both waits together.
    """
    end = time.monotonic() + limit_seconds
    for actor, position in zip(actors, positions, strict=True):
        while not actor.ring.reached(position):
            if actor.ended or time.monotonic() >= end:
                return None, f"actor {actor.index} did not reach row {position:,}"
            await asyncio.sleep(_CHECK_SECONDS)
    frames = [actor.ask_state() for actor in actors]
    await asyncio.wait(frames, timeout=max(0.0, end - time.monotonic()))
    states: list[bytes] = []
    for actor, position, answer in zip(actors, positions, frames, strict=True):
        frame = answer.result() if answer.done() else None
        if frame is None or frame["published"] != position:
            return None, f"actor {actor.index} did not answer"
        if frame["state"] is None:
            return None, str(frame["why"])
        states.append(frame["state"])
    return states, ""
