"""Stability after the target: the runs of `held_out.py` once more, without a target and three times as long.

Reads the steps of each seed from `results/held_out_<env>_<algo>.json`, and counts the greedy evaluations after the
first success whose mean return is still at least `kept`.

    python -m benchmarks.learning.stays_solved CartPole-v1 dqn 450
"""

from __future__ import annotations

import json
import os

import numpy as np

from benchmarks.harness.report import FOLDER, Report, script_parser
from benchmarks.harness.runs import evaluations, finished_run


def main() -> None:
    """Run everything and write results/stays_solved_<env>_<algo>.json."""
    parser = script_parser(__doc__)
    parser.add_argument("env")
    parser.add_argument("algo")
    parser.add_argument("kept", type=float, help="mean return that counts as still solved")
    parser.add_argument("--times", type=float, default=3.0, help="length, in steps to the target")
    parser.add_argument("--seeds", type=int, default=20)
    parsed = parser.parse_args()
    label = f"{parsed.env}_{parsed.algo}".lower().replace("-", "_")
    found = json.loads((FOLDER / "results" / f"held_out_{label}.json").read_text())["notes"]
    runs = next(value for name, value in found.items() if name.endswith("_runs"))
    report = Report(f"stays_solved_{label}")
    shares, largest, returns, same = [], [], [], []
    for run in [run for run in runs if run["steps"]][: parsed.seeds]:
        seed, first = run["seed"], run["steps"]
        steps = str(int(first * parsed.times))
        _, lines = finished_run(parsed.env, parsed.algo, seed, ["--steps", steps])
        curve = evaluations(lines)
        later = [mean for at, mean in curve if at > first]
        at_target = [mean for at, mean in curve if at == first]
        same.append(bool(at_target) and at_target[0] >= parsed.kept)
        returns += later
        shares.append(float(np.mean(np.array(later) >= parsed.kept)))
        largest.append(max(line.get("train/q_max", 0.0) for line in lines))
        print(seed, len(later), f"{shares[-1]:.3f}", f"{largest[-1]:.4g}", same[-1], flush=True)
    report.add("share_by_seed", shares, f"of the evaluations of a seed >= {parsed.kept:g}")
    report.add("share", [float(np.mean(np.array(returns) >= parsed.kept))], f"of {len(returns)} evaluations")
    report.add("largest_action_value", largest, "")
    # In lockstep all, unless an option (a schedule over `total_steps`) makes the longer run another run.
    report.add("solved_at_the_same_step", [float(np.mean(same))], f"of {len(same)} seeds")
    report.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
