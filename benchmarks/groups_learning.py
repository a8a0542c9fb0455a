"""One group against two on the same cores: speed, and steps, time and CPU time to a target, for each fusion.

Two groups get the same machine, the same `total_steps` and the same target as one. Every run is a new process. The runs
of one seed follow one another, so that their ratios see the same machine. CPU seconds are those of all processes of a
run, start-up included (about three times as much with two groups, as each loads torch).

    python benchmarks/groups_learning.py --seeds 3
    python benchmarks/groups_learning.py --only dqn-CartPole-v1 --seeds 1
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

from harness import FOLDER, Report
from runs import flags, parse

RUNS: dict[str, dict[str, Any]] = {
    "dqn-CartPole-v1": {"target_return": 475.0, "total_steps": 150_000, "max_seconds": 200.0},
    "ppo-CartPole-v1": {"target_return": 475.0, "total_steps": 300_000, "max_seconds": 200.0},
    "ppo-LunarLander-v3": {"target_return": 200.0, "total_steps": 1_000_000, "max_seconds": 400.0},
    "dqn-LunarLander-v3": {"target_return": 200.0, "total_steps": 300_000, "max_seconds": 600.0},
    "sac-Pendulum-v1": {"target_return": -200.0, "total_steps": 40_000, "max_seconds": 400.0},
}
"""Stopping rules by algorithm and environment, which use their preset."""
SIDES: dict[str, dict[str, Any]] = {
    "one": {},
    "gradients": {"groups": 2, "fusion": "gradients"},
    "average": {"groups": 2, "fusion": "average"},
    "async": {"groups": 2, "fusion": "async"},
}
_RUN = """
import json, sys
from asyncrl import Trainer
env, algo, options = json.loads(sys.argv[1])
options |= {"num_actors": 1, "http": "off", "eval_episodes": 10, "target_eval_episodes": 50}
print(json.dumps(Trainer(env, algo, **options).learn().summary))
"""


def run(item: str, side: str, seed: int) -> dict[str, Any]:
    """Summary of one run, with its CPU seconds."""
    algo, _, env = item.partition("-")
    options = {**RUNS[item], **SIDES[side], "seed": seed}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps([env, algo, options])],
        stdout=subprocess.PIPE,
        text=True,
        timeout=1200,
        check=True,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**summary, "cpu_seconds": cpu}


def main() -> None:
    options, rest = parse(flags(__doc__, list(RUNS), seeds=3), "groups_learning", list(RUNS))
    assert not rest, rest
    report = Report(options.name, ("box2d",))
    for item in options.items:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(options.seeds):
            for side in SIDES:
                found[side].append(run(item, side, seed))
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
            if side != "one":
                ours, theirs = (
                    [one["env_steps_per_second"] for one in runs] for runs in (found[side], found["one"])
                )
                report.add_ratio(f"{key}_steps_per_second_to_one", ours, theirs)
        report.write()


if __name__ == "__main__":
    main()
