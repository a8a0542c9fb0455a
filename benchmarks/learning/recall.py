"""Recall of a cue that is shown once and needed 20 steps later: steps and seconds to a greedy 0.95 on held-out seeds.

The presets of PPO (GRU), IMPALA (LSTM) and R2D2 (LSTM), in lockstep, and the same without memory, which must stay at
chance, 0; for R2D2 that is DQN. Options were chosen on seeds below 200.

    python -m benchmarks.learning.recall [--seeds 10] [--only ppo-gru,impala-lstm,ppo-none,impala-none]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness.report import Report, markdown
from benchmarks.harness.runs import add_clock, announce, flags, learn, line, parse, reached
from benchmarks.learning.held_out import FIRST_SEED

DELAY, TARGET, LIMIT_SECONDS = 20, 0.95, 900.0
DQN_OPTIONS: dict[str, Any] = {
    "discipline": "lockstep",
    "hidden_sizes": (32,),
    "learning_rate": 2e-3,
    "exploration_steps": 3000,
}
ENVIRONMENTS = {"impala": 32}
STEPS = {
    "ppo-gru": 300_000,
    "impala-lstm": 1_000_000,
    "r2d2-lstm": 200_000,
    "ppo-none": 300_000,
    "impala-none": 300_000,
    "dqn-none": 50_000,
}


def record(item: str) -> Any:
    """The algorithm of an item."""
    from asyncrl import DQN, IMPALA, PPO, R2D2

    name, cell = item.split("-")
    if name == "dqn":
        return DQN(**DQN_OPTIONS)
    records: dict[str, Any] = {"ppo": PPO, "impala": IMPALA, "r2d2": R2D2}
    return records[name].preset("asyncrl/Recall-v0", recurrent=cell)


def main() -> None:
    """Run everything and write results/recall.json."""
    parsed, _ = parse(flags(__doc__, [*STEPS], seeds=10), "recall", [*STEPS])
    report, rows = Report(parsed.name), []
    seeds = range(FIRST_SEED, FIRST_SEED + parsed.seeds)
    report.note("seeds", f"{seeds.start} to {seeds.stop - 1}")
    announce(len(parsed.items) * len(seeds), LIMIT_SECONDS)
    for item in parsed.items:
        run = {
            "num_actors": 1,
            "envs_per_actor": ENVIRONMENTS.get(item.split("-")[0], 16),
            "env_kwargs": {"delay": DELAY},
            "total_steps": STEPS[item],
            "eval_interval_steps": 5000,
        }
        found = []
        for seed in seeds:
            found.append(
                learn("asyncrl/Recall-v0", record(item), seed, "greedy", TARGET, LIMIT_SECONDS, **run)
            )
            print(item, seed, line(found[-1]), flush=True)
        add_clock(report, item, found, "greedy", LIMIT_SECONDS)
        steps = [float(run["steps_to_target"]) for run in found if reached(run, "greedy")]
        rows.append([item, f"{len(steps)} of {len(found)}"])
        rows[-1] += [f"{np.median(steps):,.0f}", f"{max(steps):,.0f}"] if steps else ["", ""]
        returns = [run["eval"]["return_mean"] for run in found]
        rows[-1].append(f"{min(returns):.2f} to {max(returns):.2f}")
        report.note(
            "table",
            markdown(["policy", "solved", "median steps", "worst", "final return"], rows).splitlines(),
        )
        report.write()


if __name__ == "__main__":
    main()
