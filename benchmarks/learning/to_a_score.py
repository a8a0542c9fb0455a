"""How many steps, seconds of training and CPU seconds a preset takes to a score, with its curve, on several seeds.

Each run is `asyncrl train ENV --algo ALGO --seed SEED` in its own process, as a user starts it. It stops at the score,
a greedy mean over `target_eval_episodes` episodes, or at `--steps`. With `--to-the-end` it goes on to `--steps`, and
the score counts from the first evaluation that has it. Options after `--` go to `asyncrl train`. CPU seconds are those
of all processes of a run, start-up and evaluations included.

Every run is written as soon as it ends, with its commit; the curve has a point for each evaluation. `--add` keeps the
runs in the result file and makes only the missing ones.

    python -m benchmarks.learning.to_a_score CartPole-v1 pqn 475 --seeds 5
    python -m benchmarks.learning.to_a_score MinAtar/Breakout-v1 pqn 10 --seeds 3 --steps 1000000 --to-the-end --add
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness.report import FOLDER, Report, commit, script_parser
from benchmarks.harness.runs import evaluations, finished_run
from benchmarks.learning.held_out import FIRST_SEED


@dataclass
class Run:
    """One run in the form of the result file.

    Attributes:
        seed: seed of the run.
        steps, seconds: environment steps and seconds of training until the score; None if it was not reached.
        cpu_seconds: CPU seconds of the whole run.
        env_steps, train_seconds: steps and seconds of training of the whole run.
        last: mean return of the last evaluation; None without one.
        commit: commit of the code that ran.
        curve: steps and mean return of every evaluation.
    """

    seed: int
    steps: int | None
    seconds: float | None
    cpu_seconds: float
    env_steps: int
    train_seconds: float
    last: float | None
    commit: str | None
    curve: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def of(cls, summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], score: float) -> Run:
        """Make the record from a `summary.json` and the lines of a `metrics.jsonl`.

        Without `steps_to_target` (the run had no target) the score is reached at the first evaluation that has it, and
        its seconds are those of all training in proportion to the steps.
        """
        curve = [(steps, round(mean, 2)) for steps, mean in evaluations(lines)]
        steps, seconds = summary["steps_to_target"], summary["time_to_target_seconds"]
        if steps is None:
            steps = next((at for at, mean in curve if mean >= score), None)
            seconds = None if steps is None else summary["train_seconds"] * steps / summary["env_steps"]
        return cls(
            seed=summary["seed"],
            steps=steps,
            seconds=seconds,
            cpu_seconds=round(summary["cpu_seconds"], 1),
            env_steps=summary["env_steps"],
            train_seconds=summary["train_seconds"],
            last=summary["eval"]["return_mean"],
            commit=commit(),
            curve=curve,
        )


def earlier_runs(name: str) -> list[Run]:
    """Runs in the result file `name`; none without one."""
    path = FOLDER / "results" / f"{name}.json"
    return [Run(**run) for run in json.loads(path.read_text())["notes"]["runs"]] if path.exists() else []


def add_runs(report: Report, runs: Sequence[Run]) -> None:
    """Add the figures of `runs` to the report."""
    report.note("runs", [dataclasses.asdict(run) for run in runs])
    reached = [run for run in runs if run.steps is not None]
    report.add("reached", [float(len(reached))], f"of {len(runs)}")
    report.add("cpu_seconds", [run.cpu_seconds for run in runs], "s")
    report.add("train_seconds", [run.train_seconds for run in runs], "s")
    if last := [run.last for run in runs if run.last is not None]:
        report.add("last_return", last, "")
    if reached:
        report.add("steps_to_score", [float(run.steps or 0) for run in reached], "steps")
        report.add("seconds_to_score", [run.seconds or 0.0 for run in reached], "s")


def table_row(run: Run) -> list[Any]:
    """One run in the table: the score's steps and seconds, then the whole run."""
    steps = None if run.steps is None else f"{run.steps:,}"
    return [run.seed, steps, run.seconds, run.cpu_seconds, f"{run.env_steps:,}", run.last]


def main() -> None:
    """Run everything and write results/to_a_score_<env>_<algo>.json."""
    parser = script_parser(__doc__)
    parser.add_argument("env")
    parser.add_argument("algo")
    parser.add_argument("score", type=float)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="first of the consecutive seeds")
    parser.add_argument("--steps", type=int, help="environment steps at most")
    parser.add_argument("--to-the-end", action="store_true", help="go on to --steps behind the score")
    parser.add_argument("--label", help="appended to the name of the result file, for options behind --")
    parser.add_argument("--add", action="store_true", help="make only the runs that the result file lacks")
    own, behind = _split(sys.argv[1:])
    parsed = parser.parse_args(own)
    if parsed.to_the_end and parsed.steps is None:
        parser.error("--to-the-end needs --steps")
    name = "_".join(filter(None, ("to_a_score", parsed.env, parsed.algo, parsed.label)))
    name = name.lower().translate(str.maketrans("-/:.", "____"))
    runs, report = earlier_runs(name) if parsed.add else [], Report(name)
    options = [] if parsed.steps is None else ["--steps", str(parsed.steps)]
    options += (
        ["--target-eval-episodes", "100"] if parsed.to_the_end else ["--target-return", str(parsed.score)]
    )
    seeds = range(parsed.first_seed, parsed.first_seed + parsed.seeds)
    for seed in sorted({*seeds} - {run.seed for run in runs}):
        runs.append(Run.of(*finished_run(parsed.env, parsed.algo, seed, [*options, *behind]), parsed.score))
        add_runs(report, runs)
        report.write()
    if not runs:
        parser.error("--seeds must be at least 1")
    add_runs(report, runs)
    worst = max((run.steps or np.inf for run in runs), default=np.inf)
    report.note("score", parsed.score)
    report.note("worst_steps", None if np.isinf(worst) else worst)
    report.add_table(
        ["seed", "steps to the score", "s", "CPU s of the run", "steps of the run", "last return"],
        [table_row(run) for run in runs],
    )
    report.write()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments before and behind `--`."""
    at = [*arguments, "--"].index("--")
    return [*arguments[:at]], [*arguments[at + 1 :]]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
