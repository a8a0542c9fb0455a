"""What a run says of itself: one frozen `Snapshot`, and the fixed public names of its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from asyncrl.actors.statistics import ActorStatistics


@dataclass(frozen=True)
class EvaluationResult:
    """Greedy episodes with one fixed set of weights.

    Attributes:
        return_mean, return_std: of the undiscounted episode returns (population standard deviation).
        length_mean: mean episode length in steps.
        episodes: how many.
        policy_version: whose weights.
        env_steps: environment steps of training when these weights were copied.
        train_seconds: the training clock at that moment.
        updates: gradient steps that made these weights.
    """

    return_mean: float
    return_std: float
    length_mean: float
    episodes: int
    policy_version: int
    env_steps: int
    train_seconds: float
    updates: int = 0


@dataclass(frozen=True)
class Snapshot:
    """One moment of a run: all that terminal, HTTP, notebook and files read.

    Attributes:
        algo, env, seed, state: names; state is one of `"starting"`, `"training"`, `"evaluating"`,
            `"stopping"`, `"stopped"`, `"failed"`.
        wall_seconds, train_seconds, startup_seconds: see `summary.json`; train_seconds excludes evaluation
            pauses.
        total_steps, target_return, training_target, max_seconds: the stopping rules, None where not set;
            training_target is of `return_mean`, target_return of a greedy evaluation.
        env_steps, updates, episodes, policy_version: counters since the start.
        env_steps_per_second, updates_per_second: over the last report interval; the first is the production P.
        received_steps_per_second: the receipt R, environment steps that came into the learner's hands, over
            the last report interval.
        consumed_samples_per_second: the consumption C, samples trained on, over the last report interval.
        consumption_per_production: C / P of that interval, samples per step; 0 where nothing was produced.
        discipline: how rows are consumed: `"replay"`, or `"relaxed"`, `"lockstep"` or `"synchronous"`
            segments.
        learner_wait_fraction, actor_wait_fraction: who waits, over the last report interval.
        return_mean, length_mean: over the last 100 finished training episodes of all actors, None before the
            first.
        exploration_rate: mean over actors, None where the policy has none.
        loss, learning_rate: of the last update, None before the first.
        train_metrics: further scalars of the learner core by name (`train/...`).
        evaluation, best_evaluation: the last and the best greedy evaluation, None before the first.
        staleness_mean, staleness_p95, staleness_max: updates between the weights that acted and the weights that
            were trained, of the samples used since the last report.
        staleness_edges, staleness_counts: histogram since the start: `counts[i]` samples with
            `edges[i] <= staleness < edges[i + 1]`; the last bucket is open.
        staleness_versions_mean, staleness_versions_p95, staleness_versions_max: staleness in policy versions.
        policy_lag_mean, policy_lag_p95, policy_lag_max: updates that the learner had made beyond the weights that
            acted, when a step was received; of the steps received since the last report.
        policy_lag_edges, policy_lag_counts: histogram of it since the start, of steps.
        publish_interval: updates between two publications of weights now.
        publish_seconds: median cost of a publication.
        discarded_fraction: share of inserted steps that became too stale to be used.
        samples_per_insert_target, samples_per_insert_achieved: target is None where the pace is free.
        ring_fill: mean over actors.
        replay_rows, replay_capacity: what may be sampled (of segments: is complete and not taken) / at most,
            in environment steps.
        actors: one record per actor.
        actor_restarts: sum over actors.
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`,
            `"stopped"`, `"interrupted"`, `"failed"` or None while running.
        error: the text of the error that ended the run, or None.
        evaluations: every greedy evaluation so far, in the order of training.
    """

    algo: str
    env: str
    seed: int
    state: str
    wall_seconds: float
    train_seconds: float
    startup_seconds: float
    total_steps: int | None
    target_return: float | None
    training_target: float | None
    max_seconds: float | None
    env_steps: int
    updates: int
    episodes: int
    policy_version: int
    env_steps_per_second: float
    received_steps_per_second: float
    consumed_samples_per_second: float
    consumption_per_production: float
    updates_per_second: float
    learner_wait_fraction: float
    actor_wait_fraction: float
    return_mean: float | None
    length_mean: float | None
    exploration_rate: float | None
    loss: float | None
    learning_rate: float | None
    train_metrics: dict[str, float]
    evaluation: EvaluationResult | None
    best_evaluation: EvaluationResult | None
    staleness_mean: float
    staleness_p95: float
    staleness_max: int
    staleness_edges: tuple[int, ...]
    staleness_counts: tuple[int, ...]
    discarded_fraction: float
    discipline: str
    samples_per_insert_target: float | None
    samples_per_insert_achieved: float
    ring_fill: float
    replay_rows: int
    replay_capacity: int
    actors: tuple[ActorStatistics, ...]
    actor_restarts: int
    staleness_versions_mean: float = 0.0
    staleness_versions_p95: float = 0.0
    staleness_versions_max: int = 0
    policy_lag_mean: float = 0.0
    policy_lag_p95: float = 0.0
    policy_lag_max: int = 0
    policy_lag_edges: tuple[int, ...] = ()
    policy_lag_counts: tuple[int, ...] = ()
    publish_interval: float = 0.0
    publish_seconds: float = 0.0
    stop_reason: str | None = None
    error: str | None = None
    evaluations: tuple[EvaluationResult, ...] = ()


EVALUATION_NAMES: Final = (
    "eval/mean_reward",
    "eval/mean_ep_length",
    "eval/total_timesteps",
    "eval/n_updates",
)
"""Names of an evaluation's numbers; `eval/total_timesteps` and `eval/n_updates` are of the evaluated weights."""

REPORT_NAMES: Final = (
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "rollout/exploration_rate",
    "time/fps",
    "time/total_timesteps",
    "time/time_elapsed",
    "train/loss",
    "train/n_updates",
    "train/learning_rate",
    "async/staleness_mean",
    "async/staleness_p95",
    "async/staleness_max",
    "async/staleness_versions_mean",
    "async/staleness_versions_p95",
    "async/staleness_versions_max",
    "async/policy_lag_mean",
    "async/policy_lag_p95",
    "async/policy_lag_max",
    "async/publish_interval",
    "async/samples_per_insert",
    "async/samples_per_insert_target",
    "async/learner_wait_fraction",
    "async/actor_wait_fraction",
    "async/ring_fill",
    "async/policy_version",
    "async/actor_restarts",
    "async/production_per_second",
    "async/receipt_per_second",
    "async/consumption_per_second",
)
"""Names of a report's fixed numbers. Staleness and policy lag are in updates, `staleness_versions` in versions."""

METRIC_NAMES: Final = (*REPORT_NAMES[:9], *EVALUATION_NAMES, *REPORT_NAMES[9:])
"""Every fixed metric name, in file order; named as in Stable-Baselines3, `async/` aside."""


def flat(snapshot: Snapshot) -> dict[str, float]:
    """A report's numbers by public name: in the order of `REPORT_NAMES`, then the core's further scalars.

    What is not known yet (no episode finished) is left out; NaN and infinity are kept, and it is the writer's business
    how its format says them. `time/fps` is the rate over the last report interval, `time/time_elapsed` the wall clock.
    Evaluations are entries of their own (`flat_evaluation`). Returns a new dict; any thread.
    """
    values: tuple[float | None, ...] = (
        snapshot.return_mean,
        snapshot.length_mean,
        snapshot.exploration_rate,
        snapshot.env_steps_per_second,
        snapshot.env_steps,
        snapshot.wall_seconds,
        snapshot.loss,
        snapshot.updates,
        snapshot.learning_rate,
        snapshot.staleness_mean,
        snapshot.staleness_p95,
        snapshot.staleness_max,
        snapshot.staleness_versions_mean,
        snapshot.staleness_versions_p95,
        snapshot.staleness_versions_max,
        snapshot.policy_lag_mean,
        snapshot.policy_lag_p95,
        snapshot.policy_lag_max,
        snapshot.publish_interval,
        snapshot.samples_per_insert_achieved,
        snapshot.samples_per_insert_target,
        snapshot.learner_wait_fraction,
        snapshot.actor_wait_fraction,
        snapshot.ring_fill,
        snapshot.policy_version,
        snapshot.actor_restarts,
        snapshot.env_steps_per_second,
        snapshot.received_steps_per_second,
        snapshot.consumed_samples_per_second,
    )
    named = {name: value for name, value in zip(REPORT_NAMES, values, strict=True) if value is not None}
    for name, value in snapshot.train_metrics.items():
        named.setdefault(name if "/" in name else f"train/{name}", value)
    return named


def flat_evaluation(evaluation: EvaluationResult) -> dict[str, float]:
    """An evaluation's numbers by public name, in the order of `EVALUATION_NAMES`. Returns a new dict; any thread."""
    values = (evaluation.return_mean, evaluation.length_mean, evaluation.env_steps, evaluation.updates)
    return dict(zip(EVALUATION_NAMES, values, strict=True))
