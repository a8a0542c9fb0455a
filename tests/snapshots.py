"""Snapshots with every field filled, any of which may be given."""

from __future__ import annotations

from typing import Any

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.metrics import EvaluationResult, Snapshot


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


def make_snapshot(**fields: Any) -> Snapshot:
    """A run in its tenth second."""
    evaluation = EvaluationResult(200.0, 12.5, 210.0, 20, 40, 900, 9.0, 220)
    values: dict[str, Any] = {
        "algo": "dqn",
        "env": "CartPole-v1",
        "seed": 3,
        "state": "training",
        "wall_seconds": 12.0,
        "train_seconds": 10.0,
        "startup_seconds": 2.0,
        "total_steps": 4000,
        "target_return": 475.0,
        "target_training_return": None,
        "max_seconds": None,
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
        "exploration_rate": 0.05,
        "loss": 0.0123,
        "learning_rate": 0.001,
        "train_metrics": {},
        "evaluation": evaluation,
        "best_evaluation": evaluation,
        "staleness_mean": 2.1,
        "staleness_p95": 5.2,
        "staleness_max": 14,
        "staleness_edges": (0, 1, 2, 4),
        "staleness_counts": (10, 20, 5, 1),
        "staleness_versions_mean": 1.1,
        "staleness_versions_p95": 2.0,
        "staleness_versions_max": 3,
        "policy_lag_mean": 2.6,
        "policy_lag_p95": 4.0,
        "policy_lag_max": 7,
        "policy_lag_edges": (0, 1, 2, 3),
        "policy_lag_counts": (100, 300, 500, 100),
        "publish_interval": 4.0,
        "publish_seconds": 25e-6,
        "discarded_fraction": 0.002,
        "discipline": "replay",
        "samples_per_insert_target": 4.0,
        "samples_per_insert_achieved": 3.98,
        "ring_fill": 0.62,
        "replay_steps": 900,
        "replay_capacity": 65536,
        "actors": (make_actor(0), make_actor(1)),
        "actor_restarts": 0,
        "evaluations": (evaluation,),
        "inference_batch_size": 12.0,
        "inference_wait_fraction": 0.07,
        "staleness_sum": 60.0,
        "policy_lag_sum": 1600.0,
    }
    return Snapshot(**{**values, **fields})
