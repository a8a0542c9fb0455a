"""The learner's coroutine: paused, resumed and ended in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from waiting import PATIENCE_SECONDS as SECONDS

from asyncrl.algorithms import DDPG, SAC
from asyncrl.algorithms.value_bounds import FIRST_VERDICT
from asyncrl.errors import ActionValuesOutOfRange
from asyncrl.interfaces import Batch, Bins, BoxAction, EnvSpec
from asyncrl.learning.divergence import Divergence
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.learner import Learner
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.pace import Pace
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import UpdateLoop
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.learning.what_is_shown import UpdateTimes
from asyncrl.shm.doorbell import Doorbell


class Countdown:
    """Update loop of a given number of ticks, each one update; it never waits for rows."""

    polls_while_dense = False

    def __init__(self, ticks: int) -> None:
        self.left = ticks
        self.rings: list[Any] = []
        self.publisher = SimpleNamespace(version=0, statistics=dict)
        self.updates = 0

    def prepare(self) -> None: ...

    def tick(self) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        self.updates += 1
        return True

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


def make_learner(
    loop: Any, thread: LearnerThread, doorbell: Doorbell, burst_seconds: float = 0.001
) -> Learner:
    return Learner(loop, doorbell, thread, burst_seconds, WeightSnapshots(None))


def test_the_shortest_burst_has_an_update(thread: LearnerThread, doorbell: Doorbell) -> None:
    async def script() -> None:
        async with asyncio.timeout(SECONDS / 10):
            await make_learner(Countdown(3), thread, doorbell, burst_seconds=1e-12).run()

    asyncio.run(script())


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


def test_a_cancelled_hold_holds_nothing(thread: LearnerThread, doorbell: Doorbell) -> None:
    async def script() -> None:
        loop = Countdown(10**9)
        learner = make_learner(loop, thread, doorbell)
        running = asyncio.create_task(learner.run())
        async with asyncio.timeout(SECONDS):
            while loop.updates == 0:
                await asyncio.sleep(0)
            holding = asyncio.create_task(learner.hold())
            await asyncio.sleep(0)
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding
            held_at = loop.updates
            while loop.updates == held_at:
                await asyncio.sleep(0)
            learner.stop()
            await running

    asyncio.run(script())


class Reported(Countdown):
    """`Countdown` with a core and statistics, as a report needs them."""

    statistics, distributions = UpdateLoop.statistics, UpdateLoop.distributions

    def __init__(self, ticks: int, core: Any) -> None:
        super().__init__(ticks)
        self.core, self.divergence = core, Divergence(lambda: None, dict)
        self.pace, self.staleness, self.policy_lag = Pace(None, 0, None), StalenessMeter(), Histogram("lag")
        self.stored_steps = self.discarded_steps = self.inserted_steps = 0
        self.times = UpdateTimes()

    def bins(self) -> dict[str, Bins]:
        return {}

    def value_pairs(self) -> None:
        return None


def trained(record: type, factor: float) -> Any:
    """Core after one update with rewards of 1, whose critics' outputs were multiplied by `factor` before it."""
    spec = EnvSpec("box", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
    core = record(batch_size=32, hidden_sizes=(16,)).make_updater(spec, "cpu", 0)
    with torch.no_grad():
        core.critics.flat.mul_(factor**0.5)  # of two layers
    batch = Batch.allocate(32, spec)
    batch.obs[:], batch.next_obs[:] = np.random.default_rng(0).normal(size=(2, 32, 3))
    batch.action[:] = 0.0
    batch.reward[:], batch.discount[:], batch.weight[:] = 1.0, 0.9, 1.0
    core.update(batch)
    return core


@pytest.mark.parametrize("record", [DDPG, SAC])
def test_a_report_warns_of_action_values_that_have_run_off(
    record: type, thread: LearnerThread, doorbell: Doorbell
) -> None:
    async def report_of(factor: float) -> Any:
        learner = make_learner(Reported(FIRST_VERDICT, trained(record, factor)), thread, doorbell)
        async with asyncio.timeout(SECONDS):
            await learner.run()
            return (await learner.report()).metrics

    assert asyncio.run(report_of(1.0))["train/q_max"] < 10.0, "and no warning, which would be an error"
    with pytest.warns(ActionValuesOutOfRange, match="ASYNC024"):
        metrics = asyncio.run(report_of(1e4))
    assert metrics["train/q_max"] > 2.0 * metrics["train/value_high"] > 19.0
