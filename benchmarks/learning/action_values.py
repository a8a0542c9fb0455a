"""Largest action values of DQN on CartPole-v1, whose true values are at most 100, by policy lag and settings.

Every row trains in lockstep for the same number of steps, so its numbers depend only on the seed. Reported is the
largest action value of any report. `tau` is the speed of the target network; `samples_per_insert` is 32 as in the
preset.

    python -m benchmarks.learning.action_values
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

from asyncrl import DQN, Trainer
from asyncrl.errors import ActionValuesOutOfRange
from benchmarks.harness.report import Report, script_parser

SETTINGS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "n_step 1": {"n_step": 1},
    "tau 0.005": {"tau": 0.005},
    "learning_rate 5e-4": {"learning_rate": 5e-4},
    "bound_targets": {"bound_targets": True},
}
BASE: dict[str, Any] = {
    "learning_rate": 2e-3,
    "hidden_sizes": (128, 128),
    "prioritized": False,
    "samples_per_insert": 32.0,
    "learning_starts": 500,
    "exploration_steps": 3_000,
    "replay_capacity": 50_000,
    "discipline": "lockstep",
    "bound_targets": False,
}


def largest_value(options: dict[str, Any], lag: int, seed: int, steps: int) -> float:
    """Largest absolute action value of all reports of a run."""
    seen = [0.0]
    algorithm = DQN(**{**BASE, **options, "lockstep_lag": lag})
    trainer = Trainer(
        "CartPole-v1", algorithm, seed=seed, num_actors=1, envs_per_actor=16, http="off",
        eval_interval_steps=None, target_eval_episodes=1, report_interval_steps=500,
    )  # fmt: skip
    trainer.learn(steps, on_snapshot=lambda s: seen.append(s.train_metrics.get("train/q_max", 0.0)))
    return max(seen)


def main() -> None:
    """Run everything and write results/action_values.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=4)
    parsed = parser.parse_args()
    warnings.simplefilter("ignore", ActionValuesOutOfRange)
    report, rows = Report("action_values"), []
    for (name, options), lag in itertools.product(SETTINGS.items(), (4, 32)):
        values = [largest_value(options, lag, seed, parsed.steps) for seed in range(parsed.seeds)]
        report.add(f"{name}, lag {lag}", values, "")
        rows.append([name, lag, f"{sorted(values)[len(values) // 2]:,.0f}", f"{max(values):,.0f}"])
    report.add_table(["setting", "policy lag (updates)", "median largest value", "worst"], rows)
    report.write()


if __name__ == "__main__":
    main()
