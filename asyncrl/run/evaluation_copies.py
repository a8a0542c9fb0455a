"""Copies of weights to evaluate: made by the learner at fixed environment steps, or at intervals of training time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot, WeightSnapshots


@dataclass(frozen=True)
class TimedCopy:
    """Weights to evaluate, and the state of training when they were copied.

    Attributes:
        copy: the weights, with this group's steps and updates.
        train_seconds: training time.
        other_steps: environment steps of the run's other groups.
    """

    copy: WeightSnapshot
    train_seconds: float
    other_steps: int = 0


def alone(env_steps: int) -> int:
    """Steps of other groups where there are none."""
    return 0


class CopiesBySteps:
    """Copies that the learner makes at fixed environment steps, in order.

    Args:
        snapshots: queue that the learner fills; this object sets `snapshots.arrived`.
        clock: the training clock, read when a copy arrives.
        taken: called after a copy was taken, because the learner may wait for room in the queue.
        other_steps: returns the steps of the other groups, given this group's at a copy; called when it arrives.
    """

    def __init__(
        self,
        snapshots: WeightSnapshots,
        clock: TrainClock,
        taken: Callable[[], None],
        other_steps: Callable[[int], int] = alone,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._snapshots = snapshots
        self._clock = clock
        self._taken = taken
        self.other_steps = other_steps
        self._arrivals: deque[tuple[float, int]] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        snapshots.arrived = self._arrived

    async def next(self) -> TimedCopy | None:
        """Wait for the oldest copy that was not evaluated yet; None once training has ended and all were taken."""
        while not self._arrivals:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        copy = self._snapshots.take()
        assert copy is not None, "every arrival is of one copy"
        self._taken()
        return TimedCopy(copy, *self._arrivals.popleft())

    def end(self) -> None:
        """Note that training has ended; the waiting copies are still evaluated."""
        self._ended = True
        self._changed.set()

    def _arrived(self) -> None:
        """Called on the learner's thread."""
        self._loop.call_soon_threadsafe(self._note_arrival)

    def _note_arrival(self) -> None:
        copy = self._snapshots.waiting()[len(self._arrivals)]
        self._arrivals.append((self._clock.train_seconds, self.other_steps(copy.env_steps)))
        self._changed.set()


class CopiesBySeconds:
    """Copies of the newest weights, made when an interval of training time has passed and the weights have changed.

    Args:
        interval_seconds: least training time between two copies.
        trainee: the learner whose weights are copied.
        clock: the training clock.
        other_steps: see `CopiesBySteps`.
    """

    def __init__(
        self,
        interval_seconds: float,
        trainee: Learner,
        clock: TrainClock,
        other_steps: Callable[[int], int] = alone,
    ) -> None:
        self._interval = interval_seconds
        self.other_steps = other_steps
        self._trainee = trainee
        self._clock = clock
        self._updates_then = 0
        self._ended = asyncio.Event()

    async def next(self) -> TimedCopy | None:
        """Copy the current weights when the next copy is due; returns None after the end of training."""
        due = self._clock.train_seconds + self._interval
        while not self._ended.is_set() and (
            self._trainee.updates <= self._updates_then or self._clock.train_seconds < due
        ):
            await self._sleep(min(0.02, max(0.001, due - self._clock.train_seconds)))
        if self._ended.is_set():
            return None
        copy = await copy_of(self._trainee)
        self._updates_then = copy.updates
        return TimedCopy(copy, self._clock.train_seconds, self.other_steps(copy.env_steps))

    def end(self) -> None:
        """Note that training has ended; nothing more is evaluated."""
        self._ended.set()

    async def _sleep(self, seconds: float) -> None:
        # Not `wait_for`: before Python 3.12 it drops a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()


async def copy_of(trainee: Learner) -> WeightSnapshot:
    """Copy the current weights; the counters are read after the copy was made."""
    weights, version = await trainee.current_weights()
    return WeightSnapshot(weights, version, trainee.updates, trainee.inserted_steps)
