"""A snapshot in Prometheus' text format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterator

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.metrics import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

RUN_METRICS = (
    ("env_steps_total", "counter", "Environment steps over all actors.", "env_steps"),
    ("updates_total", "counter", "Gradient steps.", "updates"),
    ("episodes_total", "counter", "Finished training episodes.", "episodes"),
    ("actor_restarts_total", "counter", "Actor processes started again.", "actor_restarts"),
    ("policy_version", "gauge", "Publications of weights.", "policy_version"),
    ("wall_seconds", "gauge", "Seconds since the run began.", "wall_seconds"),
    ("train_seconds", "gauge", "Seconds of training, evaluation excluded.", "train_seconds"),
    ("env_steps_per_second", "gauge", "Environment steps per second, last interval.", "env_steps_per_second"),
    (
        "received_steps_per_second",
        "gauge",
        "Environment steps per second that reached the learner, last interval.",
        "received_steps_per_second",
    ),
    (
        "consumed_samples_per_second",
        "gauge",
        "Samples trained on per second, last interval.",
        "consumed_samples_per_second",
    ),
    (
        "consumption_per_production",
        "gauge",
        "Samples trained on per environment step, last interval.",
        "consumption_per_production",
    ),
    ("updates_per_second", "gauge", "Gradient steps per second, last interval.", "updates_per_second"),
    ("learner_wait_fraction", "gauge", "Share of time the learner waited.", "learner_wait_fraction"),
    ("actor_wait_fraction", "gauge", "Share of time the actors waited.", "actor_wait_fraction"),
    ("return_mean", "gauge", "Mean return of the last 100 training episodes.", "return_mean"),
    ("episode_length_mean", "gauge", "Mean length of the last 100 training episodes.", "length_mean"),
    ("exploration_rate", "gauge", "Mean exploration rate over actors.", "exploration_rate"),
    ("loss", "gauge", "Loss of the last update.", "loss"),
    ("learning_rate", "gauge", "Learning rate of the last update.", "learning_rate"),
    (
        "staleness_mean",
        "gauge",
        "Mean staleness of samples, in updates, last interval.",
        "staleness_mean",
    ),
    ("staleness_p95", "gauge", "95th percentile of staleness, in updates, last interval.", "staleness_p95"),
    ("staleness_max", "gauge", "Largest staleness, in updates, last interval.", "staleness_max"),
    (
        "staleness_versions_mean",
        "gauge",
        "Mean staleness of samples, in policy versions, last interval.",
        "staleness_versions_mean",
    ),
    (
        "staleness_versions_p95",
        "gauge",
        "95th percentile of staleness, in policy versions, last interval.",
        "staleness_versions_p95",
    ),
    (
        "staleness_versions_max",
        "gauge",
        "Largest staleness, in policy versions, last interval.",
        "staleness_versions_max",
    ),
    (
        "policy_lag_mean",
        "gauge",
        "Mean policy lag of received steps, in updates, last interval.",
        "policy_lag_mean",
    ),
    (
        "policy_lag_p95",
        "gauge",
        "95th percentile of policy lag, in updates, last interval.",
        "policy_lag_p95",
    ),
    ("policy_lag_max", "gauge", "Largest policy lag, in updates, last interval.", "policy_lag_max"),
    ("publish_interval", "gauge", "Updates between two publications of weights.", "publish_interval"),
    ("publish_seconds", "gauge", "Median cost of a publication of weights.", "publish_seconds"),
    ("discarded_fraction", "gauge", "Share of steps that became too stale to use.", "discarded_fraction"),
    ("samples_per_insert_target", "gauge", "Samples per inserted step, target.", "samples_per_insert_target"),
    ("samples_per_insert", "gauge", "Samples per inserted step, achieved.", "samples_per_insert_achieved"),
    ("ring_fill", "gauge", "Mean fill of the experience rings, 0 to 1.", "ring_fill"),
    ("replay_rows", "gauge", "Environment steps that may be sampled.", "replay_rows"),
    ("replay_capacity", "gauge", "Environment steps that replay can hold.", "replay_capacity"),
)

ACTOR_METRICS = (
    ("actor_env_steps_total", "counter", "Environment steps of this actor.", "env_steps"),
    ("actor_env_steps_per_second", "gauge", "Steps per second of this actor.", "env_steps_per_second"),
    (
        "actor_heartbeat_age_seconds",
        "gauge",
        "Seconds since the actor's last sign of life.",
        "heartbeat_age_seconds",
    ),
    ("actor_wait_fraction_by_actor", "gauge", "Share of time this actor waited for room.", "wait_fraction"),
    ("actor_ring_fill", "gauge", "Fill of this actor's ring, 0 to 1.", "ring_fill"),
    ("actor_restarts_by_actor_total", "counter", "Times this actor was started again.", "restarts"),
    ("actor_private_bytes", "gauge", "Private memory of this actor.", "private_bytes"),
)


def prometheus_text(snapshot: Snapshot) -> str:
    """All metrics, each with HELP and TYPE; what is not known yet is left out. Pure; any thread."""
    return "\n".join(_lines(snapshot)) + "\n"


def _lines(snapshot: Snapshot) -> Iterator[str]:
    names = ("algo", "env", "seed", "state", "discipline")
    labels = ",".join(f'{name}="{_escape(str(getattr(snapshot, name)))}"' for name in names)
    yield from _head("info", "gauge", "The run: always 1.")
    yield f"asyncrl_info{{{labels}}} 1"
    for name, kind, text, field in RUN_METRICS:
        value = getattr(snapshot, field)
        if value is not None:
            yield from _head(name, kind, text)
            yield f"asyncrl_{name} {_number(value)}"
    if snapshot.evaluation is not None:
        yield from _head("evaluation_return_mean", "gauge", "Mean return of the last greedy evaluation.")
        yield f"asyncrl_evaluation_return_mean {_number(snapshot.evaluation.return_mean)}"
        yield from _head("evaluation_env_steps", "gauge", "Environment steps behind the evaluated weights.")
        yield f"asyncrl_evaluation_env_steps {snapshot.evaluation.env_steps}"
    yield from _histogram(
        "staleness",
        "Staleness of every sample used, in updates.",
        snapshot.staleness_edges,
        snapshot.staleness_counts,
    )
    yield from _histogram(
        "policy_lag",
        "Policy lag of every environment step received, in updates.",
        snapshot.policy_lag_edges,
        snapshot.policy_lag_counts,
    )
    yield from _actors(snapshot.actors)


def _histogram(name: str, text: str, edges: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[str]:
    """A histogram since the start. Its sum is not kept, and the format does not demand one."""
    yield from _head(name, "histogram", text)
    total = 0
    for above, count in zip(edges[1:], counts, strict=False):
        total += count
        yield f'asyncrl_{name}_bucket{{le="{above - 1}"}} {total}'
    total = sum(counts)
    yield f'asyncrl_{name}_bucket{{le="+Inf"}} {total}'
    yield f"asyncrl_{name}_count {total}"


def _actors(actors: tuple[ActorStatistics, ...]) -> Iterator[str]:
    if not actors:
        return
    for name, kind, text, field in ACTOR_METRICS:
        yield from _head(name, kind, text)
        for actor in actors:
            yield f'asyncrl_{name}{{actor="{actor.index}"}} {_number(getattr(actor, field))}'
    yield from _head("actor_up", "gauge", "1 while the actor runs or waits for room.")
    for actor in actors:
        up = int(actor.state in ("running", "waiting"))
        yield f'asyncrl_actor_up{{actor="{actor.index}",state="{_escape(actor.state)}"}} {up}'


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP asyncrl_{name} {text}", f"# TYPE asyncrl_{name} {kind}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
