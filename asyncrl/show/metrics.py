"""Metrics of a run: the snapshot that holds them, and the table of their names, kinds, units and meanings.

The files (`writers.py`), `/stats`, `/history` and Prometheus (`server/`), the terminal and the notebook card
(`readout.py`) all read this table. Public names follow Stable-Baselines3, except `async/`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.evaluation_result import EvaluationResult as EvaluationResult
from asyncrl.show.group_statistics import GroupStatistics


@dataclass(frozen=True)
class Snapshot:
    """State of a run at one moment: the only input of terminal, HTTP, notebook and files.

    `RUN_METRICS` describes the numbers. Rates, staleness and policy lag are over the last report interval. An unknown
    number is None.

    Attributes:
        algo, env, seed, network: of the run; `network` is the chosen convolutional network, "" for none.
        state: `"starting"`, `"training"`, `"evaluating"`, `"stopping"`, `"stopped"` or `"failed"`.
        total_steps, target_return, target_training_return, max_seconds: the stopping rules, None if not set;
            target_training_return applies to `return_mean`, target_return to a greedy evaluation.
        startup_seconds: seconds before the first environment step.
        train_metrics: further scalars of the last update by name (`train/...`), and the mean return of each of several
            agents (`rollout/ep_rew_mean/AGENT`).
        evaluation, best_evaluation: the last and the best greedy evaluation, None before the first.
        evaluations: the greedy evaluations so far, in the order of training; of more than 10,000 every second one.
        staleness_edges, staleness_counts: histogram since the start: `counts[i]` samples with
            `edges[i] <= staleness < edges[i + 1]`; the last bucket is open.
        policy_lag_edges, policy_lag_counts: the same for the policy lag of steps.
        staleness_sum, policy_lag_sum: sums of all values in these histograms.
        discipline: `"replay"`, or the discipline in which segments are consumed.
        actors, groups: one record each; with several groups, steps, updates and their rates are over all of them.
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`,
            `"stopped"`, `"interrupted"`, `"failed"` or None while running.
        error: text of the error that ended the run, or None.
        final_evaluation: finished episodes and number of episodes of the final evaluation; None before it.
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
    target_training_return: float | None
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
    replay_steps: int
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
    final_evaluation: tuple[int, int] | None = None
    staleness_sum: float = 0.0
    policy_lag_sum: float = 0.0
    network: str = ""
    inference_batch_size: float | None = None
    inference_wait_fraction: float | None = None
    groups: tuple[GroupStatistics, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Attributes:
        field: attribute of `Snapshot`, `EvaluationResult` or `ActorStatistics` that holds it.
        name: name in files, TensorBoard and `/stats`; None if it is in none of them.
        unit: its unit, in plural; "" for a number without a unit.
        help: its meaning, as a noun phrase.
        kind: Prometheus kind; the Prometheus name of a counter ends in `_total`.
        prometheus: name in Prometheus text after `asyncrl_`; "" uses `field`, None leaves the metric out.
        charted: whether `/history` keeps it for the page's charts.
        label, form: label and format on the terminal and the notebook card (see `readout.py`), "" if not shown.
    """

    field: str
    name: str | None
    unit: str
    help: str
    kind: Literal["counter", "gauge"] = "gauge"
    prometheus: str | None = ""
    charted: bool = False
    label: str = ""
    form: str = ""

    @property
    def prometheus_name(self) -> str | None:
        """Name in Prometheus text, without the prefix `asyncrl_`."""
        if self.prometheus is None:
            return None
        return (self.prometheus or self.field) + ("_total" if self.kind == "counter" else "")


# Two lines for each metric: names and unit, then the rest.
# fmt: off
RUN_METRICS: Final = (
    Metric("return_mean", "rollout/ep_rew_mean", "",
           "Mean return of the last 100 training episodes", charted=True, label="return/100", form="4"),
    Metric("length_mean", "rollout/ep_len_mean", "steps",
           "Mean length of the last 100 training episodes", prometheus="episode_length_mean"),
    Metric("exploration_rate", "rollout/exploration_rate", "",
           "Mean epsilon over actors; none for algorithms without epsilon", charted=True,
           label="exploration", form="2"),
    Metric("env_steps_per_second", "time/fps", "environment steps per second",
           "Production: steps that actors took", charted=True, label="env steps/s", form=",.0f"),
    Metric("env_steps", "time/total_timesteps", "environment steps",
           "Environment steps over all actors", "counter", charted=True),
    Metric("wall_seconds", "time/time_elapsed", "seconds", "Time since the run began", charted=True),
    Metric("train_seconds", None, "seconds", "Training time, evaluation pauses excluded"),
    Metric("episodes", None, "episodes", "Finished training episodes", "counter"),
    Metric("loss", "train/loss", "", "Loss of the last update", charted=True, label="loss", form="3"),
    Metric("updates", "train/n_updates", "updates", "Gradient steps", "counter"),
    Metric("learning_rate", "train/learning_rate", "", "Learning rate of the last update"),
    Metric("staleness_mean", "async/staleness_mean", "updates",
           "Mean staleness of the samples trained on, last interval", charted=True),
    Metric("staleness_p95", "async/staleness_p95", "updates",
           "95th percentile of staleness, last interval", charted=True),
    Metric("staleness_max", "async/staleness_max", "updates", "Largest staleness, last interval"),
    Metric("staleness_versions_mean", "async/staleness_versions_mean", "policy versions",
           "Mean staleness of the samples trained on, last interval"),
    Metric("staleness_versions_p95", "async/staleness_versions_p95", "policy versions",
           "95th percentile of staleness, last interval"),
    Metric("staleness_versions_max", "async/staleness_versions_max", "policy versions",
           "Largest staleness, last interval"),
    Metric("policy_lag_mean", "async/policy_lag_mean", "updates",
           "Mean policy lag of the steps received, last interval", charted=True),
    Metric("policy_lag_p95", "async/policy_lag_p95", "updates",
           "95th percentile of policy lag, last interval", charted=True),
    Metric("policy_lag_max", "async/policy_lag_max", "updates", "Largest policy lag, last interval"),
    Metric("publish_interval", "async/publish_interval", "updates", "Updates between two publications of weights"),
    Metric("publish_seconds", None, "seconds", "Median cost of a publication of weights"),
    Metric("samples_per_insert_achieved", "async/samples_per_insert", "samples per step",
           "Samples per inserted step, achieved", prometheus="samples_per_insert", charted=True),
    Metric("samples_per_insert_target", "async/samples_per_insert_target", "samples per step",
           "Samples per inserted step, target; none where the pace is free"),
    Metric("learner_wait_fraction", "async/learner_wait_fraction", "",
           "Fraction of time the learner waited", charted=True, label="learner waits", form=".0%"),
    Metric("actor_wait_fraction", "async/actor_wait_fraction", "",
           "Fraction of time the actors waited for a grant", charted=True, label="actors wait", form=".0%"),
    Metric("inference_batch_size", "async/inference_batch_size", "rows",
           "Mean rows of a forward pass of the inference server"),
    Metric("inference_wait_fraction", "async/inference_wait_fraction", "",
           "Fraction of time the actors waited for the inference server"),
    Metric("ring_fill", "async/ring_fill", "",
           "Mean fill of the experience rings, 0 to 1", charted=True, label="ring fill", form=".0%"),
    Metric("policy_version", "async/policy_version", "policy versions", "Publications of weights"),
    Metric("actor_restarts", "async/actor_restarts", "restarts", "Actor processes started again", "counter"),
    Metric("env_steps_per_second", "async/production_per_second", "environment steps per second",
           "Production: the same as time/fps", prometheus=None),
    Metric("received_steps_per_second", "async/receipt_per_second", "environment steps per second",
           "Receipt: steps that reached the learner", charted=True, label="received/s", form=",.0f"),
    Metric("consumed_samples_per_second", "async/consumption_per_second", "samples per second",
           "Consumption: samples trained on", charted=True, label="samples/s", form=",.0f"),
    Metric("consumption_per_production", None, "samples per step",
           "Consumption over production", charted=True, label="samples/step now", form=".2f"),
    Metric("updates_per_second", None, "updates per second",
           "Rate of gradient steps", charted=True, label="updates/s", form=",.0f"),
    Metric("discarded_fraction", None, "",
           "Fraction of the inserted steps that became too stale to use", label="discarded", form=".1%"),
    Metric("replay_steps", None, "environment steps", "Steps that may be sampled, or are complete and not taken"),
    Metric("replay_capacity", None, "environment steps", "Steps that all rings can hold"),
)
"""Numbers of a `Snapshot`, in file order."""

EVALUATION_METRICS: Final = (
    Metric("return_mean", "eval/mean_reward", "",
           "Mean return of the last greedy evaluation", prometheus="evaluation_return_mean"),
    Metric("return_std", None, "",
           "Standard deviation of the returns of the last greedy evaluation", prometheus="evaluation_return_std"),
    Metric("length_mean", "eval/mean_ep_length", "steps",
           "Mean episode length of the last greedy evaluation", prometheus="evaluation_episode_length_mean"),
    Metric("env_steps", "eval/total_timesteps", "environment steps",
           "Environment steps behind the evaluated weights", prometheus="evaluation_env_steps"),
    Metric("updates", "eval/n_updates", "updates",
           "Gradient steps behind the evaluated weights", prometheus="evaluation_updates"),
)
"""Numbers of an `EvaluationResult`, in file order."""

ACTOR_METRICS: Final = (
    Metric("env_steps", None, "environment steps",
           "Environment steps of this actor", "counter", prometheus="actor_env_steps"),
    Metric("env_steps_per_second", None, "environment steps per second",
           "Steps of this actor", prometheus="actor_env_steps_per_second"),
    Metric("heartbeat_age_seconds", None, "seconds",
           "Time since the actor's last heartbeat", prometheus="actor_heartbeat_age_seconds"),
    Metric("wait_fraction", None, "",
           "Fraction of time this actor waited for a grant", prometheus="actor_wait_fraction_by_actor"),
    Metric("ring_fill", None, "", "Fill of this actor's ring, 0 to 1", prometheus="actor_ring_fill"),
    Metric("restarts", None, "restarts",
           "Times this actor was started again", "counter", prometheus="actor_restarts_by_actor"),
    Metric("private_bytes", None, "bytes", "Private memory of this actor", prometheus="actor_private_bytes"),
)
"""Numbers of an `ActorStatistics`, with the actor as label; Prometheus only."""
# fmt: on

HISTOGRAMS: Final = (
    ("staleness", "Staleness of every sample used. Unit: updates."),
    ("policy_lag", "Policy lag of every environment step received. Unit: updates."),
)
"""Histograms of a `Snapshot` since the start: Prometheus name, which is the prefix of the fields, and help."""


def _names(metrics: Iterable[Metric]) -> tuple[str, ...]:
    sections = ("rollout", "time", "train", "eval", "async")
    names = [metric.name for metric in metrics if metric.name is not None]
    return tuple(sorted(names, key=lambda name: sections.index(name.partition("/")[0])))


METRIC_NAMES: Final = _names((*RUN_METRICS, *EVALUATION_METRICS))
"""Every fixed metric name, in file order."""


def flat(snapshot: Snapshot | EvaluationResult) -> dict[str, float]:
    """Numbers of a report or an evaluation by public name, in file order; then a report's further scalars.

    Unknown numbers (no episode has finished yet) are left out; NaN and infinity stay. Returns a new dict; any thread.
    """
    if isinstance(snapshot, EvaluationResult):
        each = {f"eval/mean_reward/{name}": value for name, value in snapshot.agent_returns.items()}
        return _by_name(EVALUATION_METRICS, snapshot) | each
    named = _by_name(RUN_METRICS, snapshot)
    for name, value in snapshot.train_metrics.items():
        named.setdefault(name if "/" in name else f"train/{name}", value)
    return named


def _by_name(metrics: Iterable[Metric], record: object) -> dict[str, float]:
    values = {metric.name: getattr(record, metric.field) for metric in metrics if metric.name is not None}
    return {name: value for name, value in values.items() if value is not None}
