"""Learning curves of groups of runs: a metric over steps or seconds, with a bootstrap interval over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from asyncrl.show.aggregates import Array, Statistic, iqm, mean, over_runs
from asyncrl.show.kept_run import EVALUATION, STEPS, KeptRun, finite, is_logged
from asyncrl.show.run_groups import RunGroup

TRAINING = "rollout/ep_rew_mean"
RETURNS = (EVALUATION, TRAINING)
"""Metrics that `scales` normalise."""
SECONDS = "time/time_elapsed"
OF_AN_INTERVAL = ("time/fps", "async/policy_lag_mean", "async/staleness_mean")
"""Metrics over the time since the last report; meaningless if no step was taken in it."""
POINTS = 400
"""Most points of a curve."""
NEAR = 0.05
"""Share of a curve's length over which a run's first and last value are held.

Runs with one limit end a few steps apart. Otherwise a group's last value would be that of the longest run.
"""
LINES: Mapping[str, Statistic] = {"mean": mean, "iqm": iqm}
"""Statistics over the runs that a curve may show."""
Axis = Literal["steps", "seconds"]


@dataclass(frozen=True)
class Series:
    """Finite values of one run's metric, with the steps (rising) and the seconds since its start."""

    steps: Array
    seconds: Array
    values: Array


NO_SERIES = Series(np.zeros(0), np.zeros(0), np.zeros(0))
"""The series of a metric that a run does not have."""


@dataclass(frozen=True)
class Curve:
    """One line of a plot with its band.

    Attributes:
        env: the environment, whose curves share their axes.
        name: name of the group or of the run; one name has one colour in all environments.
        size: number of runs in words, `3 of 5 seeds` if only so many have the metric; "" for a single one.
        x: steps or seconds, rising.
        line: mean or interquartile mean of the runs that reach each x, within `NEAR`.
        low, high: bounds of the line's 95 % bootstrap interval.
        count: runs that reach each x.
    """

    env: str
    name: str
    size: str
    x: Array
    line: Array
    low: Array
    high: Array
    count: Array

    @property
    def label(self) -> str:
        """The line's text in a legend."""
        return f"{self.name}, {self.size}" if self.size else self.name


Reader = Callable[[KeptRun, str], Series]
"""Gives the series of a run's metric."""


def default_metric(runs: Sequence[KeptRun]) -> str:
    """The greedy return if any run has at least two evaluations, else the training return if any run has one."""
    most = max((len(run.evaluations) for run in runs), default=0)
    # A run on a dataset has no training return, nor has one that ended before its first episode.
    trained = (finite(entry.get(TRAINING)) for run in runs for entry in run.lines(f'"{TRAINING}"'))
    return EVALUATION if most > 1 or (most and all(value is None for value in trained)) else TRAINING


def curves(
    groups: Sequence[RunGroup],
    metric: str,
    axis: Axis,
    *,
    each: bool = False,
    line: str = "mean",
    scales: Mapping[str, tuple[float, float]] | None = None,
    read: Reader | None = None,
) -> list[Curve]:
    """One curve for every group; groups without the metric are left out.

    Args:
        groups: groups of any environments.
        metric: name of the metric in `metrics.jsonl`.
        axis: `"steps"` or `"seconds"` (since the run's start).
        each: make one curve for each run instead.
        line: a name of `LINES`.
        read: reader of a run's metric, in place of its file.
        scales: returns that become 0 and 1 by environment; those of an environment without are left as they are.
    """
    read = read or read_one
    found = []
    for group in groups:
        scale = (scales or {}).get(group.env)
        parts = [(run, scaled(read(run, metric), metric, scale)) for run in group.runs]
        own = [(run, part) for run, part in parts if part.steps.size]
        if each:
            found += [curve([part], axis, line, env=group.env, name=run.path.name) for run, part in own]
        elif own:
            size = group.size_of(len(own)) if len(group.runs) > 1 else ""
            found.append(
                curve([part for _, part in own], axis, line, env=group.env, name=group.name, size=size)
            )
    return found


def by_environment(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Curves of each environment, in the order of the first ones."""
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.env, []).append(curve)
    return found


def read_series(run: KeptRun, metrics: Sequence[str], *, logged: bool = False) -> dict[str, Series]:
    """Series of each of a run's metrics; of several values at one step the last. Reads the run's file once.

    With `logged` those of all numbers that the user has logged follow.
    """
    found: dict[str, dict[float, float]] = {metric: {} for metric in metrics}
    clock: list[tuple[float, float]] = [(0.0, 0.0)]
    for entry in run.lines():
        steps, seconds = finite(entry.get(STEPS)), finite(entry.get(SECONDS))
        idle = steps == clock[-1][0] and len(clock) > 1
        if steps is not None and seconds is not None:
            clock.append((float(steps), float(seconds)))
        if logged:
            found |= {name: {} for name in entry if name not in found and is_logged(name)}
        for metric, points in found.items():
            value = finite(entry.get(metric))
            at = finite(entry.get("eval/total_timesteps")) if metric.startswith("eval/") else steps
            if at is not None and value is not None and not (idle and metric in OF_AN_INTERVAL):
                points[float(at)] = float(value)
    steps_of, seconds_of = np.array(sorted(clock)).T
    return {
        metric: Series(
            x := np.array(sorted(points)),
            np.interp(x, steps_of, seconds_of),
            np.array([points[at] for at in x]),
        )
        for metric, points in found.items()
    }


def read_one(run: KeptRun, metric: str) -> Series:
    """Series of one metric."""
    return read_series(run, (metric,))[metric]


def curve(runs: Sequence[Series], axis: Axis, line: str, *, env: str, name: str, size: str = "") -> Curve:
    """Statistic over runs at the steps or seconds of their points, at most `POINTS`; each run counts where it has been.

    Between two points of a run its value is interpolated. Beyond its first and last point it is held for the share
    `NEAR` of all, then it has none.
    """
    lines = [(run.steps if axis == "steps" else run.seconds, run.values) for run in runs]
    x = np.unique(np.concatenate([at for at, _ in lines]))
    if x.size > POINTS:
        x = np.linspace(x[0], x[-1], POINTS)
    held = NEAR * (x[-1] - x[0])
    values = np.stack(
        [
            np.where((x < at[0] - held) | (x > at[-1] + held), np.nan, np.interp(x, at, own))
            for at, own in lines
        ]
    )
    there = np.isfinite(values)
    shown, low, high = (np.full(x.size, np.nan) for _ in range(3))
    for who in np.unique(there, axis=1).T:
        columns = (there == who[:, None]).all(axis=0)
        if who.any():
            shown[columns], low[columns], high[columns] = over_runs(values[who][:, columns], LINES[line])
    count = there.sum(axis=0).astype(np.float64)
    kept = count > 0
    return Curve(env, name, size, x[kept], shown[kept], low[kept], high[kept], count[kept])


def scaled(series: Series, metric: str, scale: tuple[float, float] | None) -> Series:
    """Returns as shares of the way from the first to the second return of `scale`; any other metric as it is."""
    if scale is None or metric not in RETURNS:
        return series
    low, high = scale
    return Series(series.steps, series.seconds, (series.values - low) / (high - low))
