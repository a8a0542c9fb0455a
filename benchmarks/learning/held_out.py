"""Presets on held-out seeds, which were not used to choose them: steps, updates and seconds to the target.

Each run is `asyncrl train ENV --algo ALGO --seed SEED --target-return TARGET` in its own process, as a user starts it,
under each of the conditions of `conditions.py` (`jitter` only by `--conditions jitter`). For the time after the target
see `stays_solved.py`.

Every run is written as soon as it ends, with its commit. `--add` keeps the runs in the result file and makes only the
missing ones.

    python -m benchmarks.learning.held_out CartPole-v1 dqn 475
    python -m benchmarks.learning.held_out LunarLander-v3 c51 200 --conditions one-core --add
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import runs as runs_of
from benchmarks.harness.conditions import ALL_CONDITIONS, CONDITIONS, condition
from benchmarks.harness.report import FOLDER, Report, commit, script_parser

FIRST_SEED = 1_000
"""First seed for reporting; presets are chosen on others (0 to 199)."""


@dataclass
class Run:
    """One run in the form of the result file.

    Attributes:
        seed: seed of the run.
        steps, updates, seconds: until the target; None if it was not reached.
        updates_per_second: update rate of the run.
        policy_lag_p95: 95th percentile of the policy lag, in updates.
        commit: commit of the code that ran.
    """

    seed: int
    steps: int | None
    updates: int | None
    seconds: float | None
    updates_per_second: float | None
    policy_lag_p95: float | None
    commit: str | None

    @classmethod
    def of(cls, summary: dict[str, Any]) -> Run:
        """Make the record from a `summary.json`."""
        return cls(
            summary["seed"],
            summary["steps_to_target"],
            summary.get("updates_to_target"),
            summary["time_to_target_seconds"],
            summary["updates_per_second"],
            summary["policy_lag"]["p95"],
            commit(),
        )


def earlier_runs(report: Report, name: str) -> list[Run]:
    """Runs under condition `name` in the result file of `report`."""
    path = FOLDER / "results" / f"{report.name}.json"
    if not path.exists():
        return []
    return [Run(**run) for run in json.loads(path.read_text())["notes"].get(f"{name}_runs", [])]


def add_runs(report: Report, name: str, runs: list[Run]) -> list[str]:
    """Add the runs under condition `name` to the report; returns their row of the table."""
    solved = [run for run in runs if run.steps]
    report.note(f"{name}_runs", [dataclasses.asdict(run) for run in runs])
    report.add(f"{name}_solved", [float(len(solved))], f"of {len(runs)}")
    row = [name, f"{len(solved)} of {len(runs)}"]
    for field, unit in (("updates_per_second", "1/s"), ("policy_lag_p95", "updates")):
        values = [value for run in runs if (value := getattr(run, field)) is not None]
        if values:
            report.add(f"{name}_{field}", values, unit)
    if solved:
        steps, seconds = ([float(getattr(run, key) or 0) for run in solved] for key in ("steps", "seconds"))
        report.add(f"{name}_steps_to_target", steps, "steps")
        report.add(f"{name}_seconds_to_target", seconds, "s")
        row += [f"{np.median(steps):,.0f}", f"{max(steps):,.0f}"]
        row += [f"{np.median(seconds):.1f}", f"{max(seconds):.1f}"]
    return row


def main() -> None:
    """Run everything and write results/held_out_<env>_<algo>.json."""
    parser = script_parser(__doc__)
    parser.add_argument("env")
    parser.add_argument("algo")
    parser.add_argument("target", type=float)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--max-seconds", type=float, default=120.0)
    parser.add_argument("--add", action="store_true", help="make only the runs that the result file lacks")
    parsed = parser.parse_args()
    env, algo = parsed.env, parsed.algo
    report = Report(f"held_out_{env}_{algo}".lower().translate(str.maketrans("-/", "__")))
    seeds = range(FIRST_SEED, FIRST_SEED + parsed.seeds)
    report.note("seeds", f"{seeds.start} to {seeds.stop - 1}")
    found = {name: earlier_runs(report, name) if parsed.add else [] for name in ALL_CONDITIONS}
    rows = {name: add_runs(report, name, runs) for name, runs in found.items() if runs}
    for name in parsed.conditions.split(","):
        runs = found[name]
        with condition(name):
            for seed in sorted({*seeds} - {run.seed for run in runs}):
                line = ["--target-return", str(parsed.target), "--max-seconds", str(parsed.max_seconds)]
                runs.append(Run.of(runs_of.finished_run(env, algo, seed, line)[0]))
                print(name, runs[-1], flush=True)
                rows[name] = add_runs(report, name, runs)
                report.write()
    report.add_table(
        ["condition", "solved", "median steps", "worst", "median s", "worst s"], list(rows.values())
    )
    report.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
