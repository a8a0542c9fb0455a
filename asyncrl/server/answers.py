"""JSON of the page of several runs, for a server or for a file: runs, groups, curves, settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.server.pages import FOLDER_PAGE, load_page
from asyncrl.show.aggregates import REFERENCE_SCORES, Array, Estimate
from asyncrl.show.comparison import GroupResult, over_environments, results
from asyncrl.show.curves import (
    NO_SERIES,
    RETURNS,
    TRAINING,
    Axis,
    Reader,
    Series,
    curves,
    default_metric,
    read_series,
)
from asyncrl.show.kept_run import EVALUATION, KeptRun
from asyncrl.show.run_groups import RunGroup, differing_options

METRICS = {
    EVALUATION: "Return, evaluations",
    "train/loss": "Loss",
    TRAINING: "Return, training",
    "time/fps": "Environment steps per second",
    "async/policy_lag_mean": "Policy lag, updates behind",
    "async/staleness_mean": "Staleness, updates",
}
"""Titles of the charts of an environment; the page draws the first and the third twice as wide."""
MOST_LOGGED = 24
"""Most charts of numbers that the user has logged, beside these."""
DIGITS = 6
"""Significant digits of a curve's numbers."""
DATA = '<script type="application/json" id="data"></script>'
"""Place in the page of the data of a file."""
AllSeries = Callable[[KeptRun], Mapping[str, Series]]
"""Gives all series of a run that the page may draw, as `drawn_series` does."""


def drawn_series(run: KeptRun) -> dict[str, Series]:
    """Series of `METRICS` and of the numbers that the user has logged, from one reading of the run's file."""
    return read_series(run, list(METRICS), logged=True)


def _reader(series: AllSeries) -> Reader:
    return lambda run, metric: series(run).get(metric, NO_SERIES)


def runs_answer(
    folder: str, groups: Sequence[RunGroup], names: Mapping[KeptRun, str], series: AllSeries
) -> dict[str, Any]:
    """Every run with its facts, every group with its results, and the options in which the runs differ.

    Args:
        folder: where they lie.
        groups: of all runs.
        names: name of every run, in the order of the list.
        series: gives the series of a run.
    """
    runs = list(names)
    metric = default_metric(runs)
    found = {result.group.id: result for result in results(groups, metric, read=_reader(series))}
    group_of = {run: group.id for group in groups for run in group.runs}
    return {
        "folder": folder,
        "runs": [{**facts(name, run), "group": group_of[run]} for run, name in names.items()],
        "groups": [_group(group, found.get(group.id)) for group in groups],
        "metric": metric,
        "differing": differing_options(runs),
    }


def _group(group: RunGroup, result: GroupResult | None) -> dict[str, Any]:
    """Row of one group, with its results if it has any."""
    return {
        "id": group.id,
        "env": group.env,
        "name": group.name,
        "size": group.size if result is None else group.size_of(result.values.size),
        "runs": len(group.runs),
        "mean": result and _estimate(result.mean),
        "iqm": result and _estimate(result.iqm),
    }


def facts(name: str, run: KeptRun) -> dict[str, Any]:
    """Row of one run."""
    return {
        "run": name,
        "env": run.env,
        "algo": run.algo,
        "seed": run.seed,
        "state": run.state,
        "env_steps": run.env_steps,
        "best": run.best,
        "final": run.final,
        "train_seconds": run.summary.get("train_seconds"),
        "stop_reason": run.summary.get("stop_reason"),
        "error": run.summary.get("error"),
        "changed": run.changed,
        "live": run.state == "running" and (run.path / "http.json").exists(),
        "tags": run.tags,
        "note": run.note,
    }


def comparison_answer(
    groups: Sequence[RunGroup],
    axis: Axis,
    line: str,
    *,
    each: bool = False,
    series: AllSeries,
) -> dict[str, Any]:
    """Curves of every metric, in groups' units; settings over the environments whose scale is known.

    The first `MOST_LOGGED` numbers that the user has logged are further metrics.
    """
    names = dict.fromkeys(name for group in groups for run in group.runs for name in series(run))
    logged = [name for name in names if name not in METRICS][:MOST_LOGGED]
    titles, read = METRICS | {name: name for name in logged}, _reader(series)
    scales = {group.env: REFERENCE_SCORES[group.env] for group in groups if group.env in REFERENCE_SCORES}
    metric = default_metric([run for group in groups for run in group.runs])
    known = [group for group in groups if group.env in scales]
    settings = over_environments(results(known, metric, scales, read=read))
    return {
        "metrics": titles,
        "returns": RETURNS,
        "scales": scales,
        "curves": {
            metric: [
                {"env": c.env, "name": c.name, "size": c.size}
                | {part: _numbers(getattr(c, part)) for part in ("x", "line", "low", "high", "count")}
                for c in curves(groups, metric, axis, each=each, line=line, read=read)
            ]
            for metric in titles
        },
        "settings": [
            {"name": own.name, "runs": own.runs}
            | {part: _numbers(getattr(own, part)) for part in ("thresholds", "profile", "low", "high")}
            | {"estimates": {name: _estimate(found) for name, found in own.estimates.items()}}
            for own in settings
        ],
    }


def static_page(
    folder: str,
    groups: Sequence[RunGroup],
    names: Mapping[KeptRun, str],
    series: AllSeries | None = None,
) -> bytes:
    """The page with its data in one file, which asks nothing of any server; its policy allows only its own code."""
    page, policy = load_page(FOLDER_PAGE)
    series = series or functools.cache(drawn_series)
    data: dict[str, Any] = {"runs": runs_answer(folder, groups, names, series)}
    for axis in ("steps", "seconds"):
        for line in ("mean", "iqm"):
            data[f"{axis} {line}"] = comparison_answer(groups, axis, line, series=series)
    # "<" would end the element; a data block is not run, so the policy needs no hash of it.
    text = to_json(data).replace(b"<", b"\\u003c").decode()
    allowed = policy.replace("connect-src 'self'", "connect-src 'none'").partition("; frame-ancestors")[0]
    head = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n<title>'
    whole = page.decode().replace("<title>", head, 1)
    return whole.replace(DATA, DATA.replace("></", f">{text}</"), 1).encode()


def to_json(value: Any) -> bytes:
    """Strict JSON."""
    return msgspec.json.encode(_clean(value))


def _estimate(found: Estimate) -> list[float | None]:
    return [found.value, found.low, found.high]


def _numbers(values: Array) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _clean(value: Any) -> Any:
    """`value` of a run's files as JSON that every reader takes: no lone surrogates, no integers beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 63 else value
