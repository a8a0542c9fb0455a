"""Times of reports: by seconds, by steps, after an evaluation; with a clock set by the test."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS

from asyncrl.config import TrainerConfig
from asyncrl.errors import SamplesTooStale
from asyncrl.learning.clock import TrainClock
from asyncrl.run.callbacks import Callback, Callbacks
from asyncrl.run.reporting import LEAST_SECONDS, Reporter, ReportTimes


class Clock:
    """Clock set by the test."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_report_is_due_at_once(clock: Clock) -> None:
    times = ReportTimes(1.0, 1000, clock)
    assert times.due(0)
    times.reported(0)
    assert not times.due(0)


def test_seconds_count_from_the_last_report(clock: Clock) -> None:
    times = ReportTimes(1.0, None, clock)
    times.reported(0)
    clock.now += 0.99
    assert not times.due(10**9)
    clock.now += 0.01
    assert times.due(0)
    times.reported(0)
    assert not times.due(0)


def test_steps_are_due_when_another_multiple_was_passed(clock: Clock) -> None:
    times = ReportTimes(1000.0, 500, clock)
    times.reported(0)
    clock.now += 1
    assert [times.due(steps) for steps in (0, 499, 500, 750)] == [False, False, True, True]
    times.reported(1250)
    clock.now += 1
    assert [times.due(steps) for steps in (1250, 1499, 1500)] == [False, False, True]


def test_steps_alone_report_no_faster_than_people_can_see(clock: Clock) -> None:
    times = ReportTimes(1.0, 1, clock)
    times.reported(0)
    clock.now += LEAST_SECONDS * 0.99
    assert not times.due(100)
    clock.now += LEAST_SECONDS * 0.02
    assert times.due(100)


def test_an_evaluation_is_reported_at_once_and_once(clock: Clock) -> None:
    times = ReportTimes(1.0, 1000, clock)
    times.reported(0)
    times.request()
    assert times.due(0)
    times.reported(0)
    assert not times.due(0)


def test_an_evaluation_ends_the_wait_and_one_during_a_report_asks_for_the_next() -> None:
    async def scenario() -> None:
        times = ReportTimes(1e6, None, Clock())
        times.reported(0)
        waiting = asyncio.create_task(times.wait(lambda: 0))
        await asyncio.sleep(0)
        assert not waiting.done()
        times.request()
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
        times.reported(0)
        times.request()  # while the report is being made
        await asyncio.wait_for(times.wait(lambda: 0), PATIENCE_SECONDS)

    asyncio.run(scenario())


def test_the_wait_looks_at_the_steps() -> None:
    async def scenario() -> None:
        clock = Clock()
        times = ReportTimes(1e6, 100, clock)
        times.reported(0)
        clock.now += 1
        seen = iter((0, 50, 99, 100))
        await asyncio.wait_for(times.wait(lambda: next(seen)), PATIENCE_SECONDS)
        assert next(seen, None) is None

    asyncio.run(scenario())


def test_a_run_that_ends_with_its_last_evaluation_is_not_kept_waiting() -> None:
    async def scenario() -> None:
        times = ReportTimes(1e6, None, Clock())
        times.reported(0)

        async def report() -> None:
            while True:
                await times.wait(lambda: 0)
                times.reported(0)

        reporting = asyncio.create_task(report())
        for _ in range(5):
            await asyncio.sleep(0)
        times.request()
        await asyncio.sleep(0)  # the event is on its way to the task
        reporting.cancel()
        done, _ = await asyncio.wait([reporting], timeout=PATIENCE_SECONDS)
        reporting.cancel()
        assert done and reporting.cancelled()

    asyncio.run(scenario())


# --- samples that are too stale ---------------------------------------------------------------------------------------

STALE = {"discarded_fraction": 0.6, "env_steps_per_second": 4000.0, "received_steps_per_second": 3900.0}


def reporter() -> Reporter:
    config = TrainerConfig(env="CartPole-v1", algo="dqn")
    callbacks = Callbacks(None, (), lambda: None, lambda _: None)
    return Reporter(config, TrainClock(), lambda snapshot: None, callbacks)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"consumed_samples_per_second": 20_000.0, "samples_per_insert_target": 10.0},
            r"make 2\.0 times what the learner can use \(4,000 steps/s, used 2,000 steps/s\)",
        ),
        (
            {
                "discipline": "synchronous",
                "samples_per_insert_target": 4.0,
                "consumed_samples_per_second": 6400.0,
            },
            r"make 2\.5 times what the learner can use \(4,000 steps/s, used 1,600 steps/s\)",
        ),
        ({"samples_per_insert_target": None}, r"make no more than .* \(4,000 steps/s, used 3,900 steps/s\)"),
        ({"consumed_samples_per_second": 0.0}, r"learner uses none \(4,000 steps/s, used 0 steps/s\)"),
    ],
)
def test_asyncrl_020_says_who_is_how_much_faster(fields: dict[str, Any], text: str) -> None:
    with pytest.warns(SamplesTooStale, match=rf"ASYNC020\] 60% of the steps .*: actors .*{text}; raise"):
        reporter().show(make_snapshot(**{**STALE, **fields}))


def test_asyncrl_020_is_given_once_and_only_when_half_is_lost() -> None:
    told = reporter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told.show(make_snapshot(discarded_fraction=0.49))
    with pytest.warns(SamplesTooStale):
        told.show(make_snapshot(discarded_fraction=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told.show(make_snapshot(discarded_fraction=0.9))


def test_callbacks_hear_of_a_change_once_and_of_the_end() -> None:
    class Counts(Callback):
        def __init__(self) -> None:
            self.steps: list[tuple[int, str | None]] = []

        def on_report(self, trainer: Any, snapshot: Any) -> None:
            self.steps.append((snapshot.env_steps, snapshot.stop_reason))

    shown: list[Any] = []
    counts = Counts()
    callbacks = Callbacks(None, [counts], lambda: None, lambda _: None)
    config = TrainerConfig(env="CartPole-v1", algo="dqn")
    told = Reporter(config, TrainClock(), shown.append, callbacks)
    for state in ("starting", "starting"):
        told.show(make_snapshot(state=state, env_steps=0, updates=0))
    callbacks.start()
    for steps in (0, 0, 10, 10, 10, 20, 20):
        told.show(make_snapshot(env_steps=steps, updates=0))
    told.show(make_snapshot(env_steps=20, updates=1))
    for _ in range(10):  # training has ended, and the last evaluations go on
        told.show(make_snapshot(env_steps=20, updates=1, state="evaluating"))
    told.show(make_snapshot(env_steps=20, updates=1, stop_reason="total_steps"))
    assert counts.steps == [(0, None), (10, None), (20, None), (20, None), (20, "total_steps")]
    assert len(shown) == 21, "the page is told each time"


def test_the_curve_of_returns_has_each_point_once_and_the_newest() -> None:
    told = reporter()
    for steps in range(1, 402):
        told.show(make_snapshot(env_steps=steps, return_mean=float(steps)))
        for _ in range(4):  # a state is told again and again, such as the progress of an evaluation
            told.show_state("evaluating")
    assert len(told.returns) == len(set(told.returns)) > 150
    assert told.returns[-1] == (401, 401.0)
