"""Which past segments IMPALA should replay: drawn uniformly, or by recency and return as TBA draws trajectories.

TBA (arXiv 2503.18929) draws from the newest data with probability m, else by the softmax of the reward. `past_newest`
does so with segments. A segment has the rows of all environments of an actor, so the runs have one environment in each
of four actors. In lockstep; the steps of a seed are the same in every run on one kind of machine.

    none      no past segments
    uniform   all alike
    recency   always the newest
    return    always by return
    both      TBA's, one half each

    python -m benchmarks.learning.past_draws --seeds 5
"""

from __future__ import annotations

from typing import Any

from asyncrl import IMPALA
from benchmarks.harness import runs
from benchmarks.harness.report import Report

NEWEST: dict[str, float | None] = {"none": None, "uniform": None, "recency": 1.0, "return": 0.0, "both": 0.5}
"""`past_newest` by item."""
KEPT, PER_BATCH, LIMIT_SECONDS = 64, 4, 300.0
ACTORS = 4
TASKS: dict[str, tuple[str, float, int, dict[str, Any], dict[str, Any]]] = {
    "catch": ("asyncrl/Catch-v0", 0.95, 150_000, {}, {}),
    "recall": ("asyncrl/Recall-v0", 0.95, 300_000, {}, {"env_kwargs": {"delay": 20}}),
    "sparse": (
        "FrozenLake8x8-v1",
        0.95,
        100_000,
        {"discipline": "lockstep", "learning_rate": 1e-3, "segment_length": 16},
        {"env_kwargs": {"is_slippery": False}},
    ),
}
"""Environment, target, most steps, options of the algorithm and of the run."""


def main() -> None:
    """Run everything and write results/past_draws.json."""
    parser = runs.flags(__doc__, [*NEWEST], seeds=5)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parsed, _ = runs.parse(parser, "past_draws", [*NEWEST])
    if (tasks := parsed.tasks.split(",")) != [*TASKS]:
        parsed.name = "_".join([parsed.name, *tasks])
    report, rows = Report(parsed.name), []
    report.note("settings", f"{KEPT} segments kept, {PER_BATCH} in a batch beside {ACTORS} new ones")
    for task in tasks:
        most = TASKS[task][2]
        for item in parsed.items:
            found = [_run(task, item, seed) for seed in range(parsed.seeds)]
            solved = [runs.reached(s, "greedy") for s in found]
            steps = [
                float(s["steps_to_target"]) if r else float(most) for s, r in zip(found, solved, strict=True)
            ]
            median = report.add(f"{task}/{item}_steps_to_target", steps, "steps")
            row = [task, item, f"{sum(solved)} of {len(solved)}", f"{median:,.0f}", f"{max(steps):,.0f}"]
            rows.append(row)
        report.add_table(["task", "past segments", "solved", "median steps", "worst"], rows)
        report.write()


def _run(task: str, item: str, seed: int) -> runs.Summary:
    """One run to the target, or to the task's number of steps."""
    env, target, most, algorithm, run = TASKS[task]
    kept: dict[str, Any] = (
        {}
        if item == "none"
        else {
            "past_segments": KEPT,
            "past_per_batch": PER_BATCH,
            "past_newest": NEWEST[item],
        }
    )
    made = IMPALA(**algorithm, **kept) if algorithm else IMPALA.preset(env, **kept)
    options = {"num_actors": ACTORS, "envs_per_actor": 1, "eval_interval_steps": 2_500, "total_steps": most}
    summary = runs.learn(env, made, seed, "greedy", target, LIMIT_SECONDS, **options, **run)
    print(task, item, seed, runs.line(summary), flush=True)
    return summary


if __name__ == "__main__":
    main()
