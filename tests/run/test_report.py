"""Snapshot and summary from statistics: rates, both clocks, unknown values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from snapshots import make_actor, make_snapshot

from asyncrl.config import TrainerConfig
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.histogram import HistogramStatistics
from asyncrl.learning.learner import LearnerReport
from asyncrl.learning.pace import BalanceStatistics
from asyncrl.run import reporting
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.reporting import Reporter
from asyncrl.run.summary import summarize
from asyncrl.show.metrics import EvaluationResult

STALENESS = HistogramStatistics(2.0, 5.0, 9, 100, (0, 1), (60, 40))
BALANCE = BalanceStatistics(4.0, 3.5, 1000, 3500, 500.0, 600.0, 8, 800, "relaxed")
EVALUATION = EvaluationResult(480.0, 10.0, 480.0, 100, 7, 900, 3.5, 45)


def learner_report(**fields: Any) -> LearnerReport:
    values: dict[str, Any] = {
        "updates": 50,
        "policy_version": 7,
        "wait_seconds": 1.0,
        "train_metrics": {"train/loss": 0.5, "train/kl": 0.01},
        "staleness": STALENESS,
        "staleness_overall": STALENESS,
        "staleness_versions": STALENESS,
        "staleness_versions_overall": STALENESS,
        "policy_lag": STALENESS,
        "policy_lag_overall": STALENESS,
        "publish_interval": 1.0,
        "publish_seconds": 1e-5,
        "balance": BALANCE,
        "stored_steps": 64,
        "discarded_steps": 20,
    }
    return LearnerReport(**{**values, **fields})


class Clock:
    """Monotonic clock set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reporting.time, "monotonic", clock.monotonic)
    return clock


def make_reporter(config: TrainerConfig, clock: TrainClock) -> Reporter:
    callbacks = Callbacks(None, (), lambda: None, lambda _: None)
    return Reporter(config, clock, lambda snapshot: None, callbacks)


@pytest.fixture
def reporter(clock: Clock) -> Reporter:
    config = TrainerConfig(env="CartPole-v1", algo="ppo", target_training_return=300)
    return make_reporter(config, TrainClock(clock.monotonic))


def test_rates_are_differences_over_the_interval(reporter: Reporter, clock: Clock) -> None:
    clock.now += 2.0
    first = reporter.snapshot("training", actors=(make_actor(env_steps=1000),), learner=learner_report())
    assert (first.env_steps_per_second, first.received_steps_per_second) == (500.0, 400.0)
    assert (first.consumed_samples_per_second, first.consumption_per_production) == (1750.0, 3.5)
    assert (first.updates_per_second, first.learner_wait_fraction) == (25.0, 0.5)
    clock.now += 0.5
    later = learner_report(updates=60, balance=replace(BALANCE, received_steps=1100, sampled=4500))
    second = reporter.snapshot("training", actors=(make_actor(env_steps=1250),), learner=later)
    assert (second.env_steps_per_second, second.received_steps_per_second) == (500.0, 600.0)
    assert (second.consumed_samples_per_second, second.consumption_per_production) == (2000.0, 4.0)


def test_a_snapshot_takes_over_what_the_parts_say(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    snapshot = reporter.snapshot(
        "training", actors=(make_actor(),), learner=learner_report(), replay_capacity=4096
    )
    assert (snapshot.discipline, snapshot.target_training_return, snapshot.target_return) == (
        "relaxed",
        300.0,
        None,
    )
    assert (snapshot.replay_steps, snapshot.replay_capacity) == (64, 4096)
    assert snapshot.discarded_fraction == 20 / 1000
    assert (snapshot.samples_per_insert_target, snapshot.samples_per_insert_achieved) == (4.0, 3.5)
    assert (snapshot.loss, snapshot.train_metrics) == (0.5, {"train/kl": 0.01})


LAG = HistogramStatistics(2.5, 4.0, 7, 1000, (0, 1, 2), (300, 300, 400))
VERSIONS = HistogramStatistics(1.5, 2.0, 3, 100, (0, 1), (50, 50))


def test_a_snapshot_keeps_lag_and_both_kinds_of_staleness_apart(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    learner = learner_report(
        policy_lag=LAG, staleness_versions=VERSIONS, publish_interval=4.0, publish_seconds=25e-6
    )
    snapshot = reporter.snapshot("training", learner=learner)
    assert (snapshot.policy_lag_mean, snapshot.policy_lag_p95, snapshot.policy_lag_max) == (2.5, 4.0, 7)
    assert (snapshot.policy_lag_edges, snapshot.policy_lag_counts) == ((0, 1, 2), (300, 300, 400))
    assert (snapshot.staleness_mean, snapshot.staleness_p95, snapshot.staleness_max) == (2.0, 5.0, 9)
    assert snapshot.staleness_versions_mean == 1.5
    assert (snapshot.staleness_versions_p95, snapshot.staleness_versions_max) == (2.0, 3)
    assert (snapshot.publish_interval, snapshot.publish_seconds) == (4.0, 25e-6)


def test_the_summary_says_both_of_the_whole_run() -> None:
    learner = learner_report(policy_lag_overall=LAG, staleness_versions_overall=VERSIONS)
    summary = summarize(make_snapshot(), learner, None, 0.0)
    assert summary["policy_lag"] == {"mean": 2.5, "p95": 4.0, "max": 7}
    assert summary["staleness_versions"] == {"mean": 1.5, "p95": 2.0, "max": 3}
    assert summary["staleness"] == {"mean": 2.0, "p95": 5.0, "max": 9, "discarded_fraction": 0.002}


def test_a_snapshot_has_every_evaluation_and_the_last_of_them(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    assert reporter.snapshot("training").evaluation is None
    later = replace(EVALUATION, env_steps=1800)
    snapshot = reporter.snapshot("training", evaluations=(EVALUATION, later), best=EVALUATION)
    assert snapshot.evaluation == later and snapshot.best_evaluation == EVALUATION
    assert snapshot.evaluations == (EVALUATION, later)


def test_before_the_learner_is_there_and_after_the_actors_are_gone(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    start = reporter.snapshot("starting")
    assert (start.discipline, start.discarded_fraction, start.consumption_per_production) == ("", 0.0, 0.0)
    clock.now += 1.0
    reporter.snapshot("training", actors=(make_actor(),), learner=learner_report())
    clock.now += 1.0
    failed = reporter.snapshot("failed")
    rates = (
        failed.env_steps_per_second,
        failed.received_steps_per_second,
        failed.consumed_samples_per_second,
    )
    assert rates == (0.0, 0.0, 0.0)


CLOCKS = (
    "time_to_target_seconds",
    "steps_to_target",
    "updates_to_target",
    "time_to_training_target_seconds",
    "steps_to_training_target",
)


@pytest.mark.parametrize(
    ("reason", "final", "expected"),
    [
        ("target_return", EVALUATION, (3.5, 900, 45, None, None)),
        ("target_training_return", EVALUATION, (None, None, None, 10.0, 1000)),
        ("target_training_return", None, (None, None, None, 10.0, 1000)),
        ("max_seconds", EVALUATION, (None, None, None, None, None)),
    ],
)
def test_each_clock_is_said_where_it_ended_the_run(
    reason: str, final: EvaluationResult | None, expected: tuple[object, ...]
) -> None:
    summary = summarize(make_snapshot(stop_reason=reason), learner_report(), final, 3.0)
    assert tuple(summary[name] for name in CLOCKS) == expected
    assert summary["episodes_return_mean"] == 123.5


def test_waiting_while_the_clock_stands_is_not_counted() -> None:
    clock = TrainClock()
    reporter = make_reporter(TrainerConfig(env="CartPole-v1", algo="ppo"), clock)
    reporter.count_waiting(0.5)
    assert reporter.actor_wait_seconds == 0.0, "start-up"
    clock.start()
    reporter.count_waiting(2.0)
    clock.pause()
    reporter.count_waiting(7.0)
    clock.resume()
    reporter.count_waiting(7.25)
    assert reporter.actor_wait_seconds == 1.75
    summary = summarize(make_snapshot(train_seconds=3.5), learner_report(), None, reporter.actor_wait_seconds)
    assert summary["actor_wait_fraction"] == 0.5
