"""Figures of a run for its diagnosis, read from `metrics.jsonl`, `summary.json` and `config.toml`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import printable
from asyncrl.show.kept_run import STEPS, KeptRun, integer, number, table

TAIL = 0.25
"""Fraction of a run's reports, taken from the end, over which figures are averaged."""
HEAD = 0.05
"""Fraction of a run's steps, its beginning, over which the first return of training is averaged."""
LEAST_RISE = 0.1
"""Difference of returns that counts as none, whatever else is known; rewards of 0 or 1 make returns up to 1."""


def _mean(metric: str) -> Any:
    """Field that is the mean of a metric over the last reports."""
    return dataclasses.field(default=None, metadata={"metric": metric})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Figures of a run for its diagnosis; an unknown figure is None.

    Attributes:
        on_policy: whether the algorithm learns from segments.
        options: options of the algorithm.
        actors: number of actor processes.
        environments: number of environments of all actors.
        cores: number of the machine's cores, infinite if unknown.
        first, best, final: greedy returns at the beginning, at best and at the end: means over `window` consecutive
            evaluations, so that all are over equally many episodes, and a single lucky evaluation is not the best. The
            final evaluation of the run, which has more episodes, is `final` only if there are no others.
        best_steps: environment steps in the middle of the best ones.
        target_return: the run's option, which another stopping rule may have come before.
        reward_threshold: return from which the environment counts as solved.
        early_best, late_best: best single evaluation before and within the last third of the steps.
        training_first, training_best: mean return of training in the first twentieth of the steps, and its highest.
        evaluations: number of evaluations.
        window: number of evaluations in a mean, a third of all, from 1 to 3.
        greedy: whether evaluations differ from training in that their actions are not drawn, and in nothing else.
        luck: amount by which the best of so many windows may exceed the others by chance; 0 if unknown.
        first_entropy: entropy of the policy in the first report that has it.
        discarded: fraction of the steps that became too stale to use.
    """

    on_policy: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    actors: int = 1
    environments: int = 1
    cores: float = math.inf
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
    target_return: float | None = None
    reward_threshold: float | None = None
    early_best: float | None = None
    late_best: float | None = None
    training_first: float | None = None
    training_best: float | None = None
    evaluations: int = 0
    window: int = 1
    greedy: bool = False
    luck: float = 0.0
    discarded: float | None = None
    first_entropy: float | None = None
    training: float | None = _mean("rollout/ep_rew_mean")
    q_mean: float | None = _mean("train/q_mean")
    value_low: float | None = _mean("train/value_low")
    value_high: float | None = _mean("train/value_high")
    kl: float | None = _mean("train/approx_kl")
    clip_fraction: float | None = _mean("train/clip_fraction")
    explained_variance: float | None = _mean("train/explained_variance")
    entropy: float | None = _mean("train/entropy")
    policy_lag: float | None = _mean("async/policy_lag_mean")
    staleness: float | None = _mean("async/staleness_mean")
    staleness_versions: float | None = _mean("async/staleness_versions_mean")
    learner_waits: float | None = _mean("async/learner_wait_fraction")
    actors_wait: float | None = _mean("async/actor_wait_fraction")
    steps_per_second: float | None = _mean("time/fps")

    @property
    def first_update_steps(self) -> int:
        """Environment steps before the first update, 0 if unknown: one segment of each environment, or the warm-up."""
        if self.on_policy:
            return self.environments * (integer(self.options.get("segment_length")) or 0)
        return integer(self.options.get("learning_starts")) or 0

    @property
    def spread(self) -> float:
        """Highest return minus the lower of the first and the last, at least `LEAST_RISE`."""
        if self.best is None or self.first is None or self.final is None:
            return LEAST_RISE
        return max(LEAST_RISE, self.best - min(self.first, self.final))

    @property
    def lost(self) -> float | None:
        """Fraction of `spread` by which the end is below the best; 0 if that may be chance."""
        if self.best is None or self.final is None:
            return None
        lost = self.best - self.final
        return lost / self.spread if lost > self.luck else 0.0


def collect(run: KeptRun) -> Evidence:
    """Collect the evidence of a run; figures that its files lack are None."""
    reports = [entry for entry in run.lines() if STEPS in entry]
    algorithm = run.options.get(run.algo, {})
    summary = run.summary
    restarts = _values(reports, "async/actor_restarts")
    cores = integer(table(run.meta, "machine").get("cores"))
    updates = integer(summary.get("updates"))
    if updates is None:
        updates = max((integer(entry.get("train/n_updates")) or 0 for entry in reports), default=0)
    trainer = table(run.options, "trainer")
    actors = integer(trainer.get("num_actors")) or max(1, (cores or 2) - 1)
    fields = {field.name: field.metadata.get("metric") for field in dataclasses.fields(Evidence)}
    means: dict[str, Any] = {name: _tail_mean(reports, metric) for name, metric in fields.items() if metric}
    return Evidence(
        on_policy="queue_batches" in algorithm,
        options=algorithm,
        actors=actors,
        environments=actors * (integer(trainer.get("envs_per_actor")) or 1),
        cores=cores or math.inf,
        state=run.state,
        stop_reason=str(summary.get("stop_reason") or ""),
        target_return=number(trainer.get("target_return")),
        reward_threshold=number(summary.get("reward_threshold")),
        greedy=_greedy(trainer),
        error=printable(str(summary.get("error") or "")),
        steps=run.env_steps,
        updates=updates,
        restarts=integer(summary.get("actor_restarts")) or int(next(reversed(restarts), 0)),
        discarded=number(table(summary, "staleness").get("discarded_fraction")),
        first_entropy=next(iter(_values(reports, "train/entropy")), None),
        **_training_returns(reports),
        **_returns(run),
        **means,
    )


def _returns(run: KeptRun) -> dict[str, Any]:
    found = run.evaluations
    if not found:
        return {"final": run.final}
    window = max(1, min(3, len(found) // 3))
    parts = [found[i : i + window] for i in range(len(found) - window + 1)]
    means = [sum(value for _, value in part) / window for part in parts]
    edge = found[-1][0] * 2 / 3
    best = max(range(len(means)), key=means.__getitem__)
    return {
        "first": means[0],
        "best": means[best],
        "best_steps": parts[best][window // 2][0],
        "final": means[-1],
        "evaluations": len(found),
        "window": window,
        "luck": _luck(run, window, len(found)),
        "early_best": max((value for steps, value in found if steps <= edge), default=None),
        "late_best": max((value for steps, value in found if steps > edge), default=None),
    }


def _greedy(trainer: Mapping[str, Any]) -> bool:
    elsewhere = any(trainer.get(name) for name in ("eval_env", "eval_env_kwargs", "eval_max_episode_steps"))
    alone = trainer.get("self_play", "none") == "none"
    return bool(trainer.get("eval_deterministic", True)) and alone and not elsewhere


def _training_returns(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    name = "rollout/ep_rew_mean"
    values = _values(reports, name)
    if not values:
        return {}
    early = [entry for entry in reports if entry[STEPS] <= HEAD * reports[-1][STEPS]]
    head = _values(early, name) or values[:1]
    return {"training_first": sum(head) / len(head), "training_best": max(values)}


def _luck(run: KeptRun, window: int, evaluations: int) -> float:
    """Three standard errors of a window's mean, and the expected maximum of that many draws."""
    deviation = number(table(run.summary, "eval").get("return_std"))
    episodes = integer(run.options.get("trainer", {}).get("eval_episodes"))
    if deviation is None or not math.isfinite(deviation) or not episodes:
        return 0.0
    error = deviation / math.sqrt(episodes * window)
    return error * (3 + math.sqrt(2 * math.log(max(1, evaluations // window))))


def _values(reports: Sequence[dict[str, Any]], name: str) -> list[float]:
    found = (number(entry.get(name)) for entry in reports)
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def _tail_mean(reports: Sequence[dict[str, Any]], name: str) -> float | None:
    values = _values(reports, name)
    tail = values[-max(1, int(len(values) * TAIL)) :]
    return sum(tail) / len(tail) if tail else None
