"""Content of `summary.json`, made from the last snapshot."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from asyncrl.interfaces import Distribution
from asyncrl.show.evaluation_result import BY_NAME
from asyncrl.show.group_statistics import summary_of
from asyncrl.show.metrics import EvaluationResult, Snapshot

SAME = (
    *("error", "stop_reason", "env_steps", "updates", "episodes", "policy_version"),
    *("wall_seconds", "train_seconds", "startup_seconds"),
)
"""Entries that a snapshot has too, in the order of the file."""


def end_state(stop_reason: str | None) -> str:
    """State of an ended run: `"failed"`, `"interrupted"`, `"stopped"`, or `"finished"` by a stopping rule."""
    return stop_reason if stop_reason in ("failed", "interrupted", "stopped") else "finished"


def summarize(last: Snapshot, final: EvaluationResult | None, actor_wait_seconds: float) -> dict[str, Any]:
    """Make the content of `summary.json`; rates and fractions are over all of `train_seconds`.

    Times to a target are on the training clock, which is paused while an evaluation holds training.
    `time_to_target_seconds` belongs to a confirmed evaluation, `time_to_training_target_seconds` to the mean of
    the last 100 training episodes. Time, steps and updates to the greedy target are those at which the weights that
    passed were copied, not those at which their evaluation ended.

    Args:
        last: the run's last snapshot.
        final: evaluation of the weights that the run returns, None if there was none.
        actor_wait_seconds: mean over the actors of the time spent waiting for a grant while the training clock ran.
    """
    seconds = max(last.train_seconds, 1e-9)
    return {
        **{name: getattr(last, name) for name in ("algo", "env", "seed")},
        "state": end_state(last.stop_reason),
        **{name: getattr(last, name) for name in SAME},
        **_to_target(last, final),
        "episodes_return_mean": last.return_mean,
        "eval": {
            "return_mean": final.return_mean if final else None,
            "return_std": final.return_std if final else None,
            "episodes": final.episodes if final else 0,
            **{name: returns for name in BY_NAME if final and (returns := getattr(final, name))},
        },
        **({"opponents": [asdict(opponent) for opponent in last.opponents]} if last.opponents else {}),
        "env_steps_per_second": last.env_steps / seconds,
        "updates_per_second": last.updates / seconds,
        "staleness": _over_all(last, "async/staleness") | {"discarded_fraction": last.discarded_fraction},
        "staleness_versions": _over_all(last, "async/staleness_versions"),
        "policy_lag": _over_all(last, "async/policy_lag"),
        "samples_per_insert": {
            "target": last.samples_per_insert_target,
            "achieved": last.samples_per_insert_achieved,
        },
        "learner_wait_fraction": min(1.0, last.learner_wait_seconds / seconds),
        "actor_wait_fraction": min(1.0, actor_wait_seconds / seconds),
        "actor_restarts": last.actor_restarts,
        **summary_of(last.groups),
    }


def _over_all(last: Snapshot, name: str) -> dict[str, float]:
    """Mean, 95th percentile and largest value since the start."""
    whole = last.distributions.get(name, Distribution())
    return {"mean": whole.mean, "p95": whole.p95, "max": whole.max}


def _to_target(last: Snapshot, final: EvaluationResult | None) -> dict[str, Any]:
    """Time, steps and updates to the target that ended the run; None for other targets."""
    reached = final if last.stop_reason == "target_return" else None
    trained = last.stop_reason == "target_training_return"
    return {
        "time_to_target_seconds": reached.train_seconds if reached else None,
        "steps_to_target": reached.env_steps if reached else None,
        "updates_to_target": reached.updates if reached else None,
        "time_to_training_target_seconds": last.train_seconds if trained else None,
        "steps_to_training_target": last.env_steps if trained else None,
    }
