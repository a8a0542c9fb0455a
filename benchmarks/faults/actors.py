"""Repeated kills of actors, for the section `actors`: checks of rows and batches, latencies, growth and leftovers."""

from __future__ import annotations

import gc
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from benchmarks.faults.bare import Bare
from benchmarks.faults.counting import CountingEnv
from benchmarks.faults.rows import GAMMA, Findings, RowCheck, check_batch, check_segments
from benchmarks.harness.report import Report

if TYPE_CHECKING:
    from asyncrl.show.metrics import Snapshot

PATIENCE_SECONDS = 900.0
BARE_EVERY = 10
"""Number of kills between two measurements of the bare fork server."""
SAMPLE_SECONDS = 2.0
WARM_SHARE = 0.25
"""Fraction of the run left out of slopes, in which allocators and caches fill."""


def watch_learner(findings: Findings) -> dict[int, RowCheck]:
    """Patch the learner so that all that its thread ingests and trains on is checked, from now on.

    Returns the checks by ring. They keep the ring's memory alive, so clear them after every run.
    """
    from asyncrl.learning.segment_loop import SegmentLoop
    from asyncrl.replay import PrioritizedReplay, SegmentQueue

    checks: dict[int, RowCheck] = {}
    ingest, sample = PrioritizedReplay.ingest, PrioritizedReplay.sample
    poll, train_on = SegmentQueue.poll, SegmentLoop._train_on

    def look(rings: Any, rows: Any) -> None:
        for ring, published in zip(rings, rows.tolist(), strict=True):
            checks.setdefault(id(ring), RowCheck(ring, findings)).up_to(published)

    def checked_ingest(self: Any) -> int:
        steps = ingest(self)
        look(self.rings, self.published_rows())
        return steps

    def checked_sample(self: Any, batch: Any, beta: float) -> None:
        sample(self, batch, beta)
        check_batch(batch, findings)

    def checked_poll(self: Any) -> int:
        steps = poll(self)
        look(self.rings, self.published_rows())
        return steps

    def checked_train_on(self: Any, segments: Any) -> None:
        check_segments(segments, findings)
        train_on(self, segments)

    PrioritizedReplay.ingest, PrioritizedReplay.sample = checked_ingest, checked_sample  # type: ignore[method-assign]
    SegmentQueue.poll, SegmentLoop._train_on = checked_poll, checked_train_on  # type: ignore[method-assign]
    return checks


def find_pool() -> list[Any]:
    """Return a list to which every pool is added that starts from now on."""
    from asyncrl.actors.pool import ActorPool

    pools: list[Any] = []
    start = ActorPool.start

    async def seen(self: Any) -> None:
        pools.append(self)
        await start(self)

    ActorPool.start = seen  # type: ignore[method-assign]
    return pools


def until(condition: Any, trainer: Any, what: str) -> None:
    """Wait for a condition while the run lasts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if trainer.done:
            raise SystemExit(f"the run ended before: {what}")
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}")
        time.sleep(0.001)


def seconds_to_new_row(pool: Any, index: int, trainer: Any) -> float:
    """Kill an actor; returns the seconds until the first row of its next life."""
    from asyncrl.shm.ring_layout import INCARNATION, PUBLISHED

    header = pool.rings[index].header
    life, child = int(header[INCARNATION]), pool._actors[index].child
    began = time.perf_counter()
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: int(header[INCARNATION]) != life, trainer, "another life")
    published = int(header[PUBLISHED])
    until(lambda: int(header[PUBLISHED]) > published, trainer, "a row of it")
    return time.perf_counter() - began


UNITS = {"resident": "kB/min", "descriptors": "/min", "threads": "/min", "memfds": "/min"}


class Growth:
    """Resources of processes over time: a list of samples, and the slope of each kind."""

    def __init__(self, **pids: int) -> None:
        """Watch processes, each by a name."""
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._next = 0.0

    def look(self) -> None:
        """Take a sample if one is due."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SAMPLE_SECONDS
            found: dict[str, float] = {}
            for name, process in self._processes.items():
                found[f"{name}_resident"] = process.memory_info().rss / 1e3
                found[f"{name}_descriptors"] = process.num_fds()
                found[f"{name}_threads"] = process.num_threads()
                found[f"{name}_memfds"] = memfds(process.pid)
            self._samples.append((now, found))

    def slopes(self) -> dict[str, tuple[float, str]]:
        """Least-squares slope per minute of every kind after the warm-up, and its unit."""
        warm = self._samples[int(len(self._samples) * WARM_SHARE) :]
        if len(warm) < 3:
            return {}
        minutes = np.array([when for when, _ in warm]) / 60
        result = {}
        for kind in warm[0][1]:
            slope = np.polyfit(minutes - minutes[0], [found[kind] for _, found in warm], 1)[0]
            result[kind] = (float(slope), UNITS[kind.partition("_")[2]])
        return result


def memfds(pid: int) -> int:
    """Number of a process's descriptors that are anonymous shared memory."""
    return sum("memfd:" in target for target in _links(Path(f"/proc/{pid}/fd")))


def _links(folder: Path) -> list[str]:
    found = []
    for entry in folder.iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            continue
    return found


def newest(trainer: Any) -> Snapshot:
    """Last snapshot of a run that has one."""
    snapshot: Snapshot = trainer.snapshot()
    assert snapshot is not None
    return snapshot


def storm(
    algorithm: Any, kills: int, minutes: float, envs: int, seed: int, pools: list[Any]
) -> tuple[list[float], list[float], Growth, dict[str, float]]:
    """Kill actors of one run, one after the other at random moments.

    Returns:
        Latencies in seconds, those of the bare fork server meanwhile, resource growth, and the run's updates and steps.
    """
    from asyncrl import Trainer

    rng, bare = random.Random(seed), Bare(envs)
    trainer = Trainer(
        CountingEnv, algorithm, num_actors=2, envs_per_actor=envs, seed=seed, http="off", device="cpu",
        max_restarts=10**9, eval_interval_steps=50_000, eval_episodes=2, report_interval_seconds=0.2,
    )  # fmt: skip
    latencies: list[float] = []
    floors: list[float] = []
    end = time.monotonic() + 60 * minutes
    with trainer:
        trainer.start()
        until(lambda: (seen := trainer.snapshot()) is not None and seen.updates > 0, trainer, "updates")
        pool, first = pools[-1], newest(trainer)
        growth = Growth(main=os.getpid(), server=pool._server.pid)
        for number in range(kills):
            if time.monotonic() > end:
                break
            index = rng.randrange(2)
            until(lambda i=index: pool._actors[i].ready and pool._actors[i].alive, trainer, "an actor")
            time.sleep(rng.uniform(0.0, 0.02))
            latencies.append(seconds_to_new_row(pool, index, trainer))
            if number % BARE_EVERY == 0:
                floors.append(bare.seconds())
            growth.look()
        last = newest(trainer)
        until(lambda: newest(trainer).updates > last.updates, trainer, "updates after the storm")
        last = newest(trainer)
        trainer.stop()
    bare.close()
    pools.clear()
    done: dict[str, float] = {
        "updates_meanwhile": last.updates - first.updates,
        "env_steps_meanwhile": last.env_steps - first.env_steps,
    }
    return latencies, floors, growth, done


def run_storms(kills: int, minutes: float, envs: int, seed: int) -> None:
    """Kill actors under DQN and PPO, half the kills and half the time each; every row and batch is recomputed."""
    from asyncrl import DQN, PPO

    findings = Findings()
    checks = watch_learner(findings)
    pools = find_pool()
    report = Report("faults_actors")
    algorithms = {
        "dqn": DQN(
            gamma=GAMMA, n_step=1, hidden_sizes=(16,), learning_starts=100, replay_capacity=4_000, batch_size=32,
            samples_per_insert=1.0,
        ),
        "ppo": PPO(hidden_sizes=(16,), segment_length=32),
    }  # fmt: skip
    for name, algorithm in algorithms.items():
        before = Findings(**vars(findings))
        latencies, floors, growth, done = storm(algorithm, kills // 2, minutes / 2, envs, seed, pools)
        checks.clear()
        report.add(f"{name}_kills", [len(latencies)], "")
        _report_latencies(report, name, latencies, floors)
        for what, count in vars(findings).items():
            goal = "0" if what in ("torn", "disorder") else None
            report.add(f"{name}_{what}", [count - getattr(before, what)], "", goal)
        for what, count in done.items():
            report.add(f"{name}_{what}", [count], "")
        for what, (slope, unit) in growth.slopes().items():
            report.add(f"{name}_slope_of_{what}", [slope], unit, "0")
        gc.collect()
        report.add(f"{name}_memfds_left", [memfds(os.getpid())], "", "0")
        report.add(f"{name}_processes_left", [len(psutil.Process().children(recursive=True))], "", "0")
    report.write()


def _report_latencies(report: Report, name: str, latencies: Sequence[float], floors: Sequence[float]) -> None:
    ours, bare = (sorted(1e3 * seconds for seconds in some) for some in (latencies, floors))
    report.add(f"{name}_kill_to_first_row_p50", [statistics.median(ours)], "ms", "under 50")
    report.add(f"{name}_kill_to_first_row_p99", [ours[len(ours) * 99 // 100]], "ms", "under 500")
    report.add(f"{name}_kill_to_first_row_max", [ours[-1]], "ms")
    report.add(f"{name}_bare_fork_to_first_step_p50", [statistics.median(bare)], "ms")
    report.add(f"{name}_kill_to_first_row_to_bare", [statistics.median(ours) / statistics.median(bare)], "x")
