"""Correctness of fusion by arithmetic: 10,000 fusions of each mode over processes that are delayed, killed, restarted.

Three processes hold a session of groups over gloo. Their learners add scripted integers, with random delays. A process
is killed or suspended at random. `gradients` and `average` then end on all ranks and start again from rank 0's
checkpoint, as `async` does if rank 0 was killed; another rank of `async` is started again alone. `checks.py`
compares every snapshot, delta, fused vector and checkpoint with its definition, to the bit. The modes run side by side.

    python -m benchmarks.groups.fusions
    python -m benchmarks.groups.fusions --fusions 500 --kills 2 --only async
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from asyncrl.groups.launch import free_port
from benchmarks.groups.checks import Checker, of, read
from benchmarks.groups.scripted import FUSED, LOST_EXIT, RANKS, START, TAKEN, main_of_rank
from benchmarks.harness.report import FOLDER, Report, script_parser

MODES = ("gradients", "average", "async")
LIMIT_SECONDS = 120.0
"""Time limit of a start, of an end, and of the next fusions."""
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["benchmarks.groups.scripted"])  # torch is imported once, not by every rank


class Job:
    """Processes of one mode, one attempt after the other.

    Args:
        mode: fusion mode.
        folder: folder of the logs.
        rng: random numbers of the faults.

    Attributes:
        kills, suspensions: faults so far.
        ended_seconds: time from each kill that ends the job until the processes of the other ranks had ended.
    """

    def __init__(self, mode: str, folder: Path, rng: random.Random) -> None:
        self.kills = self.suspensions = 0
        self.ended_seconds: list[float] = []
        self._mode, self._folder, self._rng = mode, folder, rng
        self._attempt = -1
        self._ranks: list[ForkServerProcess] = []
        self._lives = [0] * RANKS

    def run(self, fusions: int, kills: int) -> None:
        """Fuse at least `fusions` times, with `kills` kills and twice as many suspensions."""
        due = sorted(self._rng.uniform(0.05, 0.95) * fusions for _ in range(3 * kills))
        faults = [(at, "kill" if n % 3 == 1 else "suspend") for n, at in enumerate(due)]
        try:
            self._start()
            for at, fault in faults:
                self._until(lambda at=at: self.fusions() >= at, "fusions")  # type: ignore[misc]
                self._kill() if fault == "kill" else self._suspend()
            self._until(lambda: self.fusions() >= fusions, "fusions")
            (self._folder / "stop").touch()
            self._until(lambda: all(rank.exitcode is not None for rank in self._ranks), "the end")
            if any(codes := [rank.exitcode for rank in self._ranks]):
                raise self._failed(f"exit codes {codes} at the end")
        finally:
            for rank in self._ranks:
                rank.kill()
                rank.join()

    def fusions(self) -> int:
        """Fusions of all attempts so far."""
        kind = TAKEN if self._mode == "async" else FUSED
        return sum(len(of(read(path), kind)) for path in self._folder.glob("*-0-*.log"))

    def _start(self) -> None:
        self._attempt += 1
        self._port, self._lives = free_port(), [0] * RANKS
        self._ranks = [self._rank(rank) for rank in range(RANKS)]
        self._until(self._all_begun, "the start")

    def _rank(self, rank: int) -> ForkServerProcess:
        arguments = ["--mode", self._mode, "--rank", str(rank), "--folder", str(self._folder)]
        arguments += ["--port", str(self._port), "--attempt", str(self._attempt)]
        arguments += ["--life", str(self._lives[rank])]
        process = PROCESSES.Process(target=main_of_rank, args=(arguments, self._folder / "output"))
        process.start()
        return process

    def _all_begun(self) -> bool:
        paths = [self._folder / f"{self._attempt}-{rank}-{life}.log" for rank, life in enumerate(self._lives)]
        return all(path.exists() and len(of(read(path), START)) for path in paths)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            broken = [rank.exitcode for rank in self._ranks if rank.exitcode not in (None, 0)]
            if time.monotonic() > deadline or (broken and what != "the losses"):
                raise self._failed(f"{what} did not come; exit codes {broken}")
            time.sleep(0.05)

    def _failed(self, what: str) -> RuntimeError:
        return RuntimeError(f"{self._mode}: {what}\n{(self._folder / 'output').read_text()[-3000:]}")

    def _suspend(self) -> None:
        """Suspend a rank for up to a second."""
        rank = self._rng.choice(self._ranks)
        assert rank.pid is not None
        os.kill(rank.pid, signal.SIGSTOP)
        time.sleep(self._rng.random())
        os.kill(rank.pid, signal.SIGCONT)
        self.suspensions += 1

    def _kill(self) -> None:
        """Kill a rank, and start it or, if the job ends with it, all ranks again."""
        number = self._rng.randrange(RANKS)
        self._ranks[number].kill()
        self._ranks[number].join()
        self.kills += 1
        if self._mode == "async" and number:
            self._lives[number] += 1
            self._ranks[number] = self._rank(number)
            self._until(self._all_begun, "the restart")
            return
        killed = time.monotonic()
        others = [rank for n, rank in enumerate(self._ranks) if n != number]
        self._until(lambda: all(rank.exitcode is not None for rank in others), "the losses")
        self.ended_seconds.append(time.monotonic() - killed)
        codes = [rank.exitcode for rank in others]
        if any(code != LOST_EXIT for code in codes):
            raise self._failed(f"exit codes {codes} after a kill")
        self._start()


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--fusions", type=int, default=10_000, help="fusions of each mode")
    parser.add_argument(
        "--kills", type=int, default=8, help="kills in each mode, with twice as many suspensions"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--only", choices=MODES, action="append", help="this mode; may be given again")
    parser.add_argument("--out", type=Path, default=FOLDER / "results", help="folder of the result file")
    options = parser.parse_args()
    report, modes = Report("groups_fusions"), options.only or MODES
    with ThreadPoolExecutor(len(modes)) as executor:
        found = list(executor.map(lambda mode: run_mode(mode, options), modes))
    for mode, (job, checker) in zip(modes, found, strict=True):
        for key in ("fusions", "vectors", "discarded"):
            report.add(f"{mode}_{key}", [getattr(checker, key)], "")
        for key in ("kills", "suspensions"):
            report.add(f"{mode}_{key}", [getattr(job, key)], "")
        if job.ended_seconds:
            report.add(f"{mode}_others_ended_after_kill", job.ended_seconds, "s")
    report.write(options.out)


def run_mode(mode: str, options: argparse.Namespace) -> tuple[Job, Checker]:
    """Run one mode and check its logs. Raises `Wrong`."""
    with tempfile.TemporaryDirectory(prefix="groups-fusions-") as name:
        job = Job(mode, Path(name), random.Random(f"{mode} {options.seed}"))
        job.run(options.fusions, options.kills)
        checker = Checker(mode, Path(name))
        checker.check()
    return job, checker


if __name__ == "__main__":
    main()
