"""`asyncrl diff A B`: the options in which two runs differ, and their outcomes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from asyncrl.cli.flags import Parser, shown
from asyncrl.cli.text_table import existing_run, number, text_table
from asyncrl.show.kept_run import KeptRun, differing_options, integer, table
from asyncrl.show.kept_run import number as number_of


def make_parser() -> Parser:
    """Flags of `asyncrl diff`."""
    parser = Parser("diff A B", "Show the options in which two runs differ, and their outcome.")
    parser.add_argument("A", help="directory of a run")
    parser.add_argument("B", help="directory of another")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print both tables."""
    runs = [existing_run(options.A), existing_run(options.B)]
    shared = set(runs[0].options) & set(runs[1].options)  # leaves out the options of two different algorithms
    rows = [
        (name, *(_text(value) for value in values))
        for name, values in differing_options(runs).items()
        if name.partition(".")[0] in shared
    ]
    print(text_table(("option", "A", "B"), rows) if rows else "the options are the same")
    print()
    first, second = (_outcome(run) for run in runs)
    outcome = [(name, first[name], second[name]) for name in first]
    print(text_table(("outcome", "A", "B"), outcome, right=("A", "B")))


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = tuple(value)
    return "not set" if value is None else shown(value) or "nothing"


def _outcome(run: KeptRun) -> dict[str, str]:
    summary = run.summary
    updates = integer(summary.get("updates"))
    return {
        "state": run.state,
        "stopped by": str(summary.get("stop_reason") or "-"),
        "best return": number(run.best),
        "final return": number(run.final),
        "steps": f"{run.env_steps:,}",
        "updates": "-" if updates is None else f"{updates:,}",
        "training seconds": _figure(summary, "train_seconds"),
        "steps/s": _figure(summary, "env_steps_per_second"),
        "updates/s": _figure(summary, "updates_per_second"),
        "samples per insert": _figure(table(summary, "samples_per_insert"), "achieved"),
        "staleness (updates)": _figure(table(summary, "staleness"), "mean"),
        "policy lag (updates)": _figure(table(summary, "policy_lag"), "mean"),
        "learner waits": _percent(summary, "learner_wait_fraction"),
        "actors wait": _percent(summary, "actor_wait_fraction"),
        "asyncrl": str(run.meta.get("asyncrl") or "-"),
        "commit": str(run.meta.get("git_commit") or "-")[:12],
    }


def _figure(record: Mapping[str, Any], name: str) -> str:
    return number(number_of(record.get(name)))


def _percent(record: Mapping[str, Any], name: str) -> str:
    value = number_of(record.get(name))
    return "-" if value is None else f"{value:.0%}"
