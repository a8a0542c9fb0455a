"""Metrics of a run: the table of their public names, units and meanings, and the snapshot that holds their values.

The part that measures a number returns it by its public name from `statistics()`; its row says the rest. The files
(`writers.py`), `/stats`, `/history` and Prometheus (`server/`), the terminal and the notebook card (`readout.py`) read
both. Public names follow Stable-Baselines3, except `async/`.

A metric is added by its name in the part that measures it and by its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.interfaces import Bins, Distribution, Metrics, ValuePairs
from asyncrl.show.evaluation_result import EvaluationFilm
from asyncrl.show.evaluation_result import EvaluationResult as EvaluationResult
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.kept_run import SECTIONS


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Attributes:
        name: public name. Names with a section (`async/ring_fill`) are in the metric files and TensorBoard, others
            only in `/stats` and Prometheus.
        unit: its unit, in plural; "" for a number without a unit.
        help: its meaning, as a noun phrase.
        kind: Prometheus kind; the Prometheus name of a counter ends in `_total`, and a rate is a gauge there. Counters
            and rates of a run of several groups are sums over the groups, gauges are those of group 0.
        of, per: of a number that `RateMeter` computes: the number whose growth it is, per second or per growth of the
            number `per`. Without a unit it is a fraction of the time.
        optional: whether it is unknown, None, until it is measured; others are 0.
        short: attribute of a snapshot and key in `/stats` and `/history`; "" is `name` without its section, and a
            number with None has neither, and no Prometheus name.
        prometheus: name in Prometheus text after `asyncrl_`; "" is `short`.
        charted: whether `/history` keeps it for the page's charts.
        label, form: label and format on the terminal and the notebook card (see `readout.py`), "" if not shown.
    """

    name: str
    unit: str
    help: str
    kind: Literal["counter", "rate", "gauge"] = "gauge"
    of: str = ""
    per: str = ""
    optional: bool = False
    short: str | None = ""
    prometheus: str = ""
    charted: bool = False
    label: str = ""
    form: str = ""

    @property
    def key(self) -> str | None:
        """Attribute of a snapshot and key in `/stats` and `/history`, None if it has neither."""
        return self.name.rpartition("/")[2] if self.short == "" else self.short

    @property
    def prometheus_name(self) -> str | None:
        """Name in Prometheus text without the prefix `asyncrl_`, None if it is not there."""
        if self.key is None:
            return None
        return (self.prometheus or self.key) + ("_total" if self.kind == "counter" else "")


# Two lines for each metric: name, unit and meaning, then the rest.
# fmt: off
RUN_METRICS: Final = (
    Metric("rollout/ep_rew_mean", "", "Mean return of the last 100 training episodes",
           short="return_mean", optional=True, charted=True, label="return/100", form="4"),
    Metric("rollout/ep_len_mean", "steps", "Mean length of the last 100 training episodes",
           short="length_mean", optional=True, prometheus="episode_length_mean"),
    Metric("rollout/success_rate", "", "Fraction of the last 100 training episodes that ended in success",
           optional=True, charted=True),
    Metric("rollout/elo", "", "Elo rating of the policy in self-play; 1200 at first", optional=True, charted=True),
    Metric("rollout/win_rate", "", "Win rate against past versions over the last hundred games or so, draws as half",
           optional=True, charted=True),
    Metric("rollout/exploration_rate", "", "Mean epsilon over actors; none for algorithms without epsilon",
           optional=True, charted=True, label="exploration", form="2"),
    Metric("time/fps", "environment steps per second", "Production: steps that actors took", "rate",
           of="time/total_timesteps", short="env_steps_per_second", charted=True, label="env steps/s", form=",.0f"),
    Metric("time/total_timesteps", "environment steps", "Environment steps over all actors", "counter",
           short="env_steps", charted=True),
    Metric("time/time_elapsed", "seconds", "Time since the run began", short="wall_seconds", charted=True),
    Metric("time/step_env_seconds", "seconds", "Environment's share of an environment step, in every 64th row",
           optional=True, charted=True),
    Metric("time/step_inference_seconds", "seconds", "Time of an environment step in which its action is chosen",
           optional=True, charted=True),
    Metric("time/step_write_seconds", "seconds", "Time of an environment step in which it is checked and written",
           optional=True, charted=True),
    Metric("time/step_wait_seconds", "seconds", "Time of an environment step in which its actor waits for a grant",
           optional=True, charted=True),
    Metric("time/update_sample_seconds", "seconds", "Time of an update in which its batch is made",
           optional=True, charted=True),
    Metric("time/update_learn_seconds", "seconds", "Time of an update in the networks and the optimiser",
           optional=True, charted=True),
    Metric("time/update_priorities_seconds", "seconds", "Time of an update in which priorities are written",
           optional=True, charted=True),
    Metric("train_seconds", "seconds", "Training time, evaluation pauses excluded"),
    Metric("startup_seconds", "seconds", "Time before the first environment step"),
    Metric("episodes", "episodes", "Finished training episodes", "counter"),
    Metric("train/loss", "", "Loss of the last update; beside train/actor_loss that of the critics",
           optional=True, charted=True, label="loss", form="3"),
    Metric("train/n_updates", "updates", "Gradient steps", "counter", short="updates"),
    Metric("train/learning_rate", "", "Learning rate of the last update", optional=True),
    Metric("async/staleness_mean", "updates", "Mean staleness of the samples trained on, last interval",
           charted=True),
    Metric("async/staleness_p95", "updates", "95th percentile of staleness, last interval", charted=True),
    Metric("async/staleness_max", "updates", "Largest staleness, last interval"),
    Metric("async/staleness_versions_mean", "policy versions",
           "Mean staleness of the samples trained on, last interval"),
    Metric("async/staleness_versions_p95", "policy versions", "95th percentile of staleness, last interval"),
    Metric("async/staleness_versions_max", "policy versions", "Largest staleness, last interval"),
    Metric("async/policy_lag_mean", "updates", "Mean policy lag of the steps received, last interval",
           charted=True),
    Metric("async/policy_lag_p95", "updates", "95th percentile of policy lag, last interval", charted=True),
    Metric("async/policy_lag_max", "updates", "Largest policy lag, last interval"),
    Metric("async/publish_interval", "updates", "Updates between two publications of weights"),
    Metric("publish_seconds", "seconds", "Median cost of a publication of weights"),
    Metric("async/samples_per_insert", "samples per step", "Samples per inserted step, achieved",
           short="samples_per_insert_achieved", prometheus="samples_per_insert", charted=True),
    Metric("async/samples_per_insert_target", "samples per step",
           "Samples per inserted step, target; none where the pace is free", optional=True),
    Metric("async/learner_wait_fraction", "", "Fraction of time the learner waited",
           of="learner_wait_seconds", charted=True, label="learner waits", form=".0%"),
    Metric("learner_wait_seconds", "seconds", "Time the learner waited"),
    Metric("async/actor_wait_fraction", "", "Fraction of time the actors waited for a grant",
           charted=True, label="actors wait", form=".0%"),
    Metric("async/inference_batch_size", "rows", "Mean rows of a forward pass of the inference server",
           of="inference_rows", per="inference_passes", optional=True),
    Metric("inference_passes", "passes", "Forward passes of the inference server", "counter", optional=True),
    Metric("inference_rows", "rows", "Rows in the passes of the inference server", "counter", optional=True),
    Metric("async/inference_wait_fraction", "", "Fraction of time the actors waited for the inference server",
           of="inference_wait_seconds", optional=True),
    Metric("inference_wait_seconds", "seconds", "Mean time the actors waited for the inference server",
           optional=True),
    Metric("async/ring_fill", "", "Mean fill of the experience rings, 0 to 1",
           charted=True, label="ring fill", form=".0%"),
    Metric("async/policy_version", "policy versions", "Publications of weights"),
    Metric("async/actor_restarts", "restarts", "Actor processes started again", "counter"),
    Metric("async/production_per_second", "environment steps per second", "Production: the same as time/fps",
           "rate", of="time/total_timesteps", short=None),
    Metric("async/receipt_per_second", "environment steps per second", "Receipt: steps that reached the learner",
           "rate", of="received_steps", short="received_steps_per_second", charted=True, label="received/s",
           form=",.0f"),
    Metric("received_steps", "environment steps", "Steps that reached the learner", "counter"),
    Metric("async/consumption_per_second", "samples per second", "Consumption: samples trained on", "rate",
           of="consumed_samples", short="consumed_samples_per_second", charted=True, label="samples/s", form=",.0f"),
    Metric("consumed_samples", "samples", "Samples trained on, repetitions included", "counter"),
    Metric("consumption_per_production", "samples per step", "Consumption over production, samples of all agents",
           of="consumed_samples", per="time/total_timesteps", charted=True, label="samples/step now", form=".2f"),
    Metric("updates_per_second", "updates per second", "Rate of gradient steps", "rate",
           of="train/n_updates", charted=True, label="updates/s", form=",.0f"),
    Metric("discarded_steps", "environment steps", "Steps that became too stale to use", "counter"),
    Metric("discarded_fraction", "", "Fraction of the inserted steps that became too stale to use",
           label="discarded", form=".1%"),
    Metric("system/learner_cores", "cores", "Processor time per second of the learner's process", optional=True,
           charted=True),
    Metric("system/actor_cores", "cores", "Processor time per second of all actors", optional=True, charted=True),
    Metric("system/learner_bytes", "bytes", "Private memory of the learner's process", optional=True, charted=True),
    Metric("system/actor_bytes", "bytes", "Private memory of all actors", optional=True, charted=True),
    Metric("system/gpu_bytes", "bytes", "Memory of the GPU that the learner's process holds", optional=True,
           charted=True),
    Metric("system/gpu_utilization", "", "Fraction of the time in which the GPU computes", optional=True,
           charted=True),
    Metric("replay_steps", "environment steps",
           "Steps that may be sampled (of several agents their samples, divided by the agents), or are not taken yet"),
    Metric("replay_capacity", "environment steps", "Steps that all rings can hold"),
)
"""Numbers of a `Snapshot`, in file order."""

EVALUATION_METRICS: Final = (
    Metric("eval/mean_reward", "", "Mean return of the last evaluation",
           short="return_mean", prometheus="evaluation_return_mean"),
    Metric("return_std", "", "Standard deviation of the returns of the last evaluation",
           prometheus="evaluation_return_std"),
    Metric("eval/mean_ep_length", "steps", "Mean episode length of the last evaluation",
           short="length_mean", prometheus="evaluation_episode_length_mean"),
    Metric("eval/success_rate", "", "Fraction of the last evaluation's episodes that ended in success",
           short="success_rate", optional=True, prometheus="evaluation_success_rate"),
    Metric("eval/total_timesteps", "environment steps", "Environment steps behind the evaluated weights",
           short="env_steps", prometheus="evaluation_env_steps"),
    Metric("eval/n_updates", "updates", "Gradient steps behind the evaluated weights",
           short="updates", prometheus="evaluation_updates"),
)
"""Numbers of an `EvaluationResult`, whose attributes have their short names, in file order."""

ACTOR_METRICS: Final = (
    Metric("env_steps", "environment steps", "Environment steps of this actor", "counter",
           prometheus="actor_env_steps"),
    Metric("env_steps_per_second", "environment steps per second", "Steps of this actor", "rate",
           prometheus="actor_env_steps_per_second"),
    Metric("heartbeat_age_seconds", "seconds", "Time since the actor's last heartbeat",
           prometheus="actor_heartbeat_age_seconds"),
    Metric("wait_fraction", "", "Fraction of time this actor waited for a grant",
           prometheus="actor_wait_fraction_by_actor"),
    Metric("ring_fill", "", "Fill of this actor's ring, 0 to 1", prometheus="actor_ring_fill"),
    Metric("restarts", "restarts", "Times this actor was started again", "counter",
           prometheus="actor_restarts_by_actor"),
    Metric("private_bytes", "bytes", "Private memory of this actor", prometheus="actor_private_bytes"),
)
"""Numbers of an `ActorStatistics`, whose attributes have their names, with the actor as label; Prometheus only."""

HISTOGRAMS: Final = (
    Metric("async/staleness", "updates", "Staleness of every sample used"),
    Metric("async/policy_lag", "updates", "Policy lag of every environment step received"),
)
"""Distributions of a `Snapshot` since the start that `/stats` and Prometheus have too."""
# fmt: on

BY_KEY: Final = {metric.key: metric for metric in RUN_METRICS if metric.key is not None}
UNMEASURED: Final[Metrics] = {metric.name: None if metric.optional else 0 for metric in RUN_METRICS}
"""Every number before it is measured, in file order."""
METRIC_NAMES: Final = tuple(
    metric.name
    for section in SECTIONS
    for metric in (*RUN_METRICS, *EVALUATION_METRICS)
    if metric.name.startswith(f"{section}/")
)
"""Every name of the table in the metric files, in the order of the columns of `progress.csv`."""


@dataclass(frozen=True)
class OpponentRating:
    """A past version of the policy as an opponent.

    Attributes:
        updates: updates of the learner when the version was published, by which it is named.
        elo: its rating; see `run/episode_window.py`.
        games: training episodes against it.
        win_rate: the policy's win rate against it, draws counted half; recent games count more.
    """

    updates: int
    elo: float
    games: int
    win_rate: float


@dataclass(frozen=True)
class Snapshot:
    """State of a run at one moment: the only input of terminal, HTTP, notebook and files.

    A number is read by its public name, `snapshot.metrics["async/policy_lag_mean"]`, or as attribute by its short name,
    `snapshot.policy_lag_mean`. A histogram's parts are attributes too: `policy_lag_edges`, `_counts` and `_sum`.

    Attributes:
        algo, env, seed, network, goals: of the run; `network` is the chosen convolutional network and `goals` how goals
            are relabelled, each "" for none.
        state: `"starting"`, `"training"`, `"evaluating"`, `"stopping"`, `"stopped"` or `"failed"`.
        total_steps, target_return, target_training_return, max_seconds: the stopping rules, None if not set;
            target_training_return applies to `return_mean`, target_return to an evaluation.
        metrics: the numbers of `RUN_METRICS` by public name, None if unknown, and further scalars of the last update.
            Rates, staleness and policy lag are over the last report interval.
        distributions: distributions since the start by public name: `async/staleness`, `async/staleness_versions`,
            `async/policy_lag`.
        bins: histograms of now by public name: `rollout/ep_rew` and `rollout/ep_len` of the last 100 training episodes,
            `rollout/action`, or one for each component of an action, of the newest steps in the rings.
        value_pairs: predicted values and realised returns of some steps of the last update; None if unknown.
        evaluation, best_evaluation: the last and the best evaluation, None before the first.
        evaluations: the evaluations so far, in the order of training; of more than 10,000 every second one.
        film: the newest film of an evaluation, None without one.
        discipline: `"replay"`, or the discipline in which segments are consumed; "" before there is a learner.
        opponents: ratings of the past versions in self-play, newest first.
        actors, groups: one record each; with several groups, counters and rates are over all of them.
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`,
            `"stopped"`, `"interrupted"`, `"failed"` or None while running.
        error: text of the error that ended the run, or None.
        final_evaluation: finished episodes and number of episodes of the final evaluation; None before it.
        logged: the newest value of every name that was logged with `trainer.log`.
        logged_now: those of them that were logged since the last report, which are in the row of this one.
    """

    algo: str
    env: str
    seed: int
    state: str
    total_steps: int | None
    target_return: float | None
    target_training_return: float | None
    max_seconds: float | None
    metrics: Metrics
    distributions: dict[str, Distribution] = field(default_factory=dict)
    bins: dict[str, Bins] = field(default_factory=dict)
    value_pairs: ValuePairs | None = None
    evaluation: EvaluationResult | None = None
    best_evaluation: EvaluationResult | None = None
    evaluations: tuple[EvaluationResult, ...] = ()
    film: EvaluationFilm | None = None
    discipline: str = ""
    network: str = ""
    goals: str = ""
    opponents: tuple[OpponentRating, ...] = ()
    actors: tuple[ActorStatistics, ...] = ()
    groups: tuple[GroupStatistics, ...] = ()
    stop_reason: str | None = None
    error: str | None = None
    final_evaluation: tuple[int, int] | None = None
    logged: dict[str, float] = field(default_factory=dict)
    logged_now: dict[str, float] = field(default_factory=dict)

    # The numbers that scripts read most; `__getattr__` gives them, and all others as Any.
    if TYPE_CHECKING:

        @property
        def return_mean(self) -> float | None:
            """Mean return of the last 100 training episodes; None before the first has ended."""

        @property
        def length_mean(self) -> float | None:
            """Mean length of the last 100 training episodes in steps; None before the first has ended."""

        @property
        def loss(self) -> float | None:
            """Loss of the last update; None before the first."""

        @property
        def env_steps(self) -> int:
            """Environment steps over all actors."""

        @property
        def updates(self) -> int:
            """Gradient steps."""

        @property
        def episodes(self) -> int:
            """Finished training episodes."""

        @property
        def train_seconds(self) -> float:
            """Training time, evaluation pauses excluded."""

        @property
        def wall_seconds(self) -> float:
            """Time since the run began."""

        @property
        def env_steps_per_second(self) -> float:
            """Rate of environment steps."""

        @property
        def updates_per_second(self) -> float:
            """Rate of gradient steps."""

        @property
        def policy_lag_mean(self) -> float:
            """Mean policy lag of the steps received in the last interval, in updates."""

        @property
        def staleness_mean(self) -> float:
            """Mean staleness of the samples trained on in the last interval, in updates."""

    def __getattr__(self, name: str) -> Any:
        if name in BY_KEY:
            return self.metrics[BY_KEY[name].name]
        histogram, _, part = name.rpartition("_")
        for metric in HISTOGRAMS:
            if metric.key == histogram and part in HISTOGRAM_PARTS:
                return getattr(self.distributions.get(metric.name, Distribution()), part)
        raise AttributeError(f"a snapshot has no attribute {name!r}; its numbers are in `metrics`")

    @property
    def train_metrics(self) -> dict[str, float]:
        """Scalars of the last update, and returns of several agents, that the table lacks, by public name."""
        further = ((name, value) for name, value in self.metrics.items() if name not in UNMEASURED)
        return {name: value for name, value in further if value is not None}

    def fields(self) -> dict[str, Any]:
        """Everything but `evaluations` by attribute, for `/stats`."""
        return {name: getattr(self, name) for name in FIELDS}


HISTOGRAM_PARTS = ("edges", "counts", "sum")
FIELDS: Final = (
    *(f.name for f in fields(Snapshot) if f.name not in ("metrics", "distributions", "evaluations")),
    *BY_KEY,
    *(f"{histogram.key}_{part}" for histogram in HISTOGRAMS for part in HISTOGRAM_PARTS),
    "train_metrics",
)
"""Attributes of a snapshot in `/stats`."""


def flat(snapshot: Snapshot | EvaluationResult) -> dict[str, float]:
    """Numbers of a report or an evaluation by public name, in file order; then a report's further scalars.

    Unknown numbers (no episode has finished yet) are left out; NaN and infinity stay. The last are the numbers that
    were logged with `trainer.log` since the report before. Returns a new dict; any thread.
    """
    named: Mapping[str, float | None]
    logged: Mapping[str, float] = {}
    if isinstance(snapshot, EvaluationResult):
        parts = snapshot.agent_returns | snapshot.policy_returns | snapshot.level_returns
        each = {f"eval/mean_reward/{name}": value for name, value in parts.items()}
        named = {metric.name: getattr(snapshot, str(metric.key)) for metric in EVALUATION_METRICS} | each
    else:
        named, logged = snapshot.metrics, snapshot.logged_now
    known = {name: value for name, value in named.items() if value is not None and "/" in name}
    return {**known, **logged}


def over_groups(own: Metrics, others: Iterable[Mapping[str, Any]]) -> Metrics:
    """Numbers of group 0 with counters and rates summed over all groups; `others` are those of the other groups."""
    summed = {metric.name for metric in RUN_METRICS if metric.kind != "gauge"}
    rest = tuple(others)
    return {
        name: value + sum(other.get(name) or 0 for other in rest)
        if name in summed and value is not None
        else value
        for name, value in own.items()
    }
