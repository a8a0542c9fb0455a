"""Public names of the numbers, and the metric files."""

from __future__ import annotations

import copy
import csv
import errno
import json
import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from snapshots import METRICS, make_actor, make_snapshot

from asyncrl.show.metrics import (
    ACTOR_METRICS,
    EVALUATION_METRICS,
    METRIC_NAMES,
    RUN_METRICS,
    EvaluationResult,
    flat,
    over_groups,
)
from asyncrl.show.writers import CsvWriter, JsonlWriter, RunWriters, TensorBoardWriter

EXPECTED = {
    "rollout/ep_rew_mean": 123.5,
    "rollout/ep_len_mean": 120.0,
    "rollout/success_rate": 0.25,
    "rollout/elo": 1310.5,
    "rollout/win_rate": 0.625,
    "rollout/exploration_rate": 0.05,
    "time/fps": 3400.0,
    "time/total_timesteps": 1000,
    "time/time_elapsed": 12.0,
    "time/step_env_seconds": 12e-6,
    "time/step_inference_seconds": 9e-6,
    "time/step_write_seconds": 2e-6,
    "time/step_wait_seconds": 3e-6,
    "time/update_sample_seconds": 40e-6,
    "time/update_learn_seconds": 400e-6,
    "time/update_priorities_seconds": 8e-6,
    "train/loss": 0.0123,
    "train/n_updates": 250,
    "train/learning_rate": 0.001,
    "async/staleness_mean": 2.1,
    "async/staleness_p95": 5.2,
    "async/staleness_max": 14,
    "async/staleness_versions_mean": 1.1,
    "async/staleness_versions_p95": 2.0,
    "async/staleness_versions_max": 3,
    "async/policy_lag_mean": 2.6,
    "async/policy_lag_p95": 4.0,
    "async/policy_lag_max": 7,
    "async/publish_interval": 4.0,
    "async/samples_per_insert": 3.98,
    "async/samples_per_insert_target": 4.0,
    "async/learner_wait_fraction": 0.03,
    "async/actor_wait_fraction": 0.31,
    "async/inference_batch_size": 12.0,
    "async/inference_wait_fraction": 0.07,
    "async/ring_fill": 0.62,
    "async/policy_version": 50,
    "async/actor_restarts": 0,
    "async/production_per_second": 3400.0,
    "async/receipt_per_second": 3390.0,
    "async/consumption_per_second": 13532.0,
    "system/learner_cores": 0.9,
    "system/actor_cores": 1.6,
    "system/learner_bytes": 250_000_000,
    "system/actor_bytes": 120_000_000,
    "system/gpu_bytes": 500_000_000,
    "system/gpu_utilization": 0.4,
}

EVALUATION = EvaluationResult(200.0, 12.5, 210.0, 20, 40, 900, 9.0, 220, success_rate=0.5)
EXPECTED_EVALUATION = {
    "eval/mean_reward": 200.0,
    "eval/mean_ep_length": 210.0,
    "eval/success_rate": 0.5,
    "eval/total_timesteps": 900,
    "eval/n_updates": 220,
}

KEPT = METRICS | {
    "algo": "dqn",
    "env": "CartPole-v1",
    "seed": 3,
    "state": "training",
    "total_steps": 4000,
    "target_return": 475.0,
    "target_training_return": None,
    "max_seconds": None,
    "evaluation": EVALUATION,
    "best_evaluation": EVALUATION,
    "actors": (make_actor(0), make_actor(1)),
    "groups": (),
    "opponents": (),
    "discipline": "replay",
    "network": "",
    "stop_reason": None,
    "error": None,
    "final_evaluation": None,
    "staleness_edges": (0, 1, 2, 4),
    "staleness_counts": (10, 20, 5, 1),
    "staleness_sum": 60,
    "policy_lag_edges": (0, 1, 2, 3),
    "policy_lag_counts": (100, 300, 500, 100),
    "policy_lag_sum": 1600,
    "train_metrics": {"train/td_error": 0.5},
}
"""Attributes of `make_snapshot()` that users rely on."""

UNKNOWN: dict[str, Any] = dict.fromkeys(
    (
        "return_mean",
        "length_mean",
        "exploration_rate",
        "loss",
        "learning_rate",
        "evaluation",
        "best_evaluation",
        "samples_per_insert_target",
    )
)


def test_flat_names_every_number() -> None:
    assert flat(make_snapshot()) == EXPECTED
    assert flat(EVALUATION) == EXPECTED_EVALUATION
    assert set(METRIC_NAMES) == {*EXPECTED, *EXPECTED_EVALUATION} and len(set(METRIC_NAMES)) == len(
        METRIC_NAMES
    )
    assert [*EXPECTED] == [name for name in METRIC_NAMES if name in EXPECTED]
    assert [*EXPECTED_EVALUATION] == [name for name in METRIC_NAMES if name in EXPECTED_EVALUATION]


def test_a_report_holds_no_evaluation_that_could_be_taken_for_a_new_one() -> None:
    assert not any(name.startswith("eval/") for name in flat(make_snapshot()))


def test_flat_leaves_out_what_is_not_known() -> None:
    known = flat(make_snapshot(**UNKNOWN))
    assert set(EXPECTED) - set(known) == {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "rollout/exploration_rate",
        "train/loss",
        "train/learning_rate",
        "async/samples_per_insert_target",
    }


def test_flat_adds_the_scalars_that_the_table_lacks() -> None:
    metrics = {"train/td_error": 0.5, "train/grad_norm": 2.0}
    values = flat(make_snapshot(train_metrics=metrics))
    assert [*values.items()] == [*(EXPECTED | metrics).items()], "after those of the table"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    writer.write(flat(make_snapshot()), 1000)
    # On disk at once, without a flush.
    assert lines_of(path) == [EXPECTED]
    writer.write(flat(make_snapshot(loss=math.nan, return_mean=-math.inf)), 1000)
    writer.close()
    writer.close()
    assert lines_of(path)[1] == {**EXPECTED, "train/loss": None, "rollout/ep_rew_mean": None}


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    writer.write(flat(make_snapshot(**UNKNOWN)), 1000)
    writer.write(flat(make_snapshot(loss=math.nan, logged_now={"probe/score": 1.0, "seen": 2.0})), 1000)
    writer.close()
    writer.close()
    # Another writer appends under the same header.
    again = CsvWriter(path)
    again.write(flat(make_snapshot()), 1000)
    again.write(flat(EVALUATION), 900)
    again.close()
    rows = rows_of(path)
    assert list(rows[0]) == [*METRIC_NAMES], "numbers of the user are not there"
    assert rows[0]["train/loss"] == rows[0]["eval/mean_reward"] == ""
    assert math.isnan(float(rows[1]["train/loss"]))
    assert {name: float(rows[2][name]) for name in METRIC_NAMES if rows[2][name]} == EXPECTED
    evaluated = {name: float(rows[3][name]) for name in rows[3] if rows[3][name]}
    assert evaluated == {**EXPECTED_EVALUATION, "time/total_timesteps": 900}, "on the axis of the reports"


def test_csv_gets_a_column_for_a_number_of_the_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    writer.write(flat(make_snapshot(**UNKNOWN)), 1000)
    writer.write(flat(make_snapshot(train_metrics={"train/entropy": 0.5, "train/grad_norm": 2.0})), 1000)
    own = {"rollout/ep_rew_mean/left": 3.0, "train/entropy": 0.25}
    writer.write(flat(make_snapshot(train_metrics=own)), 1000)
    writer.close()
    again = CsvWriter(path)
    again.write(flat(make_snapshot(train_metrics={"train/grad_norm": 1.0})), 1000)
    again.close()
    rows, added = rows_of(path), ["train/entropy", "train/grad_norm", "rollout/ep_rew_mean/left"]
    assert list(rows[0]) == [*METRIC_NAMES, *added]
    assert [[row[name] for name in added] for row in rows] == [
        ["", "", ""],
        ["0.5", "2.0", ""],
        ["0.25", "", "3.0"],
        ["", "1.0", ""],
    ]
    assert [row["time/total_timesteps"] for row in rows] == ["1000"] * 4
    assert [file.name for file in tmp_path.iterdir()] == ["progress.csv"]


def test_csv_keeps_what_it_has_where_a_column_cannot_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    writer.write(flat(make_snapshot()), 1000)
    before = path.read_bytes()
    entry = flat(make_snapshot(train_metrics={"train/entropy": 0.5}))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="No space left"):
            writer.write(entry, 1000)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
    writer.write(entry, 1000)
    writer.close()
    assert [row["train/entropy"] for row in rows_of(path)] == ["", "0.5"]


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_csv_of_another_version_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("time/fps,gone,time/total_timesteps\n1.0,2.0,3\n")
    writer = CsvWriter(path)
    writer.write({"train/loss": 0.5, "time/total_timesteps": 7, "time/fps": 6.0}, 7)
    header = "time/fps,gone,time/total_timesteps,train/loss\n"
    assert path.read_text() == f"{header}1.0,2.0,3,\n6.0,,7,0.5\n"
    path.unlink()
    writer.write({"time/total_timesteps": 8}, 8)
    writer.close()
    assert path.read_text() == f"{header},,8,\n"


def test_tensorboard_round_trip(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    writer = TensorBoardWriter(tmp_path / "tb", clock=lambda: 1e9)
    writer.write(flat(make_snapshot()), 1000)
    writer.write(flat(EVALUATION), 900)
    writer.close()
    writer.close()
    (file,) = (tmp_path / "tb").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    assert [(event.step, event.wall_time) for event in events] == [(1000, 1e9), (900, 1e9)]
    report, evaluation = (
        {value.tag: value.tensor.float_val[0] for value in event.summary.value} for event in events
    )
    assert report == pytest.approx(EXPECTED)
    assert evaluation == pytest.approx(EXPECTED_EVALUATION)


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)


@pytest.mark.usefixtures("no_tensorboard")
def test_tensorboard_is_silently_off_where_it_is_missing(tmp_path: Path) -> None:
    writers = RunWriters(tmp_path)
    writers.write(make_snapshot())
    writers.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "progress.csv"]


def test_a_run_writes_all_three(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writers = RunWriters(tmp_path)
    writers.write(make_snapshot())
    writers.write(EVALUATION)
    writers.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "progress.csv", "tb"]
    assert lines_of(tmp_path / "metrics.jsonl") == [EXPECTED, EXPECTED_EVALUATION]


def test_the_table_has_every_number_once() -> None:
    tables = (*RUN_METRICS, *EVALUATION_METRICS, *ACTOR_METRICS)
    names = [metric.name for metric in RUN_METRICS]
    assert len(set(names)) == len(names)
    prometheus = [metric.prometheus_name for metric in tables if metric.prometheus_name is not None]
    assert len(set(prometheus)) == len(prometheus)
    assert {metric.of for metric in RUN_METRICS} | {metric.per for metric in RUN_METRICS} <= {"", *names}
    evaluation, actor = make_snapshot().evaluation, make_snapshot().actors[0]
    assert {metric.key for metric in EVALUATION_METRICS} <= set(vars(evaluation))
    assert {metric.name for metric in ACTOR_METRICS} <= set(vars(actor))


def test_attributes_of_a_snapshot_keep_their_names() -> None:
    """Dashboards read them from `/stats`, callbacks from the snapshot; adding is free, renaming is not."""
    snapshot = make_snapshot(train_metrics={"train/td_error": 0.5})
    assert snapshot.fields() | KEPT == snapshot.fields()
    assert {name: getattr(snapshot, name) for name in KEPT} == KEPT
    with pytest.raises(AttributeError, match="no attribute 'env_step'; its numbers are in `metrics`"):
        _ = snapshot.env_step


def test_a_snapshot_survives_pickling_and_copying() -> None:
    snapshot = make_snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == copy.deepcopy(snapshot) == snapshot


def test_groups_add_counters_and_rates_and_no_gauges() -> None:
    own = make_snapshot(
        env_steps=100, env_steps_per_second=10.0, ring_fill=0.5, exploration_rate=None
    ).metrics
    others = [make_snapshot(env_steps=30, env_steps_per_second=5.0, ring_fill=0.1).metrics, {}]
    together = over_groups(own, others)
    assert (together["time/total_timesteps"], together["time/fps"]) == (130, 15.0)
    assert (together["async/ring_fill"], together["rollout/exploration_rate"]) == (0.5, None)
    assert [*together] == [*own]
