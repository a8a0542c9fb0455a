"""Faults of groups: each kind of fault in each fusion, and the outcome of the run.

Every case starts `asyncrl train` with two groups in its own process group, waits until both groups train, injects the
fault, and checks: exit code, seconds until the run ends, its messages, its last checkpoint (every byte), and processes
left. `CASES` has the allowed outcomes; the script fails on any other. Full disks are small disks in memory; they need
root.

    python -m benchmarks.groups.faults --at-once 2
    python -m benchmarks.groups.faults --only kill-rank-1 --fusion async
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncrl.errors import CheckpointError
from asyncrl.storage.checkpoint import read_policy
from benchmarks.groups.jobs import (
    Job,
    ended,
    fill_disk,
    kill,
    launcher,
    note_children,
    pause,
    running,
    small_disks,
    start,
    suspend,
    trains,
    until,
)
from benchmarks.harness.report import Report, script_parser

FUSIONS = ("gradients", "average", "async")
END_SECONDS = 180.0
START_SECONDS = 240.0


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        do: injects the fault.
        ends: outcome for each fusion: `error` (names the rank), `goes on` (the run completes), or `interrupted`.
        within: time limit for an error in seconds.
        torchrun: whether torchrun starts the run, with restarts.
        disks: whether the files of rank 0 and of the others lie on two small disks.
    """

    do: Callable[[Job], None]
    ends: dict[str, str]
    within: float = 20.0
    torchrun: bool = False
    disks: bool = False


LOST = {"gradients": "error", "average": "error"}
ALL_ERROR, ALL_GO_ON = dict.fromkeys(FUSIONS, "error"), dict.fromkeys(FUSIONS, "goes on")
CASES = {
    "kill-rank-1": Case(kill(1), {**LOST, "async": "goes on"}),
    "kill-rank-0": Case(kill(0), ALL_ERROR),
    "suspend-rank-1": Case(suspend(1), {**LOST, "async": "goes on"}, within=60.0),
    "suspend-rank-0": Case(suspend(0), ALL_ERROR, within=75.0),
    "pause-rank-1-for-10-s": Case(pause(1), ALL_GO_ON),
    "interrupt-launcher": Case(launcher(signal.SIGINT), dict.fromkeys(FUSIONS, "interrupted")),
    "kill-launcher": Case(launcher(signal.SIGKILL), dict.fromkeys(FUSIONS, "interrupted")),
    "kill-rank-1-under-torchrun": Case(
        kill(1), {"gradients": "goes on", "average": "goes on"}, torchrun=True
    ),
    "kill-rank-0-under-torchrun": Case(
        kill(0), {"gradients": "goes on", "average": "goes on"}, torchrun=True
    ),
    "full-disk-on-rank-1": Case(fill_disk(1), ALL_GO_ON, disks=True),
    "full-disk-on-rank-0": Case(fill_disk(0), ALL_GO_ON, disks=True),
}


def checkpoint_steps(job: Job) -> int | None:
    """Steps of the last checkpoint, whose every byte is read and checked; None if it is missing or damaged."""
    try:
        return read_policy(job.run / "checkpoints" / "latest").meta.env_steps
    except CheckpointError:
        return None


def outcome_of(job: Job, seconds: float | None, output: str) -> tuple[str, dict[str, Any]]:
    """Outcome of the run, and the facts that show it."""
    summary: dict[str, Any] = {}
    if (job.run / "summary.json").exists():
        summary = json.loads((job.run / "summary.json").read_text())
    told = next(
        (line.strip() for line in output.splitlines() if "ASYNC032" in line or "ASYNC040" in line), ""
    )
    found = {
        "exit_code": job.process.poll(),
        "seconds": seconds,
        "state": summary.get("state"),
        "env_steps": summary.get("env_steps"),
        "told": told or next((line for line in output.splitlines() if "ank " in line), "")[:160],
        "checkpoint_env_steps": checkpoint_steps(job),
    }
    finished = summary.get("state") == "finished" or "stopped by    total_steps" in output
    if finished and job.process.poll() in (0, -9):
        return "goes on", found
    if summary.get("state") in ("interrupted", "stopped"):
        return "interrupted", found
    return "error" if found["told"] else "unknown", found


def run_case(name: str, fusion: str, folder: Path) -> dict[str, Any]:
    """Run one case; returns its outcome and facts."""
    run = folder / f"{name}-{fusion}" / "run"
    run.parent.mkdir(parents=True)
    with small_disks(run) if CASES[name].disks else contextlib.nullcontext():
        found = run_job(CASES[name], fusion, run)
    print(name, fusion, json.dumps(found, indent=1), flush=True)
    return found


def run_job(case: Case, fusion: str, run: Path) -> dict[str, Any]:
    """Run a job, put the fault into it, and end whatever is left."""
    everyone: set[psutil.Process] = set()
    job = start(fusion, run, "12k" if case.ends[fusion] == "goes on" else "10M", case.torchrun)
    try:
        if not until(lambda: trains(job) or job.process.poll() is not None, START_SECONDS):
            return {"outcome": "did not start", "output": (run.parent / "output").read_text()[-2000:]}
        began = time.monotonic()
        note_children(job, everyone)
        case.do(job)
        over = until(lambda: ended(job, everyone), END_SECONDS)
        seconds = round(time.monotonic() - began, 1)
        until(lambda: not running(everyone), 20.0)
        left = running(everyone)
        output = (run.parent / "output").read_text()
        outcome, found = outcome_of(job, seconds, output)
        stopped = [p for p in left if p.status() == psutil.STATUS_STOPPED]
        return {
            "outcome": outcome,
            "allowed": outcome == case.ends[fusion]
            and len(left) == len(stopped)
            and found["checkpoint_env_steps"] is not None
            and (outcome != "error" or seconds <= case.within),
            "left": len(left) - len(stopped),
            "left_suspended": len(stopped),
            "over": over,
            **found,
            **({} if outcome == case.ends[fusion] else {"output": output[-1500:]}),
        }
    finally:
        for process in running(everyone):
            process.kill()
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--only", choices=CASES, action="append", help="this fault; may be given again")
    parser.add_argument("--fusion", choices=FUSIONS, action="append", help="this fusion; may be given again")
    parser.add_argument("--at-once", type=int, default=1, help="cases that run side by side")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="groups-faults-"))
    report = Report("groups_faults" if not (options.only or options.fusion) else "groups_faults_some")
    cases = [
        (name, fusion)
        for name in options.only or CASES
        for fusion in options.fusion or FUSIONS
        if fusion in CASES[name].ends
    ]
    with ThreadPoolExecutor(options.at_once) as executor:
        results = list(executor.map(lambda case: run_case(case[0], case[1], folder), cases))
    for (name, fusion), found in zip(cases, results, strict=True):
        report.note(f"{name}/{fusion}", found)
    wrong = [f"{n}/{f}" for (n, f), found in zip(cases, results, strict=True) if not found.get("allowed")]
    shutil.rmtree(folder, ignore_errors=True)
    report.note("cases_at_once", options.at_once)
    report.note("not_allowed", wrong)
    report.write()
    if wrong:
        sys.exit(f"outcomes that are not allowed: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
