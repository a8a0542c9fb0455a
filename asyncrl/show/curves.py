"""Learning curves of runs: a metric over steps or seconds, as mean and band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncrl.show.kept_run import EVALUATION, STEPS, KeptRun, number

TRAINING = "rollout/ep_rew_mean"
SECONDS = "time/time_elapsed"
POINTS = 200
"""Number of points of a mean over several seeds."""


@dataclass(frozen=True)
class Curve:
    """One line of a plot with its band.

    Attributes:
        label: the line's text in the legend.
        x: steps or seconds, rising.
        mean, low, high: mean over the seeds, and the mean minus and plus one standard deviation over the seeds.
        seeds: number of runs.
    """

    label: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int


def default_metric(runs: Sequence[KeptRun]) -> str:
    """The greedy return if any run has at least two evaluations, else the training return."""
    return EVALUATION if any(len(run.evaluations) > 1 for run in runs) else TRAINING


def curves(runs: Sequence[KeptRun], metric: str, axis: str, *, each: bool = False) -> list[Curve]:
    """One curve for every pair of environment and algorithm; runs without the metric are left out.

    Args:
        runs: runs of any environments and algorithms.
        metric: name of the metric in `metrics.jsonl`.
        axis: `"steps"` or `"seconds"` (since the run's start).
        each: make one curve for each run instead.
    """
    groups: dict[str, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for run in runs:
        x, y = series(run, metric, axis)
        if x.size:
            label = run.path.name if each else f"{run.algo} on {run.env}"
            groups.setdefault(label, []).append((x, y))
    return [_curve(label, lines) for label, lines in groups.items()]


def series(run: KeptRun, metric: str, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points (x rising, y) of one run's metric."""
    found: list[tuple[float, float]] = []
    clock: list[tuple[float, float]] = [(0.0, 0.0)]
    for entry in run.lines():
        steps, seconds, value = (number(entry.get(name)) for name in (STEPS, SECONDS, metric))
        if steps is not None and seconds is not None:
            clock.append((float(steps), float(seconds)))
        at = number(entry.get("eval/total_timesteps")) if metric.startswith("eval/") else steps
        if at is not None and value is not None:
            found.append((float(at), float(value)))
    steps_of, seconds_of = np.array(sorted(clock)).T
    points = dict(sorted(found, key=lambda point: point[0]))  # the last of several values at one step
    x, y = np.array(list(points)), np.array(list(points.values()))
    return (np.interp(x, steps_of, seconds_of) if axis == "seconds" and x.size else x), y


def _curve(label: str, lines: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Curve:
    """Mean and band over the range of x that all lines cover."""
    if len(lines) == 1:
        x, y = lines[0]
        return Curve(label, x, y, y, y, 1)
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    x = np.linspace(first, max(first, last), POINTS)
    values = np.stack([np.interp(x, *line) for line in lines])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    return Curve(f"{label}, {len(lines)} seeds", x, mean, mean - deviation, mean + deviation, len(lines))
