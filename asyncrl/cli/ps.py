"""`asyncrl ps`: list the running runs of this user."""

from __future__ import annotations

import argparse
import json

from asyncrl.cli.flags import Parser
from asyncrl.cli.text_table import text_table


def make_parser() -> Parser:
    """Flags of `asyncrl ps`."""
    parser = Parser(
        prog="asyncrl ps",
        usage="asyncrl ps [--json]",
        description="List your runs that go on now, in terminals, scripts and notebooks.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the list; returns the exit code."""
    from asyncrl.cli.live_runs import live_runs

    rows = [live.facts() for live in live_runs()]
    if options.json:
        print(json.dumps(rows))
    elif not rows:
        print("no run goes on")
    else:
        header = ("pid", "env", "algo", "state", "steps", "page", "run")
        cells = [
            (
                *(str(row["pid"]), row["env"] or "?", row["algo"] or "?", row["state"]),
                "?" if row["steps"] is None else f"{row['steps']:,}",
                *(row["url"] or "none", row["run_dir"] or "not kept"),
            )
            for row in rows
        ]
        print(text_table(header, cells, right=("pid", "steps")))
    return 0
