"""`asyncrl diff A B`: the options in which two runs, or two groups of seeds, differ, and their outcomes."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.cli.flags import Parser, shown
from asyncrl.cli.text_table import existing_run, text_table
from asyncrl.errors import ConfigurationError
from asyncrl.show.kept_run import KeptRun, find_runs, integer, is_logged, table
from asyncrl.show.kept_run import number as number_of
from asyncrl.show.numbers import number, of_return
from asyncrl.show.run_groups import differing_options, group_runs


def make_parser() -> Parser:
    """Flags of `asyncrl diff`."""
    parser = Parser(
        "diff A B",
        "Show the options in which two runs differ, and their outcome. A or B may be a folder of runs with the same "
        "options but the seed: its figures are means over the runs.",
    )
    parser.add_argument("A", help="directory of a run, or folder of its seeds")
    parser.add_argument("B", help="directory of another")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print both tables."""
    sides = [_runs(options.A), _runs(options.B)]
    firsts = [side[0] for side in sides]
    # The options of two different algorithms are left out.
    shared = set(firsts[0].options) & set(firsts[1].options)
    several = any(len(side) > 1 for side in sides)
    rows = [
        (name, *(_text(value) for value in values))
        for name, values in differing_options(firsts).items()
        if name.partition(".")[0] in shared and not (several and name == "trainer.seed")
    ]
    print(text_table(("option", "A", "B"), rows, whole=("A", "B")) if rows else "the options are the same")
    print()
    first, second = (_outcome(side) for side in sides)
    outcome = [
        (name, first.get(name, "-"), second.get(name, "-"))
        for name in dict.fromkeys([*first, *second])
        if several or name != "runs"
    ]
    print(text_table(("outcome", "A", "B"), outcome, right=("A", "B")))


def _runs(path: str) -> tuple[KeptRun, ...]:
    """The run of a directory, or the runs of a folder. Raises `ConfigurationError` if they are not one group."""
    groups = group_runs(find_runs(Path(path).expanduser()) or [existing_run(path)])
    if len(groups) > 1:
        raise ConfigurationError(
            f"{path} holds runs that differ in more than the seed: {'; '.join(group.name for group in groups[:4])}",
            facts={"groups": len(groups)},
            fix=f"name one of its runs, or compare all of them: asyncrl plot {shlex.quote(path)}",
        )
    return groups[0].runs


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = tuple(value)
    return "not set" if value is None else shown(value) or "nothing"


def _outcome(runs: Sequence[KeptRun]) -> dict[str, str]:
    def figure(name: str, of: str | None = None) -> float | None:
        return _mean(runs, lambda run: number_of((table(run.summary, of) if of else run.summary).get(name)))

    updates = _mean(runs, lambda run: integer(run.summary.get("updates")))
    return {
        "runs": str(len(runs)),
        "state": _said(runs, lambda run: run.state),
        "stopped by": _said(runs, lambda run: str(run.summary.get("stop_reason") or "-")),
        "best return": of_return(_mean(runs, lambda run: run.best)),
        "final return": of_return(_mean(runs, lambda run: run.final)),
        "steps": f"{_mean(runs, lambda run: run.env_steps) or 0:,.0f}",
        "updates": "-" if updates is None else f"{updates:,.0f}",
        "training seconds": number(figure("train_seconds")),
        "steps/s": number(figure("env_steps_per_second")),
        "updates/s": number(figure("updates_per_second")),
        "samples per insert": number(figure("achieved", "samples_per_insert")),
        "staleness (updates)": number(figure("mean", "staleness")),
        "policy lag (updates)": number(figure("mean", "policy_lag")),
        "learner waits": _percent(figure("learner_wait_fraction")),
        "actors wait": _percent(figure("actor_wait_fraction")),
        **_logged(runs),
        "asyncrl": _said(runs, lambda run: str(run.meta.get("asyncrl") or "-")),
        "commit": _said(runs, lambda run: str(run.meta.get("git_commit") or "-")[:12]),
    }


def _logged(runs: Sequence[KeptRun]) -> dict[str, str]:
    """The last value of every number that the user logged, as a mean over the runs that have it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.last_values().items():
            if is_logged(name):
                found.setdefault(name, []).append(value)
    return {name: number(sum(values) / len(values)) for name, values in found.items()}


def _mean(runs: Sequence[KeptRun], of: Callable[[KeptRun], float | None]) -> float | None:
    """Mean over the runs that have the figure, None if none has."""
    found = [value for run in runs if (value := of(run)) is not None]
    return sum(found) / len(found) if found else None


def _said(runs: Sequence[KeptRun], of: Callable[[KeptRun], str]) -> str:
    """The word of a run, or each word of several runs with its count."""
    counts: Mapping[str, int] = Counter(map(of, runs))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
