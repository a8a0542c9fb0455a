"""Curves of a kept run for the folder's page: columns of its metrics, thinned."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from asyncrl.show.kept_run import EVALUATION, STEPS, KeptRun, integer, number

MOST_POINTS = 400
COLUMNS = {
    "return": "rollout/ep_rew_mean",
    "loss": "train/loss",
    "fps": "time/fps",
    "lag": "async/policy_lag_mean",
    "staleness": "async/staleness_mean",
}
"""Metric of each column, by the column's name on the page."""
OF_AN_INTERVAL = ("fps", "lag", "staleness")
"""Columns over the time since the last report; meaningless if no step was taken in it."""


def curves(run: KeptRun) -> dict[str, Any]:
    """Columns `steps`, `seconds` and `COLUMNS` of equal lengths; `evaluations` as `[steps, seconds, return]`.

    Reads the run's file and blocks meanwhile.
    """
    steps: list[int] = []
    seconds: list[float] = []
    columns: dict[str, list[float | None]] = {name: [] for name in COLUMNS}
    evaluations: list[tuple[int, float]] = []
    for entry in run.lines():
        if (mean := number(entry.get(EVALUATION))) is not None:
            evaluations.append((integer(entry.get("eval/total_timesteps")) or 0, mean))
        at, elapsed = integer(entry.get(STEPS)), number(entry.get("time/time_elapsed"))
        if at is None or elapsed is None:
            continue
        no_steps = bool(steps) and at == steps[-1]
        steps.append(at)
        seconds.append(float(elapsed))
        for name, metric in COLUMNS.items():
            columns[name].append(None if no_steps and name in OF_AN_INTERVAL else number(entry.get(metric)))
    kept = _kept(len(steps))
    return {
        "steps": [steps[i] for i in kept],
        "seconds": [seconds[i] for i in kept],
        **{name: [column[i] for i in kept] for name, column in columns.items()},
        "evaluations": [[at, _seconds_at(at, steps, seconds), mean] for at, mean in evaluations],
    }


def _kept(count: int) -> list[int]:
    """Indices of at most `MOST_POINTS` moments, the last one included."""
    stride = -(-count // MOST_POINTS) or 1
    return sorted({*range(0, count, stride), *([count - 1] if count else [])})


def _seconds_at(at: int, steps: list[int], seconds: list[float]) -> float:
    """Time at which training had taken `at` steps, interpolated between two reports."""
    i = bisect_left(steps, at)
    if not steps or i == len(steps):
        return seconds[-1] if seconds else 0.0
    if i == 0 or steps[i] == steps[i - 1]:
        return seconds[i]
    share = (at - steps[i - 1]) / (steps[i] - steps[i - 1])
    return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])
