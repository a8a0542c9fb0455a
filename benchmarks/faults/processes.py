"""Runs of the command line in which one process gets a signal at a random moment, for the section `processes`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

TARGETS = ("main_sigint", "server", "evaluator", "main_sigkill", "main_sigterm")
LIMIT_SECONDS = 300.0
"""Time after the signal at which a run counts as hung; ending takes seconds, or a minute on a busy machine."""
ORPHAN_SECONDS = 2.0
MARK = "ASYNCRL_FAULT_INJECTION"


@dataclass
class Outcome:
    """Counts over all runs with one target.

    Attributes:
        runs: number of runs.
        hit: runs that had the target when the signal was due.
        hangs: runs that did not end.
        orphans: processes left two seconds after the end of the main process.
        leaks: files left in /dev/shm.
        checkpoints: checkpoint files read.
        damaged: checkpoint files that did not load.
        locked: run directories whose lock was still held.
        untold: runs that ended in good order without a summary, or left the address of their page.
        exit_codes: number of runs by exit code.
        seconds: time from the signal to the end of the main process.
        stories: findings in words.
    """

    runs: int = 0
    hit: int = 0
    hangs: int = 0
    orphans: int = 0
    leaks: int = 0
    checkpoints: int = 0
    damaged: int = 0
    locked: int = 0
    untold: int = 0
    exit_codes: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)


def marked(token: str) -> set[int]:
    """Processes whose environment contains the token, zombies excluded."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
    return found


def descendants(main: int) -> tuple[set[int], set[int]]:
    """Process ids of a run's fork server and evaluator; empty while there is none."""
    servers, evaluators = set(), set()
    with contextlib.suppress(psutil.Error, OSError):
        for guardian in psutil.Process(main).children():
            for server in guardian.children():
                servers.add(server.pid)
                for child in server.children():
                    maps = Path(f"/proc/{child.pid}/maps").read_text()
                    if "memfd:weights" in maps and "memfd:ring" not in maps:
                        evaluators.add(child.pid)
    return servers, evaluators


def one_run(target: str, moment: float, outcome: Outcome) -> None:
    """Start a run, send the signal after `moment` seconds, and check what is left."""
    token, before = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        command = [
            sys.executable, "-m", "asyncrl", "train", "CartPole-v1", "--algo", "dqn", "--run-dir", str(run),
            "--actors", "1", "--envs-per-actor", "4", "--http", "auto", "--steps", "3k",
            "--checkpoint-interval-seconds", "0.1", "--eval-interval-steps", "500", "--eval-episodes", "3",
            "--target-eval-episodes", "10", "--dqn.learning-starts", "200", "--dqn.replay-capacity", "4000",
        ]  # fmt: skip
        root = str(Path(__file__).resolve().parents[2])
        environ = {**os.environ, MARK: token, "PYTHONPATH": root, "NO_COLOR": "1"}
        main = subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell's background jobs ignore SIGINT, and their children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            _send(target, moment, main, outcome)
            sent = time.monotonic()
            try:
                said, _ = main.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                outcome.hangs += 1
                outcome.stories.append(f"{target} after {moment:.2f} s: hangs")
                main.kill()
                said, _ = main.communicate()
                outcome.stories.append(said[-600:])
            outcome.seconds.append(time.monotonic() - sent)
            code = str(main.returncode)
            outcome.exit_codes[code] = outcome.exit_codes.get(code, 0) + 1
            if "Traceback" in said:
                outcome.stories.append(f"{target} after {moment:.2f} s: {said[-600:]}")
            deadline = time.monotonic() + ORPHAN_SECONDS
            while (left := marked(token)) and time.monotonic() < deadline:
                time.sleep(0.02)
            outcome.orphans += len(left)
            outcome.leaks += len(set(os.listdir("/dev/shm")) - before)
            _look_at(run, main.returncode, outcome)
        finally:
            for pid in {main.pid} & marked(token) | marked(token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            main.wait()


def _send(target: str, moment: float, main: subprocess.Popen[str], outcome: Outcome) -> None:
    deadline = time.monotonic() + moment
    if target.startswith("main_"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            main.wait(moment)
        outcome.hit += main.poll() is None
        main.send_signal(getattr(signal, target.removeprefix("main_").upper()))
        return
    while main.poll() is None:
        servers, evaluators = descendants(main.pid)
        found = servers if target == "server" else evaluators
        if found and time.monotonic() >= deadline:
            outcome.hit += 1
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.005)


def _look_at(run: Path, exit_code: int, outcome: Outcome) -> None:
    """Check the files that a run has left."""
    _read_all(run / "checkpoints", outcome)
    with contextlib.suppress(FileNotFoundError), (run / ".lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            outcome.locked += 1
    learned = (run / "checkpoints" / "latest").exists()
    if exit_code >= 0 and ((learned and not (run / "summary.json").exists()) or (run / "http.json").exists()):
        outcome.untold += 1
        outcome.stories.append(f"exit code {exit_code}: {sorted(path.name for path in run.iterdir())}")


def _read_all(folder: Path, outcome: Outcome) -> None:
    from asyncrl.errors import CheckpointError
    from asyncrl.storage.checkpoint import read_policy

    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        outcome.checkpoints += 1
        try:
            read_policy(path)
        except CheckpointError as error:
            outcome.damaged += 1
            outcome.stories.append(str(error))


def kill_runs(target: str, count: int, minutes: float, seed: int) -> Outcome:
    """Run `count` runs, or fewer within the time; each gets the signal at a random moment of its usual duration."""
    rng, outcome = random.Random(f"{target} {seed}"), Outcome()
    started = time.monotonic()
    undisturbed: Any = Outcome()
    one_run("main_sigterm", 600.0, undisturbed)
    usual = time.monotonic() - started
    for _ in range(count):
        if time.monotonic() > started + 60 * minutes:
            break
        outcome.runs += 1
        one_run(target, rng.uniform(0.0, usual), outcome)
    return outcome
