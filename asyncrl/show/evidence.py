"""Figures of a run for its diagnosis, read from `metrics.jsonl`, `summary.json` and `config.toml`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.show.kept_run import KeptRun

TAIL = 0.25
"""Fraction of a run's reports, taken from the end, over which figures are averaged."""
LAST_OF = {
    "q_mean": "train/q_mean",
    "q_max": "train/q_max",
    "value_low": "train/value_low",
    "value_high": "train/value_high",
    "kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "explained_variance": "train/explained_variance",
    "entropy": "train/entropy",
    "policy_lag": "async/policy_lag_mean",
    "staleness": "async/staleness_mean",
    "staleness_versions": "async/staleness_versions_mean",
    "learner_waits": "async/learner_wait_fraction",
    "actors_wait": "async/actor_wait_fraction",
    "steps_per_second": "time/fps",
    "training_return": "rollout/ep_rew_mean",
}
"""Metric of each field of `Evidence` that is a mean over the last reports."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Figures of a run for its diagnosis; an unknown figure is None.

    Attributes:
        on_policy: whether the algorithm learns from segments.
        options: options of the algorithm.
        actors: number of actor processes.
        first, best, final: greedy returns of the first, the best and the last evaluation.
        best_steps: environment steps at the best evaluation.
        early_best, late_best: best of the evaluations before and within the last third of the steps.
        evaluations: number of evaluations.
        first_entropy: entropy of the policy in the first report that has it.
        discarded: fraction of the steps that became too stale to use.
    """

    algo: str = ""
    on_policy: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    actors: int = 1
    state: str = ""
    stop_reason: str = ""
    error: str = ""
    steps: int = 0
    updates: int = 0
    restarts: int = 0
    first: float | None = None
    best: float | None = None
    final: float | None = None
    best_steps: int | None = None
    early_best: float | None = None
    late_best: float | None = None
    evaluations: int = 0
    discarded: float | None = None
    first_entropy: float | None = None
    q_mean: float | None = None
    q_max: float | None = None
    value_low: float | None = None
    value_high: float | None = None
    kl: float | None = None
    clip_fraction: float | None = None
    explained_variance: float | None = None
    entropy: float | None = None
    policy_lag: float | None = None
    staleness: float | None = None
    staleness_versions: float | None = None
    learner_waits: float | None = None
    actors_wait: float | None = None
    steps_per_second: float | None = None
    training_return: float | None = None

    @property
    def spread(self) -> float:
        """Highest return minus the lower of the first and the last, at least 1."""
        if self.best is None or self.first is None or self.final is None:
            return 1.0
        return max(1.0, self.best - min(self.first, self.final))

    @property
    def lost(self) -> float | None:
        """Fraction of `spread` by which the last evaluation is below the best."""
        if self.best is None or self.final is None:
            return None
        return (self.best - self.final) / self.spread


def collect(run: KeptRun) -> Evidence:
    """Collect the evidence of a run; figures that its files lack are None."""
    reports = [entry for entry in run.lines() if "time/total_timesteps" in entry]
    algorithm = run.options.get(run.algo, {})
    summary = run.summary
    updates = max((int(entry.get("train/n_updates") or 0) for entry in reports), default=0)
    return Evidence(
        algo=run.algo,
        on_policy="segment_length" in algorithm,
        options=algorithm,
        actors=_actors(run, reports),
        state=run.state,
        stop_reason=str(summary.get("stop_reason") or ""),
        error=str(summary.get("error") or ""),
        steps=run.env_steps,
        updates=int(summary.get("updates", updates)),
        restarts=int(summary.get("actor_restarts") or _last(reports, "async/actor_restarts") or 0),
        discarded=summary.get("staleness", {}).get("discarded_fraction"),
        first_entropy=next(iter(_values(reports, "train/entropy")), None),
        **_returns(run),
        **_means(reports),
    )


def _means(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {field: _tail_mean(reports, name) for field, name in LAST_OF.items()}


def _actors(run: KeptRun, reports: Sequence[dict[str, Any]]) -> int:
    given = run.options.get("trainer", {}).get("num_actors")
    return int(given or max(1, int(run.meta.get("machine", {}).get("cores") or 2) - 1))


def _returns(run: KeptRun) -> dict[str, Any]:
    found = run.evaluations
    if not found:
        return {"final": run.final}
    best_steps, best = max(found, key=lambda pair: pair[1])
    edge = found[-1][0] * 2 / 3
    early = [value for steps, value in found if steps <= edge]
    late = [value for steps, value in found if steps > edge]
    return {
        "first": found[0][1],
        "best": best,
        "best_steps": best_steps,
        "final": run.final,
        "evaluations": len(found),
        "early_best": max(early, default=None),
        "late_best": max(late, default=None),
    }


def _values(reports: Sequence[dict[str, Any]], name: str) -> list[float]:
    found = (entry.get(name) for entry in reports)
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _tail_mean(reports: Sequence[dict[str, Any]], name: str) -> float | None:
    values = _values(reports, name)
    tail = values[-max(1, int(len(values) * TAIL)) :]
    return sum(tail) / len(tail) if tail else None


def _last(reports: Sequence[dict[str, Any]], name: str) -> float | None:
    return next(iter(_values(reports, name)[::-1]), None)
