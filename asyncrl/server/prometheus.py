"""Snapshot in Prometheus text format, made from the tables of `show/metrics.py` by `prometheus_client`.

This module is imported at the first request for `/metrics`. Labels never change during a run, so that every series
lasts as long as the run: each possible state is a series of 0 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.interfaces import Distribution
from asyncrl.show.metrics import (
    ACTOR_METRICS,
    EVALUATION_METRICS,
    HISTOGRAMS,
    RUN_METRICS,
    Metric,
    Snapshot,
)

STATES = ("starting", "training", "evaluating", "stopping", "stopped", "failed")

_RETURN_OF = "rollout/ep_rew_mean/"
"""Public name of an agent's return, without the agent's name, of which any may be a label."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def prometheus_text(snapshot: Snapshot) -> bytes:
    """All known metrics, each with HELP and TYPE. Pure; any thread."""
    # A new registry: the client's process-wide one has the program's own metrics.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    """The metric families of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        """Yield every family whose values are known."""
        snapshot = self._snapshot
        yield _labelled("info", "The run: always 1.", {"algo": snapshot.algo, "env": snapshot.env,
                        "seed": str(snapshot.seed)})  # fmt: skip
        yield _states(snapshot.state)
        if snapshot.discipline:
            text = "The discipline in which data is consumed: always 1."
            yield _labelled("discipline", text, {"discipline": snapshot.discipline})
        for metric in RUN_METRICS:
            yield from _known(metric, snapshot.metrics[metric.name])
        yield from _train_metrics(snapshot)
        yield from _logged(snapshot.logged)
        if snapshot.evaluation is not None:
            for metric in EVALUATION_METRICS:
                yield from _known(metric, getattr(snapshot.evaluation, str(metric.key)))
            yield GaugeMetricFamily(
                "asyncrl_evaluations",
                "Evaluations so far, thinned beyond 10,000.",
                len(snapshot.evaluations),
            )
        if snapshot.best_evaluation is not None:
            best = snapshot.best_evaluation.return_mean
            text = "Mean return of the best evaluation."
            yield GaugeMetricFamily("asyncrl_evaluation_best_return_mean", text, best)
        for metric in HISTOGRAMS:
            yield _histogram(metric, snapshot.distributions.get(metric.name, Distribution()))
        yield from _actors(snapshot.actors)


def _labelled(name: str, text: str, labels: dict[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"asyncrl_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _states(state: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "asyncrl_state", "1 for the state of the run, 0 for every other.", labels=["state"]
    )
    for name in STATES:
        family.add_metric([name], int(name == state))
    return family


def _known(metric: Metric, value: float | None) -> Iterator[Family]:
    """Metric family of a number, unless it is unknown or not for Prometheus."""
    if value is not None and metric.prometheus_name is not None:
        family = _family(metric)
        family.add_metric([], value)
        yield family


def _family(metric: Metric, labels: tuple[str, ...] = ()) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(f"asyncrl_{metric.prometheus_name}", _text(metric), labels=labels)


def _text(metric: Metric) -> str:
    return f"{metric.help}. Unit: {metric.unit}." if metric.unit else f"{metric.help}."


def _train_metrics(snapshot: Snapshot) -> Iterator[GaugeMetricFamily]:
    """Numbers of the last update, `train/td_error` as `asyncrl_train_td_error`, and returns by the agent's name."""
    text = "Mean return of each agent, and of each policy's agents, over the last 100 training episodes."
    returns = GaugeMetricFamily("asyncrl_return_mean_by_agent", text, labels=["agent"])
    for name, value in snapshot.train_metrics.items():
        if name.startswith(_RETURN_OF):
            returns.add_metric([name.removeprefix(_RETURN_OF)], value)
            continue
        text = f"{name} of the last update." if name.startswith("train/") else f"{name}."
        yield GaugeMetricFamily("asyncrl_" + re.sub(r"[^a-zA-Z0-9_]", "_", name), text, value)
    if returns.samples:
        yield returns


def _logged(values: dict[str, float]) -> Iterator[GaugeMetricFamily]:
    """The numbers that the user has logged, by their names as labels: `a.b` and `a_b` would be one name of a series."""
    if values:
        family = GaugeMetricFamily(
            "asyncrl_logged", "Newest value that the user has logged.", labels=["name"]
        )
        for name, value in values.items():
            family.add_metric([name], value)
        yield family


def _histogram(metric: Metric, whole: Distribution) -> HistogramMetricFamily:
    """Histogram since the start, in whole numbers: a bucket's limit is the largest value in it."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for above, count in zip(whole.edges[1:], whole.counts, strict=False):
        total += count
        buckets.append((str(above - 1), total))
    buckets.append(("+Inf", sum(whole.counts)))
    return HistogramMetricFamily(f"asyncrl_{metric.key}", _text(metric), buckets, whole.sum)


def _actors(actors: tuple[ActorStatistics, ...]) -> Iterator[Family]:
    for metric in ACTOR_METRICS if actors else ():
        family = _family(metric, ("actor",))
        for actor in actors:
            family.add_metric([str(actor.index)], getattr(actor, metric.name))
        yield family
    if actors:
        up = GaugeMetricFamily(
            "asyncrl_actor_up", "1 while the actor runs or waits for a grant.", labels=["actor"]
        )
        for actor in actors:
            up.add_metric([str(actor.index)], int(actor.state in ("running", "waiting")))
        yield up
