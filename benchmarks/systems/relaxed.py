"""Costs and guarantees of the relaxed discipline, for PPO and DQN on CartPole-v1 with two actors.

    messages    frames, wake-ups by grants, and bells between processes, per thousand environment steps
    learner     with the learner stopped: steps until the actors stop, and the fraction of a core that each then uses
    actors      with the actors stopped (SIGSTOP): the fraction of a core that the learner's thread uses, and that of
                its whole process, which also supervises and reports
    publishing  fraction of their time that actors wait for space while the learner keeps up (one pass, no bound)
    bound       largest staleness in an update under a bound, and the discarded fraction
    ratio       samples per insert, achieved to target

Every figure is of a run in this process.

    python -m benchmarks.systems.relaxed
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from asyncrl import Trainer
from asyncrl.actors.frames import FrameReader
from asyncrl.actors.pool import ActorPool
from asyncrl.run.run import Run
from asyncrl.shm.doorbell import Doorbell
from asyncrl.show.metrics import Snapshot
from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.harness.slow_learner import SlowDQN, SlowPPO, Watched

ITEMS = ("messages", "learner", "actors", "publishing", "bound", "ratio")
ACTORS, ENVS = 2, 16
BOUND = {"ppo": 4, "dqn": 20}
TICKS = os.sysconf("SC_CLK_TCK")


def ppo(**options: Any) -> SlowPPO:
    """PPO with short segments, so that a batch is small compared with the measured figures."""
    return SlowPPO(**{"segment_length": 32, "discipline": "relaxed", "queue_batches": 2, **options})


def dqn(**options: Any) -> SlowDQN:
    """DQN with samples per insert at which the learner and two actors are about equally fast."""
    return SlowDQN(**{"samples_per_insert": 4.0, "learning_starts": 1_000, **options})


ALGORITHMS: dict[str, Callable[..., Any]] = {"ppo": ppo, "dqn": dqn}


def main() -> None:
    """Measure and write results/relaxed.json."""
    parser = runs.flags(__doc__, ITEMS, seeds=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured of each run")
    parsed, _ = runs.parse(parser, "relaxed", ITEMS)
    runs.announce(parsed.seeds * len(parsed.items) * len(ALGORITHMS), parsed.seconds)
    report = Report(parsed.name)
    report.note("settings", f"{ACTORS} actors of {ENVS} environments, {parsed.seconds} s a run")
    for item in parsed.items:
        for name, make in ALGORITHMS.items():
            MEASURES[item](report, name, make, parsed.seeds, parsed.seconds)
    report.write()


@contextlib.contextmanager
def running(algorithm: Any, seed: int, report_seconds: float = 0.05) -> Iterator[Trainer]:
    """Run that has made its first updates and is evaluated only after its end."""
    options: dict[str, Any] = {
        "http": "off",
        "report_interval_seconds": report_seconds,
        "eval_interval_steps": None,
    }
    Watched.gate.set()
    with Trainer(
        "CartPole-v1", algorithm, num_actors=ACTORS, envs_per_actor=ENVS, seed=seed, **options
    ) as trainer:
        trainer.start()
        until(trainer, lambda snapshot: snapshot.updates >= 50)
        try:
            yield trainer
        finally:
            Watched.gate.set()


def until(trainer: Trainer, holds: Callable[[Snapshot], bool], patience_seconds: float = 30.0) -> Snapshot:
    """Wait for the first snapshot for which `holds` is true."""
    deadline = time.monotonic() + patience_seconds
    while (snapshot := trainer.snapshot()) is None or not holds(snapshot):
        if trainer.done or time.monotonic() > deadline:
            raise RuntimeError("the run ended, or never came to where it was to be measured")
        time.sleep(0.01)
    return snapshot


def messages(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Measure messages between processes, rows excluded, while actors and learner work."""
    counts: dict[str, list[float]] = {"frames": [], "wakeups": [], "bells": []}
    for seed in range(seeds):
        with counting() as counted, running(make(), seed) as trainer:
            first = now(trainer)
            before = dict(counted)
            time.sleep(seconds)
            last = now(trainer)
            steps = last.env_steps - first.env_steps
            for kind, values in counts.items():
                values.append(1000 * (counted[kind] - before[kind]) / steps)
    for kind, values in counts.items():
        goal = "0" if kind == "frames" else None
        report.add(f"messages_{name}_{kind}_per_1000_steps", values, "", goal)


@contextlib.contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Count what the main process receives and sends: frames, bytes that wake an actor, bells."""
    counted = {"frames": 0, "wakeups": 0, "bells": 0}
    frames, wake, drain = FrameReader.frames, ActorPool.wake, Doorbell.drain

    def counted_frames(self: FrameReader) -> Iterator[dict[str, Any]]:
        for frame in frames(self):
            counted["frames"] += 1
            yield frame

    def counted_wake(self: ActorPool, index: int) -> None:
        counted["wakeups"] += 1
        wake(self, index)

    def counted_drain(self: Doorbell) -> int:
        bells = drain(self)
        counted["bells"] += bells
        return bells

    FrameReader.frames, ActorPool.wake, Doorbell.drain = counted_frames, counted_wake, counted_drain  # type: ignore[method-assign]
    try:
        yield counted
    finally:
        FrameReader.frames, ActorPool.wake, Doorbell.drain = frames, wake, drain  # type: ignore[method-assign]


def now(trainer: Trainer) -> Snapshot:
    """Newest snapshot of a running run."""
    return until(trainer, lambda _: True)


def learner(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Stop the learner in a gradient step: actors run until the balance stops them."""
    ahead, cost = [], []
    for seed in range(seeds):
        with running(make(), seed) as trainer:
            Watched.gate.clear()
            first = steps_taken(trainer)
            last = first
            while (steps := steps_taken(trainer, after_seconds=0.3)) != last:
                last = steps
            ahead.append(float(last - first))
            pids = [actor.pid for actor in now(trainer).actors]
            before = [cpu_seconds(pid) for pid in pids]
            started = time.perf_counter()
            time.sleep(seconds)
            elapsed = time.perf_counter() - started
            cost.append(max(cpu_seconds(p) - b for p, b in zip(pids, before, strict=True)) / elapsed)
            assert steps_taken(trainer) == last, "an actor went on without a grant"
    report.add(f"learner_stopped_{name}_steps_until_actors_stop", ahead, "steps")
    report.add(f"learner_stopped_{name}_cores_of_an_actor", cost, "cores", "under 0.05")


def steps_taken(trainer: Trainer, after_seconds: float = 0.0) -> int:
    """Environment steps by the actors' own counters, as there are no snapshots while the learner is stopped."""
    time.sleep(after_seconds)
    run = trainer._run
    assert isinstance(run, Run)
    return sum(int(ring.statistics().env_steps) for ring in run.pool.rings)


def actors(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Stop the actors by a signal: the learner gets no data."""
    thread_cost, process_cost = [], []
    for seed in range(seeds):
        with running(make(), seed, report_seconds=0.5) as trainer:
            pids = [actor.pid for actor in now(trainer).actors]
            try:
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                last = -1
                while (updates := now(trainer).updates) != last:
                    last = updates
                    time.sleep(1.0)
                before = (learner_seconds(), time.process_time(), time.perf_counter())
                time.sleep(seconds)
                after = (learner_seconds(), time.process_time(), time.perf_counter())
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            elapsed = after[2] - before[2]
            thread_cost.append((after[0] - before[0]) / elapsed)
            process_cost.append((after[1] - before[1]) / elapsed)
    report.add(f"actors_stopped_{name}_cores_of_the_learner_thread", thread_cost, "cores", "under 0.05")
    report.add(f"actors_stopped_{name}_cores_of_its_process", process_cost, "cores")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def learner_seconds() -> float:
    """CPU time of the learner's thread so far."""
    (thread,) = [t for t in threading.enumerate() if t.name.startswith("asyncrl-learner")]
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def publishing(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Measure the time that actors wait for space if the learner is faster."""
    light: dict[str, dict[str, Any]] = {
        "ppo": {"epochs": 1, "minibatch_size": 1024, "queue_batches": 4},
        "dqn": {"samples_per_insert": 0.05},
    }
    fractions, waits = [], []
    for seed in range(seeds):
        with running(make(**light[name]), seed) as trainer:
            first = now(trainer)
            time.sleep(seconds)
            last = now(trainer)
            elapsed = last.wall_seconds - first.wall_seconds
            before = {actor.index: actor.wait_seconds for actor in first.actors}
            fractions.append(max((a.wait_seconds - before[a.index]) / elapsed for a in last.actors))
            waits.append(last.learner_wait_fraction)
    report.add(f"publishing_{name}_actor_wait_fraction", fractions, "", "under 0.02")
    report.add(f"publishing_{name}_learner_wait_fraction", waits, "")


class NappingPPO(SlowPPO):
    """PPO with a slow learner, so that segments become stale."""

    step_seconds: ClassVar[float] = 0.002


class NappingDQN(SlowDQN):
    """DQN with a slow learner and a free pace, so that rows become stale."""

    step_seconds: ClassVar[float] = 0.0005


def bound(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Measure the staleness of data in updates under a bound, in the core itself."""
    limit = BOUND[name]
    largest, discarded, rows = [], [], []
    for seed in range(seeds):
        Watched.largest_staleness = Watched.rows = 0
        if name == "ppo":
            algorithm: Any = NappingPPO(segment_length=32, queue_batches=16, max_staleness=limit)
        else:
            algorithm = NappingDQN(samples_per_insert=None, learning_starts=1_000, max_staleness=limit)
        with running(algorithm, seed) as trainer:
            time.sleep(seconds)
            discarded.append(now(trainer).discarded_fraction)
        largest.append(float(Watched.largest_staleness))
        rows.append(float(Watched.rows))
    unit = "versions" if name == "ppo" else "updates"
    report.add(f"bound_{name}_largest_staleness", largest, unit, f"at most {limit}")
    report.add(f"bound_{name}_discarded_fraction", discarded, "")
    report.add(f"bound_{name}_rows_that_entered", rows, "rows")


def ratio(report: Report, name: str, make: Callable[..., Any], seeds: int, seconds: float) -> None:
    """Measure C / P over its target between two snapshots, so that waiting data cancel."""
    achieved = []
    for seed in range(seeds):
        with running(make(), seed) as trainer:
            first = now(trainer)
            time.sleep(4 * seconds)
            last = now(trainer)
            assert last.samples_per_insert_target is not None
            starts = getattr(trainer.algorithm, "learning_starts", 0)
            samples = [s.samples_per_insert_achieved * (s.env_steps - starts) for s in (first, last)]
            rate = (samples[1] - samples[0]) / (last.env_steps - first.env_steps)
            achieved.append(rate / last.samples_per_insert_target)
    report.add(f"ratio_{name}_achieved_to_target", achieved, "x", "0.98 to 1.02")


MEASURES: dict[str, Callable[[Report, str, Callable[..., Any], int, float], None]] = {
    "messages": messages,
    "learner": learner,
    "actors": actors,
    "publishing": publishing,
    "bound": bound,
    "ratio": ratio,
}


if __name__ == "__main__":
    main()
