"""Faults injected on purpose: what is lost, left behind, or never ends.

    actors        SIGKILL of actors at random moments under DQN and PPO; every row and every batch is recomputed
    processes     a signal to the main process, the fork server or the evaluator of a run at a random moment
    checkpoints   mutated files, and saves that are killed or find a full disk at each of their calls
    environments  thirty environments that misbehave: what is detected, after how long, and what is left

    python benchmarks/faults.py actors --kills 10000
    python benchmarks/faults.py processes --kills 100
    python benchmarks/faults.py checkpoints --mutations 10000
    python benchmarks/faults.py environments

Every section writes results/faults_<section>.json, `processes` one for every target. The sizes above are those of the
goals; a small part of them takes a minute.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import time
from typing import Any

from faults_env import CountingEnv
from faults_environments import CLASSES, run_one, table
from faults_files import broken_saves, mutations
from faults_processes import TARGETS, kill_runs
from faults_rows import GAMMA, Findings, RowCheck, check_batch, check_segments
from harness import Report, markdown

PATIENCE_SECONDS = 120.0


def watch_learner(findings: Findings) -> None:
    """Have all that the learner's thread takes in and trains on checked, from now on."""
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


def find_pool() -> list[Any]:
    """A list that holds the pool of every run that starts from now on."""
    from asyncrl.actors.pool import ActorPool

    pools: list[Any] = []
    start = ActorPool.start

    async def seen(self: Any) -> None:
        pools.append(self)
        await start(self)

    ActorPool.start = seen  # type: ignore[method-assign]
    return pools


def until(condition: Any, trainer: Any, what: str) -> None:
    """Wait for a condition as long as the run goes on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if trainer.done:
            raise SystemExit(f"the run ended before: {what}")
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}")
        time.sleep(0.001)


def seconds_to_new_row(pool: Any, index: int, trainer: Any) -> float:
    """Kill an actor and wait for the first row of its next life; the time between the two."""
    from asyncrl.shm.ring_layout import INCARNATION, PUBLISHED

    header = pool.rings[index].header
    life, child = int(header[INCARNATION]), pool._actors[index].child
    began = time.perf_counter()
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: int(header[INCARNATION]) != life, trainer, "another life")
    published = int(header[PUBLISHED])
    until(lambda: int(header[PUBLISHED]) > published, trainer, "a row of it")
    return time.perf_counter() - began


def storm(
    algorithm: Any, kills: int, envs: int, seed: int, pools: list[Any]
) -> tuple[list[float], dict[str, Any]]:
    """Kill actors of one run, one after the other at random moments; latencies, and what the run did."""
    from asyncrl import Trainer

    rng = random.Random(seed)
    trainer = Trainer(
        CountingEnv, algorithm, num_actors=2, envs_per_actor=envs, seed=seed, http="off", device="cpu",
        max_restarts=10**9, eval_interval_seconds=1e6, report_interval_seconds=0.2,
    )  # fmt: skip
    latencies: list[float] = []
    with trainer:
        trainer.start()
        until(lambda: (seen := trainer.snapshot()) is not None and seen.updates > 0, trainer, "updates")
        pool, first = pools[-1], trainer.snapshot()
        for _ in range(kills):
            index = rng.randrange(2)
            until(lambda i=index: pool._actors[i].ready and pool._actors[i].alive, trainer, "an actor")
            time.sleep(rng.uniform(0.0, 0.02))
            latencies.append(seconds_to_new_row(pool, index, trainer))
        last = trainer.snapshot()
        until(lambda: trainer.snapshot().updates > last.updates, trainer, "updates after the storm")
        last = trainer.snapshot()
        trainer.stop()
    done = {"updates": last.updates - first.updates, "env_steps": last.env_steps - first.env_steps}
    return latencies, done


def actors(arguments: argparse.Namespace) -> None:
    """Kill storms under DQN and PPO."""
    from asyncrl import DQN, PPO

    findings = Findings()
    watch_learner(findings)
    pools = find_pool()
    report = Report("faults_actors")
    report.note("kills", arguments.kills)
    algorithms = {
        "dqn": DQN(
            gamma=GAMMA, n_step=1, hidden_sizes=(16,), learning_starts=100, replay_capacity=4_000, batch_size=32,
            samples_per_insert=1.0,
        ),
        "ppo": PPO(hidden_sizes=(16,), segment_length=32),
    }  # fmt: skip
    for name, algorithm in algorithms.items():
        before = Findings(**vars(findings))
        latencies, done = storm(algorithm, arguments.kills // 2, arguments.envs, arguments.seed, pools)
        milliseconds = sorted(1e3 * seconds for seconds in latencies)
        report.add(f"{name}_kill_to_first_row_p50", [statistics.median(milliseconds)], "ms", "under 50")
        report.add(
            f"{name}_kill_to_first_row_p99", [milliseconds[len(milliseconds) * 99 // 100]], "ms", "under 500"
        )
        report.add(f"{name}_kill_to_first_row_max", [milliseconds[-1]], "ms")
        for what, count in vars(findings).items():
            goal = "0" if what in ("torn", "disorder") else None
            report.add(f"{name}_{what}", [count - getattr(before, what)], "", goal)
        for what, count in done.items():
            report.add(f"{name}_{what}_meanwhile", [count], "")
    report.write()


def processes(arguments: argparse.Namespace) -> None:
    """Signals to the processes of runs."""
    for target in arguments.targets:
        report = Report(f"faults_{target}")
        outcome = kill_runs(target, arguments.kills, arguments.seed)
        report.note("exit codes", outcome.exit_codes)
        report.note("stories", outcome.stories[:10])
        for what in ("runs", "hit", "hangs", "orphans", "leaks", "checkpoints", "damaged"):
            goal = "0" if what in ("hangs", "orphans", "leaks", "damaged") else None
            report.add(f"{target}_{what}", [getattr(outcome, what)], "", goal)
        report.add(f"{target}_signal_to_end", outcome.seconds or [0.0], "s")
        report.write()


def checkpoints(arguments: argparse.Namespace) -> None:
    """Damaged files and interrupted saves."""
    report = Report("faults_checkpoints")
    report.note("mutations", arguments.mutations)
    for what, count in mutations(arguments.mutations, arguments.seed).items():
        goal = "0" if what in ("tracebacks", "garbage_accepted", "previous_lost") else None
        report.add(what, [count], "", goal)
    for what, count in broken_saves().items():
        goal = "0" if what.endswith(("lost", "left")) else None
        report.add(what, [count], "", goal)
    report.write()


def environments(arguments: argparse.Namespace) -> None:
    """Environments that misbehave."""
    report = Report("faults_environments")
    rows = []
    for name in arguments.names or CLASSES:
        rows.append(run_one(name))
        print(rows[-1], flush=True)
    head = ["fault", "codes", "exit code", "seconds", "updates", "weights saved", "state", "processes left"]
    report.note("table", markdown(head, table(rows)).splitlines())
    report.note("rows", rows)
    learned = [row for row in rows if row["updates"]]
    report.add("environments", [len(rows)], "")
    report.add("hangs", [sum(row["hangs"] for row in rows)], "", "0")
    report.add("processes_left", [sum(row["processes_left"] for row in rows)], "", "0")
    report.add("weights_lost", [sum(not row["weights"] for row in learned)], f"of {len(learned)}", "0")
    report.add("control_characters_shown", [sum(row["control_characters"] for row in rows)], "", "0")
    report.write()


def main() -> None:
    """Run one section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sections = parser.add_subparsers(required=True)
    section = sections.add_parser("actors", help=actors.__doc__)
    section.add_argument("--kills", type=int, default=40)
    section.add_argument("--envs", type=int, default=4)
    section.set_defaults(run=actors)
    section = sections.add_parser("processes", help=processes.__doc__)
    section.add_argument("--kills", type=int, default=2)
    section.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    section.set_defaults(run=processes)
    section = sections.add_parser("checkpoints", help=checkpoints.__doc__)
    section.add_argument("--mutations", type=int, default=1_000)
    section.set_defaults(run=checkpoints)
    section = sections.add_parser("environments", help=environments.__doc__)
    section.add_argument("names", nargs="*", metavar="NAME")
    section.set_defaults(run=environments)
    for section in sections.choices.values():
        section.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
