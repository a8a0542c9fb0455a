"""`asyncrl ls`: list the runs of a folder, the newest last, then other runs of this user that are in progress."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser
from asyncrl.cli.run_name import existing_folder, runs_folder
from asyncrl.cli.text_table import age, text_table
from asyncrl.errors import printable
from asyncrl.show.kept_run import KeptRun, find_runs
from asyncrl.show.numbers import interval, of_return
from asyncrl.show.run_groups import RunGroup, group_runs

if TYPE_CHECKING:
    from asyncrl.cli.live_runs import LiveRun

_COMMAND_LIMIT = 200


def make_parser() -> Parser:
    """Flags of `asyncrl ls`."""
    parser = Parser(
        "ls [FOLDER] [--groups] [--json]",
        "List the runs of a folder, the newest last, with process id and page of those in progress; without FOLDER "
        "also your runs in progress elsewhere, in scripts and notebooks. Runs that differ in an option other than "
        "the seed are named by it.",
    )
    parser.add_argument("FOLDER", nargs="?", help="folder of runs (runs, or ASYNCRL_RUNS)")
    parser.add_argument(
        "--groups", action="store_true", help="a line for all runs with the same options but the seed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from asyncrl.cli.live_runs import live_runs

    if options.groups:
        return _print_groups(group_runs(find_runs(existing_folder(options.FOLDER, "ls"))), options.json)
    lives = live_runs()
    # A run that keeps nothing, or is in progress elsewhere, needs no folder of runs.
    folder = existing_folder(options.FOLDER, "ls") if options.FOLDER or not lives else runs_folder()
    live_at = {live.run_dir.resolve(): live for live in lives if live.run_dir is not None}
    found: list[tuple[KeptRun | None, LiveRun | None]] = [
        (kept, live_at.pop(kept.path.resolve(), None)) for kept in find_runs(folder)
    ]
    if not options.FOLDER:
        found += [(KeptRun(path), live) for path, live in live_at.items()]
        found += [(None, live) for live in lives if live.run_dir is None]
    groups = group_runs([kept for kept, _ in found if kept is not None])
    names = {run.path: group.name for group in groups for run in group.runs}
    rows = [
        _facts(kept, live, folder, names[kept.path] if kept is not None else None) for kept, live in found
    ]
    if options.json:
        print(json.dumps(rows))
    elif not rows:
        print(f"there are no runs in {folder}")
    else:
        below = [line for _, live in found if live is not None and (line := _line_below(live))]
        print("\n".join([_table(rows), *([""] if below else []), *below]))


def _line_below(live: LiveRun) -> str:
    """Line below the table, where it stays whole: the page's address, or the command of a run that nothing else tells.

    The address has the token, so that the page's buttons work.
    """
    if page := live.page():
        return f"page of {live.pid}  {page}"
    command = printable(" ".join(live.command.split()), _COMMAND_LIMIT)
    return f"command of {live.pid}  {command}" if command else ""


def _print_groups(groups: Sequence[RunGroup], as_json: bool) -> None:
    """One row for every group, with statistics over the final returns of its runs that have one."""
    import numpy as np

    from asyncrl.show.aggregates import estimate, iqm, mean

    rows: list[dict[str, Any]] = []
    for group in groups:
        finals = np.array([run.final for run in group.runs if run.final is not None])
        over = estimate([finals], mean) if finals.size else None
        rows.append(
            {
                "env": group.env,
                "group": group.name,
                "runs": len(group.runs),
                "evaluated": int(finals.size),
                "mean": over and over.value,
                "low": over and over.low,
                "high": over and over.high,
                "iqm": float(iqm([finals])) if finals.size else None,
                "best": max((run.best for run in group.runs if run.best is not None), default=None),
            }
        )
    if as_json:
        return print(json.dumps(rows))
    print(_groups_table(rows) if rows else "there are no runs")


def _groups_table(rows: Sequence[dict[str, Any]]) -> str:
    bounds = "95% interval of the mean"
    header = ("env", "group", "runs", "mean final", "IQM", bounds, "best")
    cells = [
        (
            row["env"] or "?",
            row["group"],
            str(row["runs"])
            if row["evaluated"] in (0, row["runs"])
            else f"{row['evaluated']} of {row['runs']}",
            *map(of_return, (row["mean"], row["iqm"])),
            interval(row["low"], row["high"]),
            of_return(row["best"]),
        )
        for row in rows
    ]
    return text_table(header, cells, right=header[2:], whole=header[2:], apart=header[:2])


def _facts(kept: KeptRun | None, live: LiveRun | None, folder: Path, group: str | None) -> dict[str, Any]:
    """One row, in the form of `--json`; a run in progress that keeps nothing has no `kept`."""
    stats = live.stats if live is not None else {}
    row: dict[str, Any] = {
        "run": None,
        "env": str(stats.get("env") or ""),
        "algo": str(stats.get("algo") or ""),
        "group": group,
        "seed": None,
        "tags": kept.tags if kept is not None else [],
        "state": "running",
        "steps": stats.get("env_steps"),
        "best": None,
        "final": None,
        "age_seconds": None,
        "pid": live.pid if live is not None else None,
        "url": live.url if live is not None else None,
        "command": (live.command if live is not None else "") or None,
    }
    if kept is not None:
        own = kept.path != folder and kept.path.is_relative_to(folder)
        row |= {
            "run": str(kept.path.relative_to(folder) if own else kept.path),
            "env": kept.env,
            "algo": kept.algo,
            "seed": kept.seed,
            "state": kept.state,
            "steps": stats.get("env_steps") or kept.env_steps,
            "best": kept.best,
            "final": kept.final,
            "age_seconds": max(0.0, time.time() - kept.changed),
            "pid": row["pid"] or kept.pid or None,
        }
    return row


def _final(row: dict[str, Any]) -> str:
    """The final return; a run that has ended without an evaluation says so."""
    never = row["final"] is None and row["best"] is None and row["state"] != "running"
    return "not evaluated" if never else of_return(row["final"])


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ["run", "env", "algo", "seed", "state", "steps", "best", "final", "age", "pid"]
    cells = [
        [
            *(row["run"] or "not kept", row["env"] or "?", row["group"] or row["algo"] or "?"),
            *("-" if row["seed"] is None else str(row["seed"]), row["state"]),
            *("?" if row["steps"] is None else f"{row['steps']:,}", of_return(row["best"]), _final(row)),
            *("-" if row["age_seconds"] is None else age(row["age_seconds"]), str(row["pid"] or "")),
        ]
        for row in rows
    ]
    if not any(row["pid"] for row in rows):
        header, cells = header[:-1], [own[:-1] for own in cells]
    return text_table(header, cells, right=("seed", "steps", "best", "final", "age", "pid"), whole=("run",))
