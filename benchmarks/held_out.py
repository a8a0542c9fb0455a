"""Presets on seeds that they were not chosen by: steps and seconds to the target, and whether solved stays solved.

Each run is `asyncrl train ENV --algo ALGO --seed SEED --target-return TARGET` in a process of its own, as a user starts
it, under each of the conditions of `conditions.py`. With `--after 3` every run is made once more without its target and
three times as long (quiet), and its greedy evaluations after the first success are counted.

    python benchmarks/held_out.py CartPole-v1 dqn 475 --after 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from conditions import CONDITIONS, condition
from harness import Report, markdown

FIRST_SEED = 1_000
"""Seeds from here on are for reporting; presets are chosen on others (0 to 199)."""


def train(
    env: str, algo: str, seed: int, *options: str, seconds: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's `summary.json` and the lines of its `metrics.jsonl`."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        line = [sys.executable, "-m", "asyncrl", "train", env, "--algo", algo, "--seed", str(seed)]
        line += ["--run-dir", str(run), "--http", "off", "--max-seconds", str(seconds), *options]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return json.loads((run / "summary.json").read_text()), [json.loads(text) for text in lines]


def main() -> None:
    """Run everything and write results/held_out_<env>_<algo>.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("algo")
    parser.add_argument("target", type=float)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--max-seconds", type=float, default=120.0)
    parser.add_argument(
        "--after", type=float, default=1.0, help="go on to so many times the steps to the target"
    )
    parser.add_argument(
        "--kept", type=float, help="return that counts as still solved; 95 %% of the target if left out"
    )
    parsed = parser.parse_args()
    env, algo = parsed.env, parsed.algo
    report = Report(f"held_out_{env}_{algo}".lower().replace("-", "_"))
    seeds = range(FIRST_SEED, FIRST_SEED + parsed.seeds)
    report.note("seeds", f"{seeds.start} to {seeds.stop - 1}")
    steps: dict[int, int] = {}
    rows = []
    for name in parsed.conditions.split(","):
        found = []
        with condition(name):
            for seed in seeds:
                summary, _ = train(
                    env, algo, seed, "--target-return", str(parsed.target), seconds=parsed.max_seconds
                )
                found.append(summary)
                reached = summary["steps_to_target"]
                print(
                    name, seed, reached, summary["time_to_target_seconds"], summary["policy_lag"], flush=True
                )
                if name == "quiet" and reached:
                    steps[seed] = reached
        solved = [s for s in found if s["steps_to_target"]]
        rows.append([name, f"{len(solved)} of {len(found)}"])
        if solved:
            taken = [float(s["steps_to_target"]) for s in solved]
            seconds = [s["time_to_target_seconds"] for s in solved]
            report.add(f"{name}_steps_to_target", taken, "steps")
            report.add(f"{name}_seconds_to_target", seconds, "s")
            rows[-1] += [
                f"{np.median(taken):,.0f}",
                f"{max(taken):,.0f}",
                f"{np.median(seconds):.1f}",
                f"{max(seconds):.1f}",
            ]
        report.add(f"{name}_solved", [float(len(solved))], f"of {len(found)}")
        report.add(f"{name}_updates_per_second", [s["updates_per_second"] for s in found], "1/s")
        report.add(f"{name}_policy_lag_p95", [s["policy_lag"]["p95"] for s in found], "updates")
        report.note(f"{name}_runs", [[s["seed"], s["steps_to_target"], s.get("updates_to_target"),
                                      s["time_to_target_seconds"]] for s in found])  # fmt: skip
        report.write()
    if parsed.after > 1.0:
        rows.append(stays_solved(report, env, algo, steps, parsed))
    table = markdown(["condition", "solved", "median steps", "worst", "median s", "worst s"], rows)
    print(table)
    report.note("table", table.splitlines())
    report.write()


def stays_solved(
    report: Report, env: str, algo: str, steps: dict[int, int], parsed: argparse.Namespace
) -> list[str]:
    """Share of the greedy evaluations after the first success that are still solved, and the largest action value."""
    kept = 0.95 * parsed.target if parsed.kept is None else parsed.kept
    shares, largest, total = [], [], []
    for seed, first in steps.items():
        _, lines = train(env, algo, seed, "--steps", str(int(first * parsed.after)), seconds=1e5)
        returns = [
            line["eval/mean_reward"]
            for line in lines
            if "eval/mean_reward" in line and line.get("eval/total_timesteps", 0) > first
        ]
        total += [float(value >= kept) for value in returns]
        shares.append(float(np.mean(np.array(returns) >= kept)))
        largest.append(max(line.get("train/q_max", 0.0) for line in lines))
        print("after", seed, len(returns), shares[-1], largest[-1], flush=True)
    report.add("evaluations_still_solved_by_seed", shares, f"share >= {kept:g}")
    report.add("evaluations_still_solved", [float(np.mean(total))], f"of {len(total)} evaluations")
    report.add("largest_action_value", largest, "")
    return [
        f"to {parsed.after:g} times the steps",
        f"{np.mean(total):.1%} of {len(total)} evaluations >= {kept:g}",
    ]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
