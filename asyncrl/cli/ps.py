"""`asyncrl ps`: list the running runs of this user."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser
from asyncrl.cli.text_table import text_table

if TYPE_CHECKING:
    from asyncrl.cli.live_runs import LiveRun


def make_parser() -> Parser:
    """Flags of `asyncrl ps`."""
    parser = Parser("ps [--json]", "List your runs that go on now, in terminals, scripts and notebooks.")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the list."""
    from asyncrl.cli.live_runs import live_runs

    lives = live_runs()
    if options.json:
        print(json.dumps([live.facts() for live in lives]))
    elif not lives:
        print("no run goes on")
    else:
        header = ("pid", "env", "algo", "state", "steps", "run", "page")
        print(text_table(header, [_cells(live) for live in lives], right=("pid", "steps"), whole=("page",)))


def _cells(live: LiveRun) -> tuple[str, ...]:
    """Cells of one run. The page's address has the token, so that its buttons work."""
    row = live.facts()
    return (
        *(str(row["pid"]), row["env"] or "?", row["algo"] or "?", row["state"]),
        "?" if row["steps"] is None else f"{row['steps']:,}",
        *(row["run_dir"] or "not kept", live.page() or "none"),
    )
