"""Result of a search as record, JSON and text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.protocols import Algorithm
from asyncrl.show.aggregates import Array, Estimate, estimate, mean
from asyncrl.show.numbers import of_return, with_interval
from asyncrl.tuning.study import Trial

MOST_TRIALS = 10
"""Rows of a table of trials."""


@dataclass(frozen=True)
class HeldOut:
    """Final greedy returns with seeds that have chosen nothing.

    Attributes:
        seeds: the seeds.
        best, default: return of the chosen options, and of the record, for each seed; NaN for a run that failed.
    """

    seeds: tuple[int, ...]
    best: tuple[float, ...]
    default: tuple[float, ...]

    @property
    def difference(self) -> Estimate:
        """Mean of best minus default over the seeds that have both, with its 95 % bootstrap interval."""
        return over_runs(np.array(self.best) - np.array(self.default))


def over_runs(values: Array) -> Estimate:
    """Mean of values with its interval, without NaN; NaN if there is nothing else."""
    known = values[~np.isnan(values)]
    return estimate([known], mean) if known.size else Estimate(math.nan, None, None)


@dataclass(frozen=True, repr=False)
class Searched:
    """Result of a search.

    Attributes:
        algorithm: the chosen record.
        options: its options that were searched; empty if no trial was better than the record to beat.
        trial: number of the chosen trial, 0 for the record to beat.
        trials: all trials.
        held_out: the comparison of both; None if it was not made, or no trial was better.
        file: the chosen options as a file for `asyncrl train --config`.
    """

    algorithm: Algorithm
    options: Mapping[str, Any]
    trial: int
    trials: tuple[Trial, ...]
    held_out: HeldOut | None
    file: Path

    def record(self) -> dict[str, Any]:
        """Content of `result.json`."""
        held_out = self.held_out
        return {
            "trial": self.trial,
            "options": dict(self.options),
            "trials": {
                state: sum(t.state == state for t in self.trials)
                for state in ("complete", "pruned", "failed")
            },
            "held_out": held_out
            and {
                "seeds": list(held_out.seeds),
                "best": list(map(_or_none, held_out.best)),
                "default": list(map(_or_none, held_out.default)),
            },
        }

    def __repr__(self) -> str:
        return "\n".join([*self._chosen(), *self._compared()])

    def _chosen(self) -> list[str]:
        counts = ", ".join(f"{count} {state}" for state, count in self.record()["trials"].items() if count)
        lines = [f"trials        {len(self.trials)}: {counts}"]
        values = [
            trial.value for trial in self.trials if trial.state == "complete" and trial.value is not None
        ]
        if len(values) > 1 and len(set(values)) == 1:
            lines.append(f"value         {values[0]:.4g} in all complete trials: it tells no options apart")
        if not self.trial:
            return [*lines, "best          none is better than the default: trial 0 was chosen"]
        options = ", ".join(f"{name}={shown(value)}" for name, value in self.options.items())
        return [*lines, f"best          trial {self.trial}", f"options       {options}"]

    def _compared(self) -> list[str]:
        held_out = self.held_out
        if held_out is None:
            return []
        lines = [f"held-out      seed {'best':>12} {'default':>12}"]
        rows = zip(held_out.seeds, held_out.best, held_out.default, strict=True)
        lines += [f"{'':<13} {seed:<5} {_cell(best)} {_cell(default)}" for seed, best, default in rows]
        means = (over_runs(np.array(values)).value for values in (held_out.best, held_out.default))
        lines.append(f"{'':<13} mean  {' '.join(map(_cell, means))}")
        found = held_out.difference
        if found.low is None or found.high is None:
            why = "no seed has both" if math.isnan(found.value) else "one seed has no interval, --held-out 5"
            return [*lines, f"{'':<13} best - default {found.value:.1f}: {why}"]
        verdict = "better" if found.low > 0 else "worse" if found.high < 0 else "no difference beyond chance"
        difference = with_interval(found.value, found.low, found.high)
        return [*lines, f"{'':<13} best - default {difference} (95 % bootstrap): {verdict}"]


def shown(value: Any) -> str:
    """A value of an option in few characters: `0.00152`, `64,64`, `true`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def trials_table(trials: Sequence[Trial]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of a table of the best trials: number, state, value, and the options that were searched."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.options))
    known = sorted(
        (t for t in trials if t.value is not None), key=lambda t: (t.state != "complete", -(t.value or 0))
    )
    rows = [
        (
            *(str(trial.number), str(trial.state), f"{trial.value:.4g}"),
            *(shown(trial.options.get(name, "default")) for name in names),
        )
        for trial in known[:MOST_TRIALS]
    ]
    return ("trial", "state", "value", *names), rows


def _cell(value: float) -> str:
    return f"{'failed' if math.isnan(value) else of_return(value):>12}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
