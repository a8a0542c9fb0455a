"""A snapshot in Prometheus' text format 0.0.4, made from the tables of `show/metrics.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.metrics import (
    ACTOR_METRICS,
    EVALUATION_METRICS,
    HISTOGRAMS,
    RUN_METRICS,
    Metric,
    Snapshot,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(snapshot: Snapshot) -> str:
    """All known metrics, each with HELP and TYPE. Pure; any thread."""
    return "\n".join(_lines(snapshot)) + "\n"


def _lines(snapshot: Snapshot) -> Iterator[str]:
    names = ("algo", "env", "seed", "state", "discipline")
    labels = ",".join(f'{name}="{_escape(str(getattr(snapshot, name)))}"' for name in names)
    yield from _head("info", "gauge", "The run: always 1.")
    yield f"asyncrl_info{{{labels}}} 1"
    yield from _samples(RUN_METRICS, snapshot)
    if snapshot.evaluation is not None:
        yield from _samples(EVALUATION_METRICS, snapshot.evaluation)
    for name, text in HISTOGRAMS:
        edges, counts = getattr(snapshot, f"{name}_edges"), getattr(snapshot, f"{name}_counts")
        yield from _histogram(name, text, edges, counts)
    yield from _actors(snapshot.actors)


def _samples(metrics: Iterable[Metric], record: object) -> Iterator[str]:
    """The known numbers of one record."""
    for metric in metrics:
        name, value = metric.prometheus_name, getattr(record, metric.field)
        if name is not None and value is not None:
            yield from _metric_head(metric)
            yield f"asyncrl_{name} {_number(value)}"


def _histogram(name: str, text: str, edges: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[str]:
    """A histogram since the start, without a sum, which the format does not demand."""
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
    for metric in ACTOR_METRICS:
        yield from _metric_head(metric)
        for actor in actors:
            value = _number(getattr(actor, metric.field))
            yield f'asyncrl_{metric.prometheus_name}{{actor="{actor.index}"}} {value}'
    yield from _head("actor_up", "gauge", "1 while the actor runs or waits for room.")
    for actor in actors:
        up = int(actor.state in ("running", "waiting"))
        yield f'asyncrl_actor_up{{actor="{actor.index}",state="{_escape(actor.state)}"}} {up}'


def _metric_head(metric: Metric) -> tuple[str, str]:
    unit = f" Unit: {metric.unit}." if metric.unit else ""
    return _head(str(metric.prometheus_name), metric.kind, f"{metric.help}.{unit}")


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
