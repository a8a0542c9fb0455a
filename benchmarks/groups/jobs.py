"""Running jobs of two groups for `faults.py`: their start, their processes, and the faults put into them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncrl.groups.launch import free_port
from benchmarks.harness.report import FOLDER

DISK_BYTES = 8 << 20
"""Size of the small disks of `small_disks`; a run of `start` takes about 1 MB."""


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
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=run.parent,  # a run with a full disk leaves its policy there
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
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


@contextlib.contextmanager
def small_disks(run: Path) -> Iterator[None]:
    """Put rank 0's files and the other ranks' files in `run` on two disks of `DISK_BYTES`; needs root."""
    mounted: list[Path] = []
    try:
        for folder in (run, run / "groups"):
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
            mounted.append(folder)
        yield
    finally:
        for folder in reversed(mounted):
            subprocess.run(["umount", "--lazy", folder], check=False)


def fill_disk(rank: int) -> Callable[[Job], None]:
    """Fill the disk of a rank that `small_disks` has made."""

    def do(job: Job) -> None:
        folder = job.run / "groups" if rank else job.run
        with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    return do


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
