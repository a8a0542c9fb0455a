"""`asyncrl ls`: list the runs of a folder, the newest last."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.cli.flags import Parser
from asyncrl.cli.run_name import existing_folder
from asyncrl.cli.text_table import age, number, text_table
from asyncrl.show.kept_run import KeptRun, find_runs


def make_parser() -> Parser:
    """Flags of `asyncrl ls`."""
    parser = Parser("ls [FOLDER] [--json]", "List the runs of a folder, the newest last.")
    parser.add_argument("FOLDER", nargs="?", help="folder of runs (runs, or ASYNCRL_RUNS)")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    folder = existing_folder(options.FOLDER, "ls")
    runs = [_facts(run, folder) for run in find_runs(folder)]
    if options.json:
        print(json.dumps(runs))
    elif not runs:
        print(f"no run lies in {folder}")
    else:
        print(_table(runs))


def _facts(run: KeptRun, folder: Path) -> dict[str, Any]:
    """One row, in the form of `--json`."""
    return {
        "run": str(run.path.relative_to(folder)) if run.path != folder else str(run.path),
        "env": run.env,
        "algo": run.algo,
        "seed": run.seed,
        "state": run.state,
        "steps": run.env_steps,
        "best": run.best,
        "final": run.final,
        "age_seconds": max(0.0, time.time() - run.changed),
    }


def _final(run: dict[str, Any]) -> str:
    """The final return, or that a run which has ended has none, in the words of its own last lines."""
    never = run["final"] is None and run["best"] is None and run["state"] != "running"
    return "not evaluated" if never else number(run["final"])


def _table(runs: Sequence[dict[str, Any]]) -> str:
    header = ("run", "env", "algo", "seed", "state", "steps", "best", "final", "age")
    rows = [
        (
            *(run["run"], run["env"], run["algo"], "-" if run["seed"] is None else str(run["seed"])),
            *(run["state"], f"{run['steps']:,}", number(run["best"]), _final(run)),
            age(run["age_seconds"]),
        )
        for run in runs
    ]
    return text_table(header, rows, right=("seed", "steps", "best", "final", "age"))
