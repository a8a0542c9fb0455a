"""Presets on seeds that they were not chosen by: steps, updates and seconds to the target.

Each run is `asyncrl train ENV --algo ALGO --seed SEED --target-return TARGET` in a process of its own, as a user starts
it, under each of the conditions of `conditions.py`. What comes after the target: `stays_solved.py`.

    python benchmarks/held_out.py CartPole-v1 dqn 475
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
    parsed = parser.parse_args()
    env, algo = parsed.env, parsed.algo
    report = Report(f"held_out_{env}_{algo}".lower().translate(str.maketrans("-/", "__")))
    seeds = range(FIRST_SEED, FIRST_SEED + parsed.seeds)
    report.note("seeds", f"{seeds.start} to {seeds.stop - 1}")
    rows = []
    for name in parsed.conditions.split(","):
        found = []
        with condition(name):
            for seed in seeds:
                summary, _ = train(
                    env, algo, seed, "--target-return", str(parsed.target), seconds=parsed.max_seconds
                )
                found.append(summary)
                reached, seconds = summary["steps_to_target"], summary["time_to_target_seconds"]
                print(name, seed, reached, seconds, summary["policy_lag"], flush=True)
        solved = [s for s in found if s["steps_to_target"]]
        rows.append([name, f"{len(solved)} of {len(found)}"])
        if solved:
            taken = [float(s["steps_to_target"]) for s in solved]
            times = [s["time_to_target_seconds"] for s in solved]
            report.add(f"{name}_steps_to_target", taken, "steps")
            report.add(f"{name}_seconds_to_target", times, "s")
            rows[-1] += [
                f"{np.median(taken):,.0f}",
                f"{max(taken):,.0f}",
                f"{np.median(times):.1f}",
                f"{max(times):.1f}",
            ]
        report.add(f"{name}_solved", [float(len(solved))], f"of {len(found)}")
        report.add(f"{name}_updates_per_second", [s["updates_per_second"] for s in found], "1/s")
        report.add(f"{name}_policy_lag_p95", [s["policy_lag"]["p95"] for s in found], "updates")
        report.note(f"{name}_runs", [[s["seed"], s["steps_to_target"], s.get("updates_to_target"),
                                      s["time_to_target_seconds"]] for s in found])  # fmt: skip
        report.write()
    table = markdown(["condition", "solved", "median steps", "worst", "median s", "worst s"], rows)
    print(table)
    report.note("table", table.splitlines())
    report.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
