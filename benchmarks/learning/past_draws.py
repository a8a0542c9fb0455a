"""Which past segments IMPALA should replay: drawn uniformly, or by recency and return as TBA draws trajectories.

TBA (arXiv 2503.18929) draws from the newest data with probability m, else by the softmax of the reward. Here each past
segment of a batch is the newest one that is left with probability `NEWEST`, else drawn by the softmax of the segments'
sums of rewards, in standard deviations (temperature 1). A segment is the rows of all environments of an actor, so the
runs have one environment in each of four actors. In lockstep; the steps of a seed are the same on every run.

    none      no past segments
    uniform   `PastSegments` as it is
    recency   always the newest
    return    always by return
    both      TBA's

    python -m benchmarks.learning.past_draws --seeds 5
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from asyncrl import IMPALA
from asyncrl.interfaces import Segment
from asyncrl.learning import make_loop
from asyncrl.replay import past_segments
from asyncrl.replay.past_segments import PastSegments
from benchmarks.harness import runs
from benchmarks.harness.report import Report

NEWEST: dict[str, float | None] = {"none": None, "uniform": None, "recency": 1.0, "return": 0.0, "both": 0.5}
"""Probability of the newest, by item; None draws uniformly."""
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


class DrawnByReturn(PastSegments):
    """Past segments drawn by recency and return; a batch holds a segment once."""

    newest: ClassVar[float | None] = None

    def draw(self, version: int) -> list[Segment]:
        """See `PastSegments.draw`; no bound of staleness."""
        if self.newest is None:
            return super().draw(version)
        chosen: list[int] = []
        left = list(range(len(self._kept)))
        while left and len(chosen) < self._per_batch:
            if self._rng.random() < self.newest:
                chosen.append(left.pop())
                continue
            returns = np.array([float(self._kept[i].reward.sum()) for i in left])
            spread = returns.std()
            scores = np.exp((returns - returns.max()) / spread) if spread > 0 else np.ones(len(left))
            chosen.append(left.pop(int(self._rng.choice(len(left), p=scores / scores.sum()))))
        return [past_segments._for_use(self._kept[i]) for i in chosen]


def main() -> None:
    """Run everything and write results/past_draws.json."""
    parser = runs.flags(__doc__, [*NEWEST], seeds=5)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parsed, _ = runs.parse(parser, "past_draws", [*NEWEST])
    setattr(make_loop, "PastSegments", DrawnByReturn)  # noqa: B010 (its type is that of the class)
    report, rows = Report(parsed.name), []
    report.note("settings", f"{KEPT} segments kept, {PER_BATCH} in a batch beside {ACTORS} new ones")
    for task in parsed.tasks.split(","):
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
    DrawnByReturn.newest = NEWEST[item]
    kept: dict[str, Any] = {} if item == "none" else {"past_segments": KEPT, "past_per_batch": PER_BATCH}
    made = IMPALA(**algorithm, **kept) if algorithm else IMPALA.preset(env, **kept)
    options = {"num_actors": ACTORS, "envs_per_actor": 1, "eval_interval_steps": 2_500, "total_steps": most}
    summary = runs.learn(env, made, seed, "greedy", target, LIMIT_SECONDS, **options, **run)
    print(task, item, seed, runs.line(summary), flush=True)
    return summary


if __name__ == "__main__":
    main()
