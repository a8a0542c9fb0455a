"""Bitwise reproducibility of lockstep replay: five runs of each algorithm under three conditions.

    quiet        twice, without disturbance
    one-core     once, with all processes pinned to one core
    suspended    twice; a random child (actor, evaluator, fork server) or all actors are stopped for 20 to 50 ms

Each run is a new process that makes `--updates` updates with one seed. Compared are the SHA-256 of the final weights,
the updates and the environment steps. The script ends with status 1 if two runs differ.

    python -m benchmarks.learning.lockstep_exact
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
from functools import partial
from typing import Any

# Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.harness.conditions import any_descendant, suspensions
from benchmarks.harness.report import Report, script_parser

CONDITIONS = ("quiet", "quiet", "one-core", "suspended", "suspended")
ENVIRONMENTS = {"dqn": "CartPole-v1", "rainbow": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}
BATCH, SAMPLES_PER_INSERT, LEARNING_STARTS = 64, 16.0, 500


def algorithm(name: str) -> Any:
    """The algorithm of that name: prioritized DQN, or another with default options."""
    from asyncrl.algorithms import ALGORITHMS

    options: dict[str, Any] = {
        "discipline": "lockstep",
        "batch_size": BATCH,
        "samples_per_insert": SAMPLES_PER_INSERT,
        "learning_starts": LEARNING_STARTS,
        "replay_capacity": 20_000,
        "hidden_sizes": (64, 64),
    }
    if name == "dqn":
        options["prioritized"] = True
    return ALGORITHMS[name](**options)


def one(name: str, condition: str, updates: int, seed: int) -> dict[str, Any]:
    """Train once in this process; returns the results."""
    from asyncrl import Trainer

    if condition == "one-core":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    trainer = Trainer(
        ENVIRONMENTS[name], algorithm(name), seed=seed, num_actors=2, envs_per_actor=4, http="off",
        report_interval_seconds=0.05, eval_interval_steps=None, target_eval_episodes=1,
    )  # fmt: skip
    trainer.start(total_steps=LEARNING_STARTS + round(updates * BATCH / SAMPLES_PER_INSERT))
    disturbance: contextlib.AbstractContextManager[list[int]] = contextlib.nullcontext([])
    if condition == "suspended":
        choose = partial(actors_or_a_child, trainer)
        disturbance = suspensions(choose, pause=(0.0, 0.1), hold=(0.02, 0.05))
    with disturbance as suspended:
        result = asyncio.run(trainer.wait())
    return {
        "sha256": hashlib.sha256(result.policy.weights.tobytes()).hexdigest(),
        "updates": result.summary["updates"],
        "env_steps": result.summary["env_steps"],
        "train_seconds": result.summary["train_seconds"],
        "suspensions": len(suspended),
    }


def actors_or_a_child(trainer: Any, rng: random.Random) -> list[int]:
    """All actors, or one child: an actor, the evaluator, the fork server or its guardian."""
    snapshot = trainer.snapshot()
    actors = [actor.pid for actor in snapshot.actors if actor.pid] if snapshot is not None else []
    return actors if actors and rng.random() < 0.3 else any_descendant(rng)


def fresh(name: str, condition: str, updates: int, seed: int) -> dict[str, Any]:
    """Call `one` in a new process."""
    line = [
        sys.executable,
        "-m",
        "benchmarks.learning.lockstep_exact",
        "--one",
        name,
        "--condition",
        condition,
    ]
    line += ["--updates", str(updates), "--seed", str(seed)]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, timeout=3_600)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Run everything and write results/lockstep_exact.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--updates", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(ENVIRONMENTS), help="comma-separated algorithms")
    parser.add_argument("--trial", action="store_true", help="write no result file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--condition", choices=sorted(set(CONDITIONS)), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.one:
        print(json.dumps(one(parsed.one, parsed.condition, parsed.updates, parsed.seed)))
        return
    report, rows, differing = Report("lockstep_exact"), [], []
    for name in parsed.only.split(","):
        found = []
        for condition in CONDITIONS:
            found.append({"condition": condition, **fresh(name, condition, parsed.updates, parsed.seed)})
            print(name, found[-1], flush=True)
        distinct = {(f["sha256"], f["updates"], f["env_steps"]) for f in found}
        if len(distinct) > 1:
            differing.append(name)
        report.add(f"{name}_distinct_results", [float(len(distinct))], "", "1")
        report.add(f"{name}_updates", [float(f["updates"]) for f in found], "")
        report.add(f"{name}_suspensions", [float(f["suspensions"]) for f in found], "")
        report.note(name, found)
        hashes = ", ".join(sorted({f["sha256"][:12] for f in found}))
        rows.append([name, ENVIRONMENTS[name], found[0]["updates"], len(found), len(distinct), hashes])
    report.add_table(["algorithm", "env", "updates", "runs", "distinct", "SHA-256 of the weights"], rows)
    if not parsed.trial:
        report.write()
    if differing:
        sys.exit(f"lockstep is not exact: {', '.join(differing)}")


if __name__ == "__main__":
    main()
