"""Resources of long runs whose processes are killed, for the section `slopes`: memory, descriptors, threads, sum tree.

    python -m benchmarks.faults.slopes dqn       the run itself, until its standard input ends

The run is a separate process, so that the measurement does not use its memory. An actor is killed every few seconds,
the evaluator every minute and the fork server, and with it its children, every five minutes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.faults.actors import memfds
from benchmarks.faults.counting import CountingEnv
from benchmarks.faults.processes import descendants
from benchmarks.harness.report import Report

SAMPLE_SECONDS = 5.0
EVALUATOR_SECONDS, SERVER_SECONDS = 60.0, 300.0
STEP_SECONDS = 0.001
WARM_SHARE = 1 / 3
"""Fraction of the run left out of slopes, in which allocators, caches and windows fill."""
UNITS = {"private": "kB/min", "shared": "kB/min", "descriptors": "/min", "threads": "/min", "memfds": "/min"}
HEAP = {"python_blocks": "/min", "malloc_used": "kB/min", "malloc_free": "kB/min", "malloc_mapped": "kB/min"}
"""Figures of the main process's heap: a leak increases `used`, fragmentation increases `free`."""


class SlowCountingEnv(CountingEnv):
    """The counting environment, slowed to leave processor time to other programs."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep, then take one step."""
        time.sleep(STEP_SECONDS)
        return super().step(action)


def held(pid: int) -> dict[str, float]:
    """Resources of a process: private and shared memory in kB, numbers of descriptors, threads and memfds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kilobytes = {name: float(status[name].split()[0]) for name in ("RssAnon", "RssShmem")}
    return {
        "private": kilobytes["RssAnon"],
        "shared": kilobytes["RssShmem"],
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": float(status["Threads"]),
        "memfds": memfds(pid),
    }


@dataclass
class Watched:
    """One run of the script, its samples and the kills it got.

    Attributes:
        samples: time in seconds and the resources of the main process and the fork server.
        told: lines printed by the run every few seconds.
        kills: number of kills, by the kind of process.
    """

    algorithm: str
    seed: int
    every_seconds: float
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    told: list[dict[str, float]] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=lambda: {"actors": 0, "evaluator": 0, "server": 0})

    def __post_init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults.slopes", self.algorithm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self._random = random.Random(f"{self.algorithm} {self.seed}")
        self._every = {"actors": self.every_seconds, "evaluator": EVALUATOR_SECONDS, "server": SERVER_SECONDS}
        self._next: dict[str, float] = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.told.append(json.loads(line))

    def look(self) -> None:
        """Take a sample and kill processes that are due. Raises `SystemExit` if the run has ended."""
        if self._process.poll() is not None:
            raise SystemExit(f"{self.algorithm} ended with exit code {self._process.returncode}")
        servers, evaluators = descendants(self._process.pid)
        found = {f"main_{what}": value for what, value in held(self._process.pid).items()}
        with contextlib.suppress(OSError, StopIteration):
            found |= {f"server_{what}": value for what, value in held(next(iter(servers))).items()}
            self.samples.append((time.monotonic(), found))
        if self.told and self.told[-1]["updates"] > 0:
            actors = {child.pid for server in servers for child in _children(server)} - evaluators
            self._kill("actors", actors)
            self._kill("evaluator", evaluators)
            self._kill("server", servers)

    def _kill(self, what: str, pids: set[int]) -> None:
        """Kill one of these processes if a kill is due."""
        now = time.monotonic()
        if pids and now >= self._next.setdefault(what, now + self._every[what]):
            self._next[what] = now + self._random.uniform(0.5, 1.5) * self._every[what]
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(sorted(pids)), signal.SIGKILL)
                self.kills[what] += 1

    def end(self) -> None:
        """End the run in good order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._reading.join(10)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children())
    except psutil.Error:
        return []


def slopes_of(samples: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """Least-squares slope per minute of every figure in the samples, after the warm-up."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    minutes = np.array([when for when, _ in warm]) / 60
    return {
        what: float(np.polyfit(minutes - minutes[0], [found[what] for _, found in warm], 1)[0])
        for what in warm[0][1]
    }


def run_slopes(minutes: float, algorithms: list[str], every_seconds: float, seed: int) -> None:
    """Watch one run of each algorithm, all at the same time, and write their slopes."""
    report = Report("faults_slopes")
    runs = [Watched(name, seed, every_seconds) for name in algorithms]
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for run in runs:
            run.look()
        time.sleep(SAMPLE_SECONDS)
    for run in runs:
        run.end()
        _report(report, run)
    report.write()


def _report(report: Report, run: Watched) -> None:
    name = run.algorithm
    for what, count in run.kills.items():
        report.add(f"{name}_kills_of_{what}", [count], "")
    for what, slope in slopes_of(run.samples).items():
        report.add(f"{name}_slope_of_{what}", [slope], UNITS[what.partition("_")[2]], "0")
    last = run.told[-1]
    for what in ("updates", "env_steps", "restarts"):
        report.add(f"{name}_{what}", [last[what]], "")
    if trees := [told for told in run.told if told.get("leaves")]:
        priority = slopes_of([(told["seconds"], {"mean": told["root"] / told["leaves"]}) for told in trees])
        slope = priority["mean"] * trees[-1]["leaves"] / trees[-1]["root"]
        report.add(f"{name}_slope_of_mean_priority", [100 * slope], "%/min", "0")
        report.add(f"{name}_root_off_sum_of_leaves", [max(told["off"] for told in trees)], "relative", "0")
    heaps = [(told["seconds"], {what: told[what] for what in HEAP if what in told}) for told in run.told]
    for what, slope in slopes_of(heaps).items():
        report.add(f"{name}_slope_of_{what}", [slope], HEAP[what], "0")
    stride = max(1, len(run.samples) // 60)
    start = run.samples[0][0]
    report.note(
        f"{name} over time, seconds and kB",
        [
            [round(when - start), found["main_private"], found["main_shared"]]
            for when, found in run.samples[::stride]
        ],
    )
    stride = max(1, len(run.told) // 60)
    report.note(f"{name} told", run.told[::stride])


# --- the run itself --------------------------------------------------------------------------------------------------


def tell_tree(told: dict[str, float]) -> None:
    """Patch the replay to store in `told` the root of the sum tree and its relative error to the sum of the leaves."""
    from asyncrl.replay import PrioritizedReplay

    ingest, next_look = PrioritizedReplay.ingest, [0.0]

    def checked_ingest(self: Any) -> int:
        steps = ingest(self)
        if time.monotonic() >= next_look[0]:
            next_look[0] = time.monotonic() + SAMPLE_SECONDS
            leaves = self.tree.leaves.astype(np.float64)
            root, exact = self.tree.total, float(leaves.sum())
            told.update(root=root, leaves=int((leaves > 0).sum()))
            told["off"] = max(told.get("off", 0.0), abs(root - exact) / exact if exact else 0.0)
        return steps

    PrioritizedReplay.ingest = checked_ingest  # type: ignore[method-assign]


MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO]


def heap() -> dict[str, float]:
    """Blocks of Python's allocator, and kB of malloc in use, free and mapped if glibc reports them."""
    found: dict[str, float] = {"python_blocks": sys.getallocatedblocks()}
    with contextlib.suppress(AttributeError):
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = _Mallinfo
        info = mallinfo()
        found |= {"malloc_used": info.uordblks / 1e3, "malloc_free": info.fordblks / 1e3}
        found["malloc_mapped"] = info.hblkhd / 1e3
    return found


def records() -> Mapping[str, Any]:
    """Algorithms by name."""
    from asyncrl import DQN, PPO

    of_replay: dict[str, Any] = {
        "learning_starts": 100,
        "replay_capacity": 4_000,
        "batch_size": 32,
        "samples_per_insert": 1.0,
    }
    return {
        "dqn": DQN(hidden_sizes=(16,), **of_replay),
        "ppo": PPO(hidden_sizes=(16,), segment_length=32),
    }


def main(algorithm: str) -> None:
    """Train until standard input ends; print the run's figures every few seconds."""
    from asyncrl import Trainer

    told: dict[str, float] = {}
    tell_tree(told)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    trainer = Trainer(
        SlowCountingEnv, records()[algorithm], num_actors=2, envs_per_actor=4, seed=0, device="cpu",
        max_restarts=10**9, eval_interval_steps=50_000, eval_episodes=2,
    )  # fmt: skip
    with trainer:
        trainer.start()
        while not ended.wait(SAMPLE_SECONDS):
            if trainer.done:
                raise SystemExit("the run ended by itself")
            if (seen := trainer.snapshot()) is not None:
                told |= {"seconds": time.monotonic(), "updates": seen.updates, "env_steps": seen.env_steps}
                told["restarts"] = sum(actor.restarts for actor in seen.actors)
                told |= heap()
                print(json.dumps(told), flush=True)
        trainer.stop()


if __name__ == "__main__":
    main(sys.argv[1])
