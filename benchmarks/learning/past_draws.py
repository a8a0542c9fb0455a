"""Which past segments IMPALA should replay: drawn uniformly, by recency and return, or by how likely they still are.

TBA (arXiv 2503.18929) draws from the newest data with probability m, else by the softmax of the reward. `past_newest`
does so with segments. DistRL (arXiv 2410.14803) prefers data that the current policy would act out too: here a segment
is drawn with a probability proportional to the mean of min(1, rho) over its rows, rho the ratio of the current
policy's to the behaviour's probability, and to (1 + a)^-1 for an age of a publications. This is a prototype, which is
in this script only. A segment has the rows of all environments of an actor, so the runs have one environment in each of
four actors. In lockstep; the steps of a seed are the same in every run on one kind of machine.

    none      no past segments
    uniform   all alike
    recency   always the newest
    return    always by return
    both      TBA's, one half each
    ratio     by rho; this and the next two in the sparse task only
    age       by age
    distrl    by rho and age

    python -m benchmarks.learning.past_draws --seeds 5
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from asyncrl import IMPALA
from asyncrl.interfaces import UNTRAINED, EnvSpec, Segment
from asyncrl.replay import past_segments
from asyncrl.replay.past_segments import PastSegments
from benchmarks.harness import runs
from benchmarks.harness.report import Report

NEWEST: dict[str, float | None] = {"none": None, "uniform": None, "recency": 1.0, "return": 0.0, "both": 0.5}
"""`past_newest` by item."""
EXPONENTS = {"ratio": (1.0, 0.0), "age": (0.0, 1.0), "distrl": (1.0, 1.0)}
"""Exponents of the ratio and of the age by item."""
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


class IMPALAOfPast(IMPALA):
    """IMPALA whose present policy `draw` can ask."""

    core: ClassVar[Any] = None
    policy: ClassVar[Any] = None

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Any:
        """Keep the updater, and a policy for its weights."""
        core = IMPALAOfPast.core = super().make_updater(spec, device, seed)
        IMPALAOfPast.policy = self.make_policy(spec)
        return core


def draw(past: PastSegments, version: int, b: float, c: float) -> list[Segment]:
    """Draw as `PastSegments.draw`, with probabilities by ratio and age."""
    bound = np.inf if past._bound is None else past._bound
    usable = [segment for segment in past._kept if version - segment.version.min() <= bound]
    if not usable:
        return []
    core, policy = IMPALAOfPast.core, IMPALAOfPast.policy
    core.write_weights(policy.weights)
    policy.weights_changed()
    scores = np.array(
        [ratio(policy, segment) ** b * (1.0 + version - segment.version.min()) ** -c for segment in usable]
    )
    count = min(past._per_batch, len(usable))
    chosen = past._rng.choice(len(usable), size=count, replace=False, p=scores / scores.sum())
    return [past_segments._for_use(usable[i]) for i in chosen]


def ratio(policy: Any, segment: Segment) -> float:
    """Mean of min(1, rho) over the trained rows of a segment of one environment."""
    rows = segment.reward.shape[1]
    now = policy.log_prob(segment.obs[0, :rows], segment.action[0])
    trained = segment.flags[0, :rows] & UNTRAINED == 0
    least = 1e-6  # so that every segment can be drawn
    return least + float(np.exp(np.minimum(0, now - segment.extras["log_prob"][0]))[trained].mean())


def main() -> None:
    """Run everything and write results/past_draws.json."""
    parser = runs.flags(__doc__, [*NEWEST, *EXPONENTS], seeds=5)
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parsed, _ = runs.parse(parser, "past_draws", [*NEWEST, *EXPONENTS])
    if (tasks := parsed.tasks.split(",")) != [*TASKS]:
        parsed.name = "_".join([parsed.name, *tasks])
    report, rows = Report(parsed.name), []
    report.note("settings", f"{KEPT} segments kept, {PER_BATCH} in a batch beside {ACTORS} new ones")
    for task in tasks:
        most = TASKS[task][2]
        for item in parsed.items:
            if item in EXPONENTS and task != "sparse":  # the other tasks' policies take stacked frames
                continue
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
            "past_newest": NEWEST.get(item),
        }
    )
    made = IMPALAOfPast(**algorithm, **kept) if algorithm else IMPALAOfPast.preset(env, **kept)
    options = {"num_actors": ACTORS, "envs_per_actor": 1, "eval_interval_steps": 2_500, "total_steps": most}
    b, c = EXPONENTS.get(item, (0.0, 0.0))
    drawn = partialmethod(draw, b=b, c=c) if item in EXPONENTS else PastSegments.draw
    with mock.patch.object(PastSegments, "draw", drawn):
        summary = runs.learn(env, made, seed, "greedy", target, LIMIT_SECONDS, **options, **run)
    print(task, item, seed, runs.line(summary), flush=True)
    return summary


if __name__ == "__main__":
    main()
