"""One group against two on the same cores: speed, and steps, time and CPU time to a target, for each fusion.

Two groups get the same machine, the same `total_steps` and the same target as one. Every run is a new process. The runs
of one seed follow one another, so that their ratios see the same machine. CPU seconds are those of all processes of a
run, start-up included (about three times as much with two groups, as each loads torch).

With `--slow` there are two runs of two groups for each fusion: even, and with rank 1 slowed ten times. Its processes
are all suspended for nine tenths of every half a second.

    python -m benchmarks.groups.learning --seeds 3
    python -m benchmarks.groups.learning --only ppo-LunarLander-v3,dqn-LunarLander-v3 --seconds 60 --seeds 1
    python -m benchmarks.groups.learning --only dqn-CartPole-v1 --slow --seeds 5
    python -m benchmarks.groups.learning --only dqn-CartPole-v1 --seeds 1
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.groups.jobs import Job
from benchmarks.harness.report import FOLDER, Report
from benchmarks.harness.runs import flags, parse

RUNS: dict[str, dict[str, Any]] = {
    "dqn-CartPole-v1": {"target_return": 475.0, "total_steps": 150_000, "max_seconds": 200.0},
    "ppo-CartPole-v1": {"target_return": 475.0, "total_steps": 300_000, "max_seconds": 200.0},
    "ppo-LunarLander-v3": {"target_return": 200.0, "total_steps": 1_000_000, "max_seconds": 400.0},
    "dqn-LunarLander-v3": {"target_return": 200.0, "total_steps": 600_000, "max_seconds": 600.0},
    "sac-HalfCheetah-v5": {"target_return": 3000.0, "total_steps": 300_000, "max_seconds": 400.0},
    "sac-BipedalWalker-v3": {"target_return": 300.0, "total_steps": 300_000, "max_seconds": 900.0},
    "sac-Pendulum-v1": {"target_return": -200.0, "total_steps": 40_000, "max_seconds": 400.0},
}
"""Stopping rules by algorithm and environment, which use their preset."""
SIDES: dict[str, dict[str, Any]] = {
    "one": {},
    "gradients": {"groups": 2, "fusion": "gradients"},
    "average": {"groups": 2, "fusion": "average"},
    "async": {"groups": 2, "fusion": "async"},
}
SLOWED = {f"{side}_slowed": side for side in SIDES if side != "one"}
CYCLE_SECONDS, SLOWER = 0.5, 10
_RUN = """
import json, sys
from asyncrl import Trainer
env, algo, options = json.loads(sys.argv[1])
options |= {"num_actors": 1, "http": "off", "eval_episodes": 10, "target_eval_episodes": 50}
print(json.dumps(Trainer(env, algo, **options).learn().summary))
"""


def run(item: str, side: str, seed: int, seconds: float | None = None) -> dict[str, Any]:
    """Summary of one run, with its CPU seconds; of at most `seconds` of training and without a target if given."""
    algo, _, env = item.partition("-")
    options = {**RUNS[item], **SIDES[SLOWED.get(side, side)], "seed": seed}
    if seconds is not None:
        options |= {"max_seconds": seconds, "target_return": None, "total_steps": None}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps([env, algo, options])],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
        },
    )
    if side in SLOWED:
        threading.Thread(target=slow_down, args=(process,), daemon=True).start()
    output = process.communicate(timeout=1200)[0]
    if process.returncode:
        raise RuntimeError(f"{item} {side}: exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    first = summary["groups"][0]["env_steps"] if summary.get("groups") else summary["env_steps"]
    return {**summary, "cpu_seconds": cpu, "rank_0_steps_per_second": first / summary["train_seconds"]}


def slow_down(process: subprocess.Popen[str]) -> None:
    """Suspend rank 1 and its actors for nine tenths of the time, once they are there, until `process` ends."""
    job = Job(process, Path())
    while process.poll() is None:
        with contextlib.suppress(psutil.Error, RuntimeError):
            rank = job.rank(1)
            those = [rank, *rank.children(recursive=True)]
            if len(those) < 3:  # its actors have not started
                time.sleep(CYCLE_SECONDS)
                continue
            try:
                for one in those:
                    one.suspend()
                time.sleep(CYCLE_SECONDS * (1 - 1 / SLOWER))
            finally:
                for one in those:
                    with contextlib.suppress(psutil.Error):
                        one.resume()
        time.sleep(CYCLE_SECONDS / SLOWER)


def add_figures(
    report: Report, item: str, found: dict[str, list[dict[str, Any]]], beside: dict[str, str]
) -> None:
    """Add the figures of one item's runs, by side; `beside` has the other side of each ratio."""
    for side, runs in found.items():
        key = f"{item}_{side}"
        reached = [one for one in runs if one["steps_to_target"] is not None]
        report.add(f"{key}_reached", [float(one["steps_to_target"] is not None) for one in runs], "")
        for name, unit in (("steps_to_target", "steps"), ("time_to_target_seconds", "s")):
            if reached:
                report.add(f"{key}_{name}", [one[name] for one in reached], unit)
        for name, unit in (
            ("env_steps_per_second", "steps/s"),
            ("updates_per_second", "updates/s"),
            ("cpu_seconds", "CPU s"),
        ):
            report.add(f"{key}_{name}", [one[name] for one in runs], unit)
        if side in beside:
            other = found[beside[side]]
            ours, theirs = ([one["env_steps_per_second"] for one in those] for those in (runs, other))
            report.add_ratio(f"{key}_steps_per_second_to_{beside[side]}", ours, theirs)
        if side != "one":
            report.add(
                f"{key}_rank_0_steps_per_second", [r["rank_0_steps_per_second"] for r in runs], "steps/s"
            )


def main() -> None:
    parser = flags(__doc__, list(RUNS), seeds=3)
    parser.add_argument("--slow", action="store_true", help="slow rank 1 ten times, beside even groups")
    parser.add_argument(
        "--seconds", type=float, help="training seconds of each run, which then has no target"
    )
    parser.add_argument("--note", default="", help="what else the machine did, for the result file")
    options, rest = parse(parser, "groups_learning", list(RUNS))
    assert not rest, rest
    kind = "_slowed" * options.slow + "_rates" * (options.seconds is not None)
    report = Report(options.name.replace("groups_learning", "groups_learning" + kind, 1), ("box2d",))
    report.note("machine_was", options.note)
    sides = [s for pair in SLOWED.items() for s in reversed(pair)] if options.slow else list(SIDES)
    for item in options.items:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for seed in range(options.seeds):
            for side in sides:
                found[side].append(run(item, side, seed, options.seconds))
        add_figures(report, item, found, SLOWED if options.slow else dict.fromkeys(sides[1:], "one"))
        report.write()


if __name__ == "__main__":
    main()
