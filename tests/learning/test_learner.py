"""The learner's coroutine: paused, resumed and ended in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.learning.learner import Learner
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.shm.doorbell import Doorbell

SECONDS = 10.0


class Countdown:
    """Update loop of a given number of ticks, each one update; it never waits for rows."""

    polls_while_dense = False

    def __init__(self, ticks: int) -> None:
        self.left = ticks
        self.rings: list[Any] = []
        self.publisher = SimpleNamespace(version=0)
        self.updates = 0

    def prepare(self) -> None: ...

    def tick(self) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        self.updates += 1
        return True

    def end_burst(self) -> None: ...

    def finished(self) -> bool:
        return self.left == 0

    def wake_positions(self) -> list[int]:
        return []


@pytest.fixture
def doorbell() -> Iterator[Doorbell]:
    doorbell = Doorbell.create()
    yield doorbell
    doorbell.close()


@pytest.fixture
def thread() -> Iterator[LearnerThread]:
    thread = LearnerThread(1)
    yield thread
    thread.close()


def make_learner(loop: Any, thread: LearnerThread, doorbell: Doorbell) -> Learner:
    return Learner(loop, doorbell, thread, 0.001, WeightSnapshots(None))


def test_a_learner_that_has_ended_is_quiet_already(thread: LearnerThread, doorbell: Doorbell) -> None:
    # An evaluation may ask for this between the last update and the end of the last checkpoint.
    async def script() -> None:
        learner = make_learner(Countdown(3), thread, doorbell)
        async with asyncio.timeout(SECONDS):
            await learner.run()
            await learner.hold()
            learner.resume()
            await learner.hold()
        assert learner.updates == 3

    asyncio.run(script())


def test_a_held_learner_makes_no_update_until_it_is_resumed(
    thread: LearnerThread, doorbell: Doorbell
) -> None:
    async def script() -> None:
        loop = Countdown(10**9)
        learner = make_learner(loop, thread, doorbell)
        running = asyncio.create_task(learner.run())
        async with asyncio.timeout(SECONDS):
            while loop.updates == 0:
                await asyncio.sleep(0)
            await learner.hold()
            held_at = loop.updates
            await thread.call(lambda: None)
            assert loop.updates == held_at
            learner.resume()
            while loop.updates == held_at:
                await asyncio.sleep(0)
            learner.stop()
            await running

    asyncio.run(script())


def test_a_learner_may_be_stopped_while_it_is_held(thread: LearnerThread, doorbell: Doorbell) -> None:
    async def script() -> None:
        learner = make_learner(Countdown(10**9), thread, doorbell)
        running = asyncio.create_task(learner.run())
        async with asyncio.timeout(SECONDS):
            await learner.hold()
            learner.stop()
            await running

    asyncio.run(script())


def test_a_learner_goes_on_after_the_last_of_two_holds(thread: LearnerThread, doorbell: Doorbell) -> None:
    async def script() -> None:
        loop = Countdown(10**9)
        learner = make_learner(loop, thread, doorbell)
        running = asyncio.create_task(learner.run())
        async with asyncio.timeout(SECONDS):
            await learner.hold()
            await learner.hold()
            learner.resume()
            held_at = loop.updates
            for _ in range(20):
                await thread.call(lambda: None)
            assert loop.updates == held_at
            learner.resume()
            while loop.updates == held_at:
                await asyncio.sleep(0)
            learner.stop()
            await running

    asyncio.run(script())
