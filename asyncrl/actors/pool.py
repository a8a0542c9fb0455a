"""The actor processes of a run: start, supervise, restart, close.

Each actor has one supervising task: fork, READY, work, end, and perhaps another life. One more task watches the
heartbeats. An actor whose process dies is started again on the same ring, as the next incarnation. One whose
environment raises is not, because it would raise again, nor is one that hangs before it was ever ready. One that has
overwritten its ring's header is killed, and started again once the learner's thread has reset the ring
(`ring_health.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from asyncrl.actors.child import Child, ChildDied
from asyncrl.actors.connections import Connections
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import AwakeClock, ProcessLimits, RestartBudget
from asyncrl.actors.plans import QUIT, SPACE, ActorPlan, PoolPlan
from asyncrl.actors.statistics import ActorStatistics, StepTimes
from asyncrl.actors.supervised import SupervisedActor
from asyncrl.errors import AsyncRLError, RingCorrupt
from asyncrl.shm.ring import RingReader
from asyncrl.shm.ring_health import ring_corrupt
from asyncrl.shm.ring_layout import WAIT_NS
from asyncrl.shm.segment import Segment

WATCH_SECONDS = 0.1
QUARANTINE_SECONDS = 0.002


class ActorPool:
    """Pool of actor processes; starts, supervises, restarts and ends them. All but `wake` on the loop's thread only.

    Args:
        server: fork server.
        plan: plan common to all actors.
        connections: connections beside the rings; actors wait in them for the first weights.
        limits: time and restart limits of each actor.
        log_of: returns the file of an actor's output, asked for each life; None for standard error.
        on_failure: callback with the error that ends an actor permanently, at most once per actor, after `start` has
            returned; `start` raises earlier errors.
        on_death: callback with the actor's index after each end of a life, so that the consumer reads the rings:
            a doorbell signal may have been lost with it.

    Attributes:
        connections: as given.
        rings: reading end of every actor's ring; available before `start`.
        step_times: times of an environment step.

    Raises:
        SharedMemoryTooSmall: the rings do not fit (ASYNC008).
    """

    def __init__(
        self,
        server: ForkServer,
        plan: PoolPlan,
        connections: Connections,
        *,
        limits: ProcessLimits | None = None,
        log_of: Callable[[int], Path | None] = lambda _: None,
        on_failure: Callable[[AsyncRLError], None],
        on_death: Callable[[int], None] | None = None,
    ) -> None:
        self._server = server
        self._plan = plan
        self.connections = connections
        self._limits = limits or ProcessLimits()
        self._on_failure = on_failure
        self._on_death = on_death
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._segments = _ring_segments(plan)
        self.rings = tuple(RingReader(segment, plan.layout) for segment in self._segments)
        self.step_times = StepTimes(self.rings)
        self._actors = [
            SupervisedActor(
                i,
                ring,
                RestartBudget(self._limits.max_restarts),
                functools.partial(log_of, i),
            )
            for i, ring in enumerate(self.rings)
        ]

    @property
    def actors(self) -> tuple[SupervisedActor, ...]:
        """All actors; a resumed run sets the states of their first lives before `start`."""
        return tuple(self._actors)

    async def start(self) -> None:
        """Start every actor; return when all have built and reset their environments.

        Raises:
            AsyncRLError: error of the first actor that failed; the pool must then be closed.
        """
        self._started = asyncio.get_running_loop().create_future()
        for actor in self._actors:
            self._spawn(self._supervise(actor), f"actor {actor.index}")
        self._spawn(self._watch(), "actor heartbeats")
        self._set_started()  # at once if there are none
        await self._started

    def wake(self, index: int) -> None:
        """Wake a sleeping actor, to read its grant or an answer; any thread, never blocks."""
        child = self._actors[index].child
        if child is not None:
            child.send_bytes(SPACE)

    async def close(self, timeout_seconds: float = 2.0) -> None:
        """End every actor: by QUIT, then by SIGTERM, then by SIGKILL, both to its process group. Idempotent.

        An actor that is still building its environments reads no commands, and gets SIGTERM at once; one that is being
        forked gets it as soon as it exists.

        Args:
            timeout_seconds: time limit for all actors, even if they hang.
        """
        self._closing.set()
        children = [a.child for a in self._actors if a.child is not None and (a.alive or a.child.starting)]
        for actor in self._actors:
            if actor.ready and actor.child is not None:
                actor.child.send_bytes(QUIT)
            elif actor.alive and actor.child is not None:
                actor.child.kill(signal.SIGTERM)
        for share, number in ((0.4, signal.SIGTERM), (0.2, signal.SIGKILL), (0.4, None)):
            await asyncio.gather(*(c.wait(share * timeout_seconds) for c in children))
            left = [c for c in children if c.exited is None]
            if not left or number is None:
                break
            for child in left:
                child.kill(number)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Read again: an actor may have been restarting.
        children = [a.child for a in self._actors if a.child is not None]
        await asyncio.gather(*(child.end(patience_seconds=0.0) for child in children))
        _close(self._segments)

    def statistics(self) -> tuple[ActorStatistics, ...]:
        """Statistics of every actor; rates and fractions are over about the last second."""
        return tuple(
            a.heartbeat.statistics(
                pid=a.child.pid if a.child is not None and a.child.exited is None else 0,
                state=a.state(self._closing.is_set()),
                restarts=a.restarts,
                last_error=a.last_error,
            )
            for a in self._actors
        )

    def episodes(self) -> Iterator[tuple[Any, ...]]:
        """Yield the episodes finished since the last call: index, undiscounted return, length in steps, success.

        The return of an environment of several agents is a list with that of each. In self-play the game follows:
        updates of the opponents' version, -1 without, and points of the learning agent (2 won, 1 drawn, 0 lost).
        """
        for actor in self._actors:
            actor.episodes_seen, *columns = actor.ring.episodes_since(actor.episodes_seen)
            for episode in zip(*(column.tolist() for column in columns), strict=True):
                yield actor.index, *episode

    def wait_seconds(self) -> float:
        """Seconds that an actor has slept waiting for grants, over all its lives, averaged over actors."""
        return sum(int(ring.header[WAIT_NS]) for ring in self.rings) / (1e9 * max(1, len(self.rings)))

    def exploration_rate(self) -> float | None:
        """Mean exploration rate over the actors that have made steps, None before the first."""
        rates = [s.exploration_rate for s in (ring.statistics() for ring in self.rings) if s.env_steps > 0]
        return sum(rates) / len(rates) if rates else None

    async def _supervise(self, actor: SupervisedActor) -> None:
        """Run all lives of one actor."""
        while not self._closing.is_set():
            pause: float | None = None
            try:
                await self._live(actor)
            except ChildDied as died:
                error = actor.why_it_died(died)
                pause = actor.pause_after(died)
            except AsyncRLError as raised:
                error = raised
                if isinstance(raised, RingCorrupt):
                    actor.ring.set_fault(str(raised.facts["header"]))
            if self._closing.is_set():
                return
            if actor.ring.fault:
                assert self._started is not None
                error = ring_corrupt(actor.ring.fault)
                # Before all have started the learner's thread does not read rows, and cannot reset the ring.
                pause = actor.quarantine() if self._started.done() else None
            actor.last_error = str(error).splitlines()[0]
            if self._on_death is not None:
                self._on_death(actor.index)
            if pause is None:
                actor.ended = True
                self._fail(error)
                return
            await asyncio.sleep(pause)
            while actor.ring.fault:  # until the learner's thread has reset the ring
                await asyncio.sleep(QUARANTINE_SECONDS)
            actor.restarts += not self._closing.is_set()

    async def _live(self, actor: SupervisedActor) -> None:
        """Run one life; raises `ChildDied` or the error that the actor sent."""
        child = Child(self._server, "actor")
        actor.begin_life(child)
        plan = ActorPlan(self._plan, actor.index, actor.incarnation, actor.state_to_begin_with)
        fds = {"ring": actor.ring.segment.fd, **self.connections.descriptors(actor.index)}
        try:
            await child.start(pickle.dumps(plan), fds, log=actor.log)
            if self._closing.is_set():
                child.kill(signal.SIGTERM)
                return
            await child.receive()
            actor.set_ready()
            self._set_started()
            await actor.listen(child)
        finally:
            await child.end()

    def _set_started(self) -> None:
        assert self._started is not None
        if all(a.ever_ready for a in self._actors) and not self._started.done():
            self._started.set_result(None)

    def _fail(self, error: AsyncRLError) -> None:
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(error)
        elif not self._started.cancelled() and self._started.exception() is None:
            self._on_failure(error)

    async def _watch(self) -> None:
        """Check the heartbeats periodically; kill actors that have none."""
        clock = AwakeClock()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            awake_seconds = clock.advance()
            for actor in self._actors:
                await actor.check(awake_seconds, self._limits)

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        task.add_done_callback(self._on_task_done)
        self._tasks.add(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Report an exception in a supervising task, which is a bug."""
        if task.cancelled() or (error := task.exception()) is None or self._closing.is_set():
            return
        report = AsyncRLError(f"Supervision of {task.get_name()} failed: {type(error).__name__}: {error}")
        report.__cause__ = error
        self._fail(report)


def _ring_segments(plan: PoolPlan) -> list[Segment]:
    """Create the memory of all rings; if one does not fit, close all."""
    segments: list[Segment] = []
    try:
        for i in range(plan.num_actors):
            segments.append(Segment.create(f"ring of actor {i}", plan.layout.arrays()))
    except BaseException:
        _close(segments)
        raise
    return segments


def _close(segments: list[Segment]) -> None:
    for segment in segments:
        with contextlib.suppress(BufferError):
            segment.close()
