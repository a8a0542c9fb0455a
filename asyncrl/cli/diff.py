"""`asyncrl diff A B`: the options in which two runs differ, and their outcomes."""

from __future__ import annotations

import argparse
from typing import Any

from asyncrl.cli.flags import Parser, shown
from asyncrl.cli.text_table import existing_run, number, text_table
from asyncrl.show.kept_run import KeptRun, differing_options

NOT_OPTIONS = ("trainer.run_dir", "trainer.env_file")
"""Options that name a run's location, which are not compared."""


def make_parser() -> Parser:
    """Flags of `asyncrl diff`."""
    parser = Parser(
        prog="asyncrl diff",
        usage="asyncrl diff A B",
        description="Show the options in which two runs differ, and their outcome.",
    )
    parser.add_argument("A", help="directory of a run")
    parser.add_argument("B", help="directory of another")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print both tables; returns the exit code."""
    runs = [existing_run(options.A), existing_run(options.B)]
    differing = differing_options(runs)
    shared = set(runs[0].options) & set(runs[1].options)  # leaves out the options of two different algorithms
    rows = [
        (name, *(_text(value) for value in values))
        for name, values in differing.items()
        if name not in NOT_OPTIONS and name.partition(".")[0] in shared
    ]
    print(text_table(("option", "A", "B"), rows) if rows else "the options are the same")
    print()
    first, second = (_outcome(run) for run in runs)
    outcome = [(name, first[name], second[name]) for name in first]
    print(text_table(("outcome", "A", "B"), outcome, right=("A", "B")))
    return 0


def _text(value: Any) -> str:
    if isinstance(value, list):
        value = tuple(value)
    return "not set" if value is None else shown(value) or "nothing"


def _outcome(run: KeptRun) -> dict[str, str]:
    summary = run.summary
    lag, staleness = summary.get("policy_lag", {}), summary.get("staleness", {})
    return {
        "state": run.state,
        "stopped by": str(summary.get("stop_reason") or "-"),
        "best return": number(run.best),
        "final return": number(run.final),
        "steps": f"{run.env_steps:,}",
        "updates": _count(summary.get("updates")),
        "training seconds": number(summary.get("train_seconds")),
        "steps/s": number(summary.get("env_steps_per_second")),
        "updates/s": number(summary.get("updates_per_second")),
        "samples per insert": number(summary.get("samples_per_insert", {}).get("achieved")),
        "staleness (updates)": number(staleness.get("mean")),
        "policy lag (updates)": number(lag.get("mean")),
        "learner waits": _percent(summary.get("learner_wait_fraction")),
        "actors wait": _percent(summary.get("actor_wait_fraction")),
        "asyncrl": str(run.meta.get("asyncrl") or "-"),
        "commit": str(run.meta.get("git_commit") or "-")[:12],
    }


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
