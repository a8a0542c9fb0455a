"""Faults of groups: each kind of fault in each fusion, and the outcome of the run.

Every case starts `asyncrl train` with two groups in its own process group, waits until both groups train, injects the
fault, and checks: exit code, seconds until the run ends, its messages, its last checkpoint, and processes left. `CASES`
has the allowed outcomes; the script fails on any other.

    python benchmarks/groups_faults.py
    python benchmarks/groups_faults.py --only kill-rank-1 --fusion async
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from harness import Report

from asyncrl.groups.launch import free_port

FUSIONS = ("gradients", "average", "async")
END_SECONDS = 180.0
START_SECONDS = 240.0


@dataclass(frozen=True)
class Job:
    """A running job."""

    process: subprocess.Popen[str]
    run: Path

    def rank(self, rank: int) -> psutil.Process:
        """Process of a rank."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                line = " ".join(child.cmdline())
                runs = "asyncrl.run.rank" in line or "asyncrl.trainer.rank" in line or "asyncrl train" in line
                own = child.environ()
                if runs and own.get("RANK") == str(rank) and child.pid != self.process.pid:
                    return child
            except psutil.Error:
                continue
        raise RuntimeError(f"rank {rank} is not there")

    def statistics(self) -> dict[str, Any]:
        """Newest line of the run's metrics."""
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def steps(self) -> int:
        """Environment steps so far; 0 before the first report."""
        try:
            return int(self.statistics().get("time/total_timesteps", 0))
        except (OSError, ValueError, IndexError):
            return 0


def start(fusion: str, run: Path, steps: str, torchrun: bool) -> Job:
    options = ["CartPole-v1", "--algo", "dqn", "--steps", steps, "--actors", "1", "--envs-per-actor", "8"]
    options += ["--fusion", fusion, "--fusion-interval", "8", "--run-dir", str(run), "--http", "off"]
    options += ["--eval-interval-steps", "none", "--target-eval-episodes", "2"]
    options += ["--checkpoint-interval-seconds", "2"]
    command = [sys.executable, "-m", "asyncrl", "train", *options, "--groups", "2"]
    if torchrun:
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "2",
        ]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        command = [*launcher, "-m", "asyncrl", "train", *options]
    output = (run.parent / "output").open("w")
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    return Job(process, run)


def until(condition: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def trains(job: Job) -> bool:
    """Whether both groups have taken steps and there is a checkpoint."""
    groups = [p for p in (job.run / "groups").glob("*/metrics.jsonl") if p.stat().st_size]
    return job.steps() > 2000 and bool(groups) and (job.run / "checkpoints" / "latest").exists()


def kill(rank: int) -> Callable[[Job], None]:
    return lambda job: job.rank(rank).send_signal(signal.SIGKILL)


def suspend(rank: int) -> Callable[[Job], None]:
    """Stop a rank and its actors by SIGSTOP, like a machine without network."""

    def do(job: Job) -> None:
        process = job.rank(rank)
        for one in (process, *process.children(recursive=True)):
            one.suspend()

    return do


def pause(rank: int) -> Callable[[Job], None]:
    """Suspend a rank for ten seconds, less than `SILENT_SECONDS`."""

    def do(job: Job) -> None:
        suspend(rank)(job)
        time.sleep(10.0)
        process = job.rank(rank)
        for one in (process, *process.children(recursive=True)):
            one.resume()

    return do


def launcher(number: signal.Signals) -> Callable[[Job], None]:
    return lambda job: job.process.send_signal(number)


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        do: injects the fault.
        ends: outcome for each fusion: `error` (names the rank), `goes on` (the run completes), or `interrupted`.
        within: time limit for an error in seconds.
        torchrun: whether torchrun starts the run, with restarts.
    """

    do: Callable[[Job], None]
    ends: dict[str, str]
    within: float = 20.0
    torchrun: bool = False


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
}


def outcome_of(job: Job, seconds: float | None, output: str) -> tuple[str, dict[str, Any]]:
    """Outcome of the run, and the facts that show it."""
    summary: dict[str, Any] = {}
    if (job.run / "summary.json").exists():
        summary = json.loads((job.run / "summary.json").read_text())
    told = next((line.strip() for line in output.splitlines() if "ASYNC032" in line), "")
    found = {
        "exit_code": job.process.poll(),
        "seconds": seconds,
        "state": summary.get("state"),
        "env_steps": summary.get("env_steps"),
        "told": told or next((line for line in output.splitlines() if "ank " in line), "")[:160],
        "checkpoint": (job.run / "checkpoints" / "latest").exists(),
    }
    if summary.get("state") == "finished" and job.process.poll() in (0, -9):
        return "goes on", found
    if summary.get("state") in ("interrupted", "stopped"):
        return "interrupted", found
    return "error" if found["told"] else "unknown", found


def note_children(job: Job, everyone: set[psutil.Process]) -> None:
    """Add the job's current processes."""
    with contextlib.suppress(psutil.Error):
        everyone.update(psutil.Process(job.process.pid).children(recursive=True))


def ended(job: Job, everyone: set[psutil.Process]) -> bool:
    """Whether the launcher has ended; adds its current processes to `everyone`."""
    note_children(job, everyone)
    return job.process.poll() is not None


def running(everyone: set[psutil.Process]) -> list[psutil.Process]:
    """Processes that still run."""
    left = []
    for process in everyone:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except psutil.Error:
            continue
    return left


def run_case(name: str, fusion: str, folder: Path) -> dict[str, Any]:
    case, run = CASES[name], folder / f"{name}-{fusion}" / "run"
    run.parent.mkdir(parents=True)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, action="append", help="this fault; may be given again")
    parser.add_argument("--fusion", choices=FUSIONS, action="append", help="this fusion; may be given again")
    options = parser.parse_args()
    folder, wrong = Path(tempfile.mkdtemp(prefix="groups-faults-")), []
    report = Report("groups_faults" if not options.only else "groups_faults_some")
    for name in options.only or CASES:
        for fusion in options.fusion or FUSIONS:
            if fusion not in CASES[name].ends:
                continue
            found = run_case(name, fusion, folder)
            print(name, fusion, json.dumps(found, indent=1), flush=True)
            report.note(f"{name}/{fusion}", found)
            if not found.get("allowed"):
                wrong.append(f"{name}/{fusion}")
    shutil.rmtree(folder, ignore_errors=True)
    report.note("not_allowed", wrong)
    report.write()
    if wrong:
        sys.exit(f"outcomes that are not allowed: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
