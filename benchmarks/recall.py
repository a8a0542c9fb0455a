"""A cue shown once and asked for 20 steps later: steps and seconds to a greedy 0.95, on held-out seeds.

PPO with a GRU and IMPALA with an LSTM, in lockstep, and PPO without memory, which must stay at chance, 0. Options were
chosen on seeds 0 to 2.

    python benchmarks/recall.py [--seeds 10] [--only ppo-gru,impala-lstm,ppo-none]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Report, markdown
from held_out import FIRST_SEED
from runs import add_clock, announce, flags, learn, line, parse, reached

DELAY, TARGET, LIMIT_SECONDS = 20, 0.95, 900.0
COMMON: dict[str, Any] = {
    "discipline": "lockstep",
    "hidden_sizes": (32,),
    "recurrent_size": 32,
    "learning_rate": 3e-3,
}
OFF_POLICY: dict[str, Any] = {
    "discipline": "lockstep",
    "hidden_sizes": (32,),
    "learning_rate": 2e-3,
    "exploration_steps": 3000,
}
RUN: dict[str, Any] = {
    "num_actors": 1,
    "envs_per_actor": 16,
    "env_kwargs": {"delay": DELAY},
    "eval_interval_steps": 5000,
}
STEPS = {
    "ppo-gru": 500_000,
    "impala-lstm": 1_000_000,
    "ppo-none": 200_000,
    "r2d2-lstm": 200_000,
    "dqn-none": 50_000,
}


def record(item: str) -> Any:
    """The algorithm of an item."""
    from asyncrl import DQN, IMPALA, PPO, R2D2

    name, cell = item.split("-")
    if name == "r2d2":
        return R2D2.preset("asyncrl/Recall-v0", recurrent=cell)
    if name == "dqn":
        return DQN(**OFF_POLICY)
    if name == "impala":
        return IMPALA(recurrent=cell, segment_length=64, minibatches=4, epochs=2, ent_coef=0.02, **COMMON)
    return PPO(recurrent=cell, segment_length=64, minibatch_size=256, **COMMON)


def main() -> None:
    """Run everything and write results/recall.json."""
    parsed, _ = parse(flags(__doc__, [*STEPS], seeds=10), "recall", [*STEPS])
    report, rows = Report(parsed.name), []
    seeds = range(FIRST_SEED, FIRST_SEED + parsed.seeds)
    report.note("seeds", f"{seeds.start} to {seeds.stop - 1}")
    announce(len(parsed.items) * len(seeds), LIMIT_SECONDS)
    for item in parsed.items:
        found = []
        for seed in seeds:
            options = {**RUN, "env_kwargs": {"delay": DELAY}, "total_steps": STEPS[item]}
            found.append(
                learn("asyncrl/Recall-v0", record(item), seed, "greedy", TARGET, LIMIT_SECONDS, **options)
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
