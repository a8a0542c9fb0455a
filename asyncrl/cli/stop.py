"""`asyncrl stop RUN`: stop a run in good order, as its first Ctrl-C does."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cli.flags import Parser, finite_number
from asyncrl.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncrl.cli.live_runs import LiveRun

LOOK_SECONDS = 0.1


def make_parser() -> Parser:
    """Flags of `asyncrl stop`."""
    parser = Parser(
        "stop RUN [--wait SECONDS]", "Stop a run: it writes a checkpoint and its summary, then it ends."
    )
    parser.add_argument("RUN", help="directory of the run, or the process id that `asyncrl ls` shows")
    wait = functools.partial(finite_number, or_zero=True)
    parser.add_argument(
        "--wait", type=wait, metavar="SECONDS", default=60.0, help="how long to wait for its end (60)"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Stop the run and wait for its end; returns the exit code."""
    live = _find(options.RUN)
    if not live.ask_to_stop():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(live.pid, signal.SIGINT)
    deadline = time.monotonic() + options.wait
    while _in_progress(live):
        if time.monotonic() > deadline:
            print(f"process {live.pid} was asked to stop and has not ended after {options.wait:g} s")
            return 1
        time.sleep(LOOK_SECONDS)
    print(f"stopped {live.run_dir or f'process {live.pid}'}")
    return 0


def _find(name: str) -> LiveRun:
    """Find a live run by its directory or process id. Raises `ConfigurationError` if there is none."""
    from asyncrl.cli.live_runs import live_runs

    path = Path(name).expanduser()
    found = [
        live
        for live in live_runs()
        if str(live.pid) == name or (live.run_dir is not None and live.run_dir.resolve() == path.resolve())
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(
            f"process {name} has {len(found)} runs",
            facts={"runs": ", ".join(str(live.run_dir) for live in found)},
            fix="name the directory of one",
        )
    raise ConfigurationError(
        f"no run is in progress in {name}", fix="`asyncrl ls` shows the process ids of those that are"
    )


def _in_progress(live: LiveRun) -> bool:
    from asyncrl.show.kept_run import KeptRun

    if live.run_dir is not None:
        return KeptRun(live.run_dir).pid is not None
    from asyncrl.cli.live_runs import live_runs

    return any(other.pid == live.pid for other in live_runs())
