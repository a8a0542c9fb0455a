"""Metrics and summary of a run from the numbers of its parts: rates, both clocks, unknown values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from snapshots import make_actor, make_snapshot

from asyncrl import Trainer
from asyncrl.actors.statistics import over_actors
from asyncrl.config import TrainerConfig
from asyncrl.errors import FilesNotWritten
from asyncrl.interfaces import Distribution, Metrics
from asyncrl.learning.clock import TrainClock
from asyncrl.run import reporting
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.reporting import Reporter
from asyncrl.run.run import Run
from asyncrl.run.summary import summarize
from asyncrl.show.metrics import RUN_METRICS, UNMEASURED, EvaluationResult

EVALUATION = EvaluationResult(480.0, 10.0, 480.0, 100, 7, 900, 3.5, 45)
LEARNED: Metrics = {
    "train/n_updates": 50,
    "learner_wait_seconds": 1.0,
    "received_steps": 800,
    "consumed_samples": 3500,
    "train/loss": 0.5,
    "train/kl": 0.01,
}


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


def measured(env_steps: int, **learned: float) -> Metrics:
    """Numbers of one actor and the learner."""
    return over_actors((make_actor(env_steps=env_steps),)) | LEARNED | learned


def test_rates_are_differences_over_the_interval(reporter: Reporter, clock: Clock) -> None:
    clock.now += 2.0
    first = reporter.metrics(measured(1000))
    assert (first["time/fps"], first["async/receipt_per_second"]) == (500.0, 400.0)
    assert (first["async/consumption_per_second"], first["consumption_per_production"]) == (1750.0, 3.5)
    assert (first["updates_per_second"], first["async/learner_wait_fraction"]) == (25.0, 0.5)
    clock.now += 0.5
    second = reporter.metrics(measured(1250, received_steps=1100, consumed_samples=4500))
    assert (second["time/fps"], second["async/receipt_per_second"]) == (500.0, 600.0)
    assert (second["async/consumption_per_second"], second["consumption_per_production"]) == (2000.0, 4.0)


def test_a_resumed_run_counts_only_what_is_added(reporter: Reporter, clock: Clock) -> None:
    reporter.go_on_from(measured(1000), 3.0, 2)
    clock.now += 2.0
    metrics = reporter.metrics(measured(1200))
    assert (metrics["time/fps"], metrics["updates_per_second"]) == (100.0, 0.0)
    assert (reporter.actor_wait_seconds, metrics["async/actor_restarts"]) == (3.0, 2)


def test_metrics_are_all_of_the_table_and_what_the_parts_measure(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    reporter.episodes.extend([(0, 20.0, 8, 0), (0, 30.0, 12, 0)])
    metrics = reporter.metrics(measured(500))
    assert [*metrics] == [*UNMEASURED, "train/kl"]
    assert (metrics["train/loss"], metrics["train/kl"], metrics["train/learning_rate"]) == (0.5, 0.01, None)
    assert (metrics["episodes"], metrics["rollout/ep_rew_mean"], metrics["rollout/ep_len_mean"]) == (
        2,
        25.0,
        10.0,
    )
    assert (metrics["time/time_elapsed"], metrics["async/ring_fill"]) == (1.0, 0.5)


def test_numbers_over_the_actors_are_sums_and_means() -> None:
    actors = (
        make_actor(0, env_steps=10, ring_fill=0.2, restarts=1),
        make_actor(1, env_steps=30, ring_fill=0.4),
    )
    assert over_actors(actors) == {
        "time/total_timesteps": 40,
        "async/actor_wait_fraction": 0.25,
        "async/ring_fill": pytest.approx(0.3),
        "async/actor_restarts": 1,
    }
    assert over_actors(()) == {}


def test_the_summary_says_lag_and_both_kinds_of_staleness_of_the_whole_run() -> None:
    distributions = {
        "async/staleness": Distribution(2.0, 5.0, 9),
        "async/staleness_versions": Distribution(1.5, 2.0, 3),
        "async/policy_lag": Distribution(2.5, 4.0, 7),
    }
    summary = summarize(make_snapshot(distributions=distributions), None, 0.0)
    assert summary["policy_lag"] == {"mean": 2.5, "p95": 4.0, "max": 7}
    assert summary["staleness_versions"] == {"mean": 1.5, "p95": 2.0, "max": 3}
    assert summary["staleness"] == {"mean": 2.0, "p95": 5.0, "max": 9, "discarded_fraction": 0.002}
    nothing = summarize(make_snapshot(distributions={}), None, 0.0)
    assert nothing["policy_lag"] == {"mean": 0.0, "p95": 0.0, "max": 0}


def test_before_the_learner_is_there_and_after_the_actors_are_gone(reporter: Reporter, clock: Clock) -> None:
    clock.now += 1.0
    start = reporter.metrics({})
    assert (start["discarded_fraction"], start["consumption_per_production"]) == (0, 0.0)
    clock.now += 1.0
    reporter.metrics(measured(500))
    clock.now += 1.0
    assert {reporter.metrics({})[metric.name] for metric in RUN_METRICS if metric.kind == "rate"} == {0.0}


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
    summary = summarize(make_snapshot(stop_reason=reason), final, 3.0)
    assert tuple(summary[name] for name in CLOCKS) == expected
    assert summary["episodes_return_mean"] == 123.5


def test_waiting_of_the_start_up_is_not_counted_though_it_is_told_at_the_first_step() -> None:
    now = 0.0
    clock = TrainClock(lambda: now)
    reporter = make_reporter(TrainerConfig(env="CartPole-v1", algo="dqn"), clock)
    clock.start()
    now = 0.1
    reporter.count_waiting(
        3.0
    )  # an actor that was ready 2.95 s before the clock started has made its first step
    assert reporter.actor_wait_seconds == pytest.approx(0.1)
    now = 1.1
    reporter.count_waiting(3.25)
    assert reporter.actor_wait_seconds == pytest.approx(0.35)
    reporter.go_on_from({}, waited=5.0, restarts=0)
    now = 1.3
    reporter.count_waiting(4.25)
    assert reporter.actor_wait_seconds == pytest.approx(5.2), "an earlier run's waiting is kept"


def test_waiting_while_the_clock_stands_is_not_counted() -> None:
    now = 100.0
    clock = TrainClock(lambda: now)
    reporter = make_reporter(TrainerConfig(env="CartPole-v1", algo="ppo"), clock)
    reporter.count_waiting(0.5)
    assert reporter.actor_wait_seconds == 0.0, "start-up"
    clock.start()
    now = 103.0
    reporter.count_waiting(2.0)
    clock.pause()
    now = 108.0
    reporter.count_waiting(7.0)
    clock.resume()
    now = 108.5
    reporter.count_waiting(7.25)
    assert reporter.actor_wait_seconds == 1.75
    snapshot = make_snapshot(train_seconds=3.5, learner_wait_seconds=0.7)
    summary = summarize(snapshot, None, reporter.actor_wait_seconds)
    assert (summary["actor_wait_fraction"], summary["learner_wait_fraction"]) == (0.5, pytest.approx(0.2))


def test_a_last_report_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has its result and a summary with the counters of the report before."""
    whole = Run.snapshot

    def broken(self: Run, stop_reason: str | None = None, error: str | None = None) -> Any:
        if stop_reason is not None:
            raise ZeroDivisionError("a rate")
        return whole(self, stop_reason, error)

    monkeypatch.setattr(Run, "snapshot", broken)
    options = {"num_actors": 1, "total_steps": 500, "eval_episodes": 1, "report_interval_seconds": 0.01}
    trainer = Trainer("CartPole-v1", "dqn", run_dir=tmp_path / "run", **options)
    with pytest.warns(FilesNotWritten, match="last report failed: ZeroDivisionError: a rate"):
        result = trainer.learn()
    assert result.stop_reason == "total_steps"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (
        summary["stop_reason"] == "total_steps" and 0 <= summary["env_steps"] <= result.summary["env_steps"]
    )
