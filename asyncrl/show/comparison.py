"""Results of groups of runs side by side: each group on its environment, and each setting over all environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl.show.aggregates import STATISTICS, Array, Estimate, estimate, iqm, mean, performance_profile
from asyncrl.show.curves import Reader, read_one, scaled
from asyncrl.show.run_groups import RunGroup

THRESHOLDS = 101
"""Thresholds of a performance profile."""

Scales = Mapping[str, tuple[float, float]]
"""Returns that become 0 and 1, by environment."""


@dataclass(frozen=True)
class GroupResult:
    """Last values of a group's runs.

    Attributes:
        group: the group.
        values: the metric's last value of each run that has one, at least one.
        mean, iqm: statistics of them with their intervals.
    """

    group: RunGroup
    values: Array
    mean: Estimate
    iqm: Estimate


@dataclass(frozen=True)
class SettingResult:
    """Normalised scores of one setting over environments.

    Attributes:
        name: name of its groups.
        runs: runs over all environments.
        estimates: by a name of `aggregates.STATISTICS`.
        thresholds, profile, low, high: share of the runs with a score above each threshold, and its interval.
    """

    name: str
    runs: int
    estimates: Mapping[str, Estimate]
    thresholds: Array
    profile: Array
    low: Array
    high: Array


def results(
    groups: Sequence[RunGroup], metric: str, scales: Scales | None = None, read: Reader = read_one
) -> list[GroupResult]:
    """Result of every group that has the metric; see `curves` for the arguments."""
    found = []
    for group in groups:
        parts = [read(run, metric) for run in group.runs]
        own = [scaled(part, metric, (scales or {}).get(group.env)).values for part in parts]
        values = np.array([part[-1] for part in own if part.size])
        if values.size:
            found.append(GroupResult(group, values, estimate([values], mean), estimate([values], iqm)))
    return found


def over_environments(results: Sequence[GroupResult]) -> list[SettingResult]:
    """Result of every setting that has runs in all environments of `results`, whose values are normalised scores.

    A setting that lacks an environment is left out, as its figures would be those of other environments. Groups of one
    name in different environments are one setting, also where presets of the environments differ.
    """
    environments = {result.group.env for result in results}
    settings: dict[str, list[GroupResult]] = {}
    for result in results:
        settings.setdefault(result.group.name, []).append(result)
    whole = {name: own for name, own in settings.items() if len(own) == len(environments)}
    if not whole:
        return []
    scores = np.concatenate([result.values for own in whole.values() for result in own])
    thresholds = np.linspace(min(0.0, float(scores.min())), max(1.0, float(scores.max())), THRESHOLDS)
    found = []
    for name, own in whole.items():
        strata = [result.values for result in own]
        estimates = {statistic: estimate(strata, of) for statistic, of in STATISTICS.items()}
        runs = sum(map(len, strata))
        profile, low, high = performance_profile(strata, thresholds)
        found.append(SettingResult(name, runs, estimates, thresholds, profile, low, high))
    return found
