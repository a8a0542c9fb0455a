"""Copies of weights to evaluate: made by the learner at fixed steps, or of the newest after some seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.learning.clock import TrainClock
from asyncrl.learning.weight_snapshots import WeightSnapshot, WeightSnapshots


class Trainee(Protocol):
    """What evaluation needs of the learner."""

    @property
    def updates(self) -> int: ...  # noqa: D102
    @property
    def inserted_steps(self) -> int: ...  # noqa: D102

    async def current_weights(self) -> tuple[NDArray[np.float32], int]:
        """A copy of the acting weights and their version."""
        ...

    async def hold(self) -> None:
        """Stand still."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


@dataclass(frozen=True)
class TimedCopy:
    """Weights to evaluate, and the training clock when they were copied."""

    copy: WeightSnapshot
    train_seconds: float


class Copies(Protocol):
    """Where the schedule finds the next weights to evaluate; event-loop thread only."""

    async def next(self) -> TimedCopy | None:
        """The next copy, or None where training has ended and all copies were taken."""
        ...

    def end(self) -> None:
        """Training has ended: no copy is added any more."""
        ...


class CopiesBySteps:
    """Copies that the learner makes at fixed environment steps, in their order.

    Args:
        snapshots: where the learner puts them; this object sets `snapshots.arrived`.
        clock: the training clock, read when a copy arrives.
        taken: called when a copy was taken out, because the learner may be waiting for room.
    """

    def __init__(self, snapshots: WeightSnapshots, clock: TrainClock, taken: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._snapshots = snapshots
        self._clock = clock
        self._taken = taken
        self._arrivals: deque[float] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        snapshots.arrived = self._arrived

    async def next(self) -> TimedCopy | None:
        """The oldest copy that was not evaluated yet."""
        while not self._arrivals:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        copy = self._snapshots.take()
        assert copy is not None, "every arrival is of one copy"
        self._taken()
        return TimedCopy(copy, self._arrivals.popleft())

    def end(self) -> None:
        """Training has ended; what waits is still to be evaluated."""
        self._ended = True
        self._changed.set()

    def _arrived(self) -> None:
        """Called on the learner's thread."""
        self._loop.call_soon_threadsafe(self._note_arrival)

    def _note_arrival(self) -> None:
        self._arrivals.append(self._clock.train_seconds)
        self._changed.set()


class CopiesBySeconds:
    """The newest weights, whenever an interval of training time has passed and they have changed.

    Args:
        interval_seconds: least training time between two copies.
        trainee: whose weights.
        clock: the training clock.
    """

    def __init__(self, interval_seconds: float, trainee: Trainee, clock: TrainClock) -> None:
        self._interval = interval_seconds
        self._trainee = trainee
        self._clock = clock
        self._updates_then = 0
        self._ended = asyncio.Event()

    async def next(self) -> TimedCopy | None:
        """The weights of now, once they are due."""
        due = self._clock.train_seconds + self._interval
        while not self._ended.is_set() and (
            self._trainee.updates <= self._updates_then or self._clock.train_seconds < due
        ):
            await self._sleep(min(0.02, max(0.001, due - self._clock.train_seconds)))
        if self._ended.is_set():
            return None
        copy = await copy_of(self._trainee)
        self._updates_then = copy.updates
        return TimedCopy(copy, self._clock.train_seconds)

    def end(self) -> None:
        """Training has ended; nothing more is evaluated."""
        self._ended.set()

    async def _sleep(self, seconds: float) -> None:
        # Not `wait_for`, which drops a cancellation that comes together with the event before Python 3.12.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()


async def copy_of(trainee: Trainee) -> WeightSnapshot:
    """The present weights, with the counters of the moment after they were copied."""
    weights, version = await trainee.current_weights()
    return WeightSnapshot(weights, version, trainee.updates, trainee.inserted_steps)
