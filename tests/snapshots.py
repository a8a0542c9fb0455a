"""Snapshots with every number known, any of which may be given."""

from __future__ import annotations

from typing import Any

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.interfaces import Bins, Distribution, Metrics, ValuePairs
from asyncrl.show.metrics import BY_KEY, UNMEASURED, EvaluationResult, Snapshot


def make_actor(index: int = 0, **fields: Any) -> ActorStatistics:
    """A running actor."""
    values: dict[str, Any] = {
        "index": index,
        "pid": 4000 + index,
        "state": "running",
        "env_steps": 500,
        "env_steps_per_second": 1700.0,
        "heartbeat_age_seconds": 0.01,
        "wait_fraction": 0.25,
        "ring_fill": 0.5,
        "restarts": 0,
        "last_error": "",
        "private_bytes": 60_000_000,
    }
    return ActorStatistics(**{**values, **fields})


METRICS = {
    "wall_seconds": 12.0,
    "train_seconds": 10.0,
    "startup_seconds": 2.0,
    "env_steps": 1000,
    "updates": 250,
    "episodes": 30,
    "policy_version": 50,
    "env_steps_per_second": 3400.0,
    "received_steps_per_second": 3390.0,
    "consumed_samples_per_second": 13532.0,
    "consumption_per_production": 3.98,
    "updates_per_second": 810.0,
    "learner_wait_fraction": 0.03,
    "actor_wait_fraction": 0.31,
    "return_mean": 123.5,
    "length_mean": 120.0,
    "success_rate": 0.25,
    "elo": 1310.5,
    "win_rate": 0.625,
    "exploration_rate": 0.05,
    "loss": 0.0123,
    "learning_rate": 0.001,
    "staleness_mean": 2.1,
    "staleness_p95": 5.2,
    "staleness_max": 14,
    "staleness_versions_mean": 1.1,
    "staleness_versions_p95": 2.0,
    "staleness_versions_max": 3,
    "policy_lag_mean": 2.6,
    "policy_lag_p95": 4.0,
    "policy_lag_max": 7,
    "publish_interval": 4.0,
    "publish_seconds": 25e-6,
    "discarded_fraction": 0.002,
    "samples_per_insert_target": 4.0,
    "samples_per_insert_achieved": 3.98,
    "ring_fill": 0.62,
    "replay_steps": 900,
    "replay_capacity": 65536,
    "actor_restarts": 0,
    "inference_batch_size": 12.0,
    "inference_wait_fraction": 0.07,
    "inference_passes": 80,
    "inference_rows": 960,
    "inference_wait_seconds": 0.7,
    "step_env_seconds": 12e-6,
    "step_inference_seconds": 9e-6,
    "step_write_seconds": 2e-6,
    "step_wait_seconds": 3e-6,
    "update_sample_seconds": 40e-6,
    "update_learn_seconds": 400e-6,
    "update_priorities_seconds": 8e-6,
    "learner_cores": 0.9,
    "actor_cores": 1.6,
    "learner_bytes": 250_000_000,
    "actor_bytes": 120_000_000,
    "gpu_bytes": 500_000_000,
    "gpu_utilization": 0.4,
}
"""Numbers by their short names."""
DISTRIBUTIONS = {
    "async/staleness": Distribution(60 / 36, 2, 14, 36, 60, (0, 1, 2, 4), (10, 20, 5, 1)),
    "async/policy_lag": Distribution(1.6, 2, 7, 1000, 1600, (0, 1, 2, 3), (100, 300, 500, 100)),
}


BINS = {
    "rollout/ep_rew": Bins((90.0, 100.0, 110.0, 120.0, 130.0), (5, 0, 15, 10)),
    "rollout/ep_len": Bins((89.5, 99.5, 109.5, 119.5, 129.5), (5, 0, 15, 10)),
    "rollout/action": Bins((-0.5, 0.5, 1.5), (600, 400)),
}
VALUE_PAIRS = ValuePairs((10.0, 20.0, 30.0), (12.0, 18.0, 33.0))


def make_snapshot(
    *, train_metrics: dict[str, float] | None = None, metrics: Metrics | None = None, **fields: Any
) -> Snapshot:
    """A run in its tenth second.

    Args:
        train_metrics: further scalars of the last update.
        metrics: numbers by public name.
        fields: attributes of the snapshot, and numbers by their short names.
    """
    evaluation = EvaluationResult(200.0, 12.5, 210.0, 20, 40, 900, 9.0, 220, success_rate=0.5)
    values: dict[str, Any] = {
        "algo": "dqn",
        "env": "CartPole-v1",
        "seed": 3,
        "state": "training",
        "total_steps": 4000,
        "target_return": 475.0,
        "target_training_return": None,
        "max_seconds": None,
        "distributions": DISTRIBUTIONS,
        "bins": BINS,
        "value_pairs": VALUE_PAIRS,
        "evaluation": evaluation,
        "best_evaluation": evaluation,
        "discipline": "replay",
        "actors": (make_actor(0), make_actor(1)),
        "evaluations": (evaluation,),
    }
    numbers = METRICS | {key: fields.pop(key) for key in tuple(fields) if key in BY_KEY}
    by_name: Metrics = {BY_KEY[key].name: value for key, value in numbers.items()}
    by_name["async/production_per_second"] = by_name["time/fps"]
    every = {**UNMEASURED, **by_name, **(train_metrics or {}), **(metrics or {})}
    return Snapshot(**{**values, **fields, "metrics": every})
