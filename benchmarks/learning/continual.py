"""What a policy forgets when it goes on in a changed environment: SAC on Pendulum-v1, with gravity 10, then 15.

Every seed makes four runs of SAC's preset, each of `--steps` steps:

    old         from nothing with gravity 10
    new         from nothing with gravity 15
    continued   `init_from` the policy of *old*, with gravity 15
    rehearsed   the same, and half of every batch is of 5,000 recorded steps of *old* (`demonstrations`)

The policy at the end of each plays 100 greedy episodes with either gravity. Forgetting is the return with gravity 10
before, less that afterwards. The policy does not see the gravity, so one that serves both is a compromise. Steps to a
return of -400 with gravity 15, a mean of 10 episodes every 500 steps, say what the old policy is worth on the new task.

    python -m benchmarks.learning.continual [--seeds 5] [--steps 8000]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np

from benchmarks.harness.report import Report, script_parser
from benchmarks.harness.runs import evaluations

ENV, OLD, NEW = "Pendulum-v1", 10.0, 15.0
ENOUGH = -400.0
"""Return with the new gravity that counts as learned."""
EPISODES, ROWS = 100, 5_000


def train(run: Path, gravity: float, seed: int, steps: int, *options: str) -> None:
    """Train SAC's preset by the command line."""
    line = [
        sys.executable,
        "-m",
        "asyncrl",
        "train",
        ENV,
        "--algo",
        "sac",
        "--seed",
        str(seed),
        "--http",
        "off",
    ]
    line += [
        "--env-kwargs",
        f"g:{gravity}",
        "--steps",
        str(steps),
        "--run-dir",
        str(run),
        "--target-return",
        "none",
    ]
    line += ["--eval-interval-steps", "500", "--eval-episodes", "10", *options]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def mean_return(run: Path, gravity: float) -> float:
    """Mean return of greedy episodes of a run's last policy."""
    import asyncrl

    policy = asyncrl.load(run, checkpoint="latest")
    envs = [gymnasium.make(ENV, g=gravity) for _ in range(EPISODES)]
    obs = np.stack([env.reset(seed=1_000_000 + number)[0] for number, env in enumerate(envs)])
    total, over = np.zeros(EPISODES), False
    while not over:  # all episodes have 200 steps
        stepped = [env.step(action) for env, action in zip(envs, policy.predict(obs)[0], strict=True)]
        obs = np.stack([step[0] for step in stepped])
        total += [float(step[1]) for step in stepped]
        over = stepped[0][3]
    return float(total.mean())


def steps_to_enough(run: Path) -> float | None:
    """Steps at the first evaluation with `ENOUGH`; None without one."""
    points = evaluations([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    return next((float(at) for at, mean in points if mean >= ENOUGH), None)


def of_seed(seed: int, steps: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Returns with either gravity and steps to `ENOUGH`, by run."""
    import asyncrl

    runs = {name: folder / f"{name}{seed}" for name in ("old", "new", "continued", "rehearsed")}
    train(runs["old"], OLD, seed, steps)
    train(runs["new"], NEW, seed, steps)
    begun = ("--init-from", str(runs["old"] / "checkpoints" / "latest"))
    train(runs["continued"], NEW, seed, steps, *begun)
    data = folder / f"data{seed}"
    policy = asyncrl.load(runs["old"], checkpoint="latest")
    asyncrl.record(policy, data, steps=ROWS, deterministic=False, seed=seed)
    train(runs["rehearsed"], NEW, seed, steps, *begun, "--demonstrations", str(data))
    return {
        name: {"old": mean_return(run, OLD), "new": mean_return(run, NEW), "steps": steps_to_enough(run)}
        for name, run in runs.items()
    }


def main() -> None:
    """Measure and write results/continual.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 .. N-1")
    parser.add_argument("--steps", type=int, default=8_000)
    parsed = parser.parse_args()
    report, found = Report("continual", ["minari"]), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(parsed.seeds):
            found.append(of_seed(seed, parsed.steps, Path(folder)))
            print(seed, json.dumps(found[-1]), flush=True)
    report.note("seeds", found)
    for name in found[0]:
        for gravity in ("old", "new"):
            report.add(f"{name}_return_with_{gravity}_gravity", [one[name][gravity] for one in found], "")
        if name != "old":
            reached = [one[name]["steps"] for one in found if one[name]["steps"] is not None]
            report.add(f"{name}_reached", [float(len(reached))], f"of {len(found)}")
            if reached:
                report.add(f"{name}_steps_to_enough", reached, "steps")
    for name in ("continued", "rehearsed"):
        report.add(f"{name}_forgotten", [one["old"]["old"] - one[name]["old"] for one in found], "")
    report.write()


if __name__ == "__main__":
    main()
