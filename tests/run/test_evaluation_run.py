"""Real runs: all files have every evaluation by steps, at the step of the evaluated weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import fakes
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, PPO, Trainer

SMALL: dict[str, Any] = {"envs_per_actor": 4, "num_actors": 1, "http": "off", "eval_episodes": 2}


def small() -> DQN:
    return DQN(learning_starts=200, replay_capacity=8_000, batch_size=32, samples_per_insert=4.0)


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def tensorboard_points(run: Path, tag: str) -> list[tuple[int, float]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run / "tb").iterdir()
    return [
        (event.step, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == tag
    ]


def test_every_interval_has_one_evaluation_in_every_file(tmp_path: Path) -> None:
    run, every, total = tmp_path / "run", 1_000, 5_000
    trainer = Trainer(
        "CartPole-v1", small(), run_dir=run, eval_interval_steps=every, target_eval_episodes=5, **SMALL
    )
    snapshots = []
    result = trainer.learn(total_steps=total, on_snapshot=snapshots.append)

    lines = lines_of(run)
    points = [
        (line["eval/total_timesteps"], line["eval/mean_reward"])
        for line in lines
        if "eval/mean_reward" in line
    ]
    steps = [at for at, _ in points]
    # One after each multiple, the queue emptied before the end; then the final one, of the weights that are returned.
    assert [at // every for at in steps[:-1]] == [1, 2, 3, 4, 5]
    assert steps[-1] == result.evaluation.env_steps == result.summary["env_steps"]  # type: ignore[union-attr]
    updates = [line["eval/n_updates"] for line in lines if "eval/mean_reward" in line]
    assert updates == sorted(updates) and updates[0] > 0 and updates[-1] == result.summary["updates"]

    with (run / "progress.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["eval/mean_reward"]]
    assert [(int(row["eval/total_timesteps"]), float(row["eval/mean_reward"])) for row in rows] == points
    assert all(row["time/total_timesteps"] == row["eval/total_timesteps"] for row in rows)
    assert "train/q_mean" in rows[0] and {name for line in lines for name in line} <= {*rows[0]}
    assert tensorboard_points(run, "eval/mean_reward") == [(at, pytest.approx(mean)) for at, mean in points]
    assert [(e.env_steps, e.return_mean) for e in snapshots[-1].evaluations] == points


def test_the_final_evaluation_is_as_long_as_the_others_where_only_they_were_given() -> None:
    made = Trainer("CartPole-v1", small(), **SMALL)
    result = made.learn(total_steps=600, progress=False)
    assert result.evaluation is not None and result.evaluation.episodes == 2
    assert Trainer("CartPole-v1", small(), http="off").config.final_episodes == 100


def test_evaluations_may_draw_actions() -> None:
    def mean(deterministic: bool) -> float:
        trainer = Trainer(
            fakes.PaysAction,
            PPO(segment_length=8, learning_rate=1e-9),
            num_actors=1,
            envs_per_actor=2,
            http="off",
            eval_deterministic=deterministic,
            target_eval_episodes=50,
            eval_episodes=50,
        )
        result = trainer.learn(total_steps=16, progress=False)
        assert result.summary["eval"]["deterministic"] is deterministic
        assert result.evaluation is not None
        return result.evaluation.return_mean

    assert mean(True) in range(13), "all episodes are alike"
    assert 4.0 < mean(False) < 8.0


def test_a_run_of_a_second_reports_by_steps_and_by_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {"report_interval_seconds": 1e6, "report_interval_steps": 500, "eval_interval_steps": 1_500}
    Trainer("CartPole-v1", small(), run_dir=run, target_eval_episodes=2, **options, **SMALL).learn(
        total_steps=4_000
    )
    lines = lines_of(run)
    reports = [line["time/total_timesteps"] for line in lines if "time/total_timesteps" in line]
    evaluations = [line for line in lines if "eval/mean_reward" in line]
    assert not any("eval/mean_reward" in line and "time/total_timesteps" in line for line in lines)
    # By time there is the one of the start and the one of the end; reports that are due at the same moment are one.
    assert len(evaluations) >= 2 and len(reports) >= 3
    assert reports == sorted(reports) and "time/total_timesteps" in lines[-1]
    assert tensorboard_points(run, "async/policy_lag_mean"), "what was not there before"


def test_the_steps_to_the_target_are_those_of_the_copy_that_was_confirmed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = Trainer(
        "CartPole-v1", small(), run_dir=run, eval_interval_steps=500, target_eval_episodes=5, **SMALL
    )
    result = trainer.learn(target_return=9.0, max_seconds=PATIENCE_SECONDS)  # nearly any policy reaches it
    assert result.stop_reason == "target_return" and result.evaluation is not None
    last = [line for line in lines_of(run) if "eval/mean_reward" in line][-1]
    assert result.summary["steps_to_target"] == last["eval/total_timesteps"] == result.evaluation.env_steps
    assert result.summary["updates_to_target"] == last["eval/n_updates"] == result.evaluation.updates
    assert result.evaluation.episodes == 5
    assert result.summary["time_to_target_seconds"] <= result.summary["train_seconds"]
    assert set(result.summary["policy_lag"]) == {"mean", "p95", "max"}
