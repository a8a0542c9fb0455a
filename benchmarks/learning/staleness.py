"""Comparison of staleness corrections for replay: time, steps and updates to a greedy 475 on CartPole-v1.

Every correction, without and with a bound, over several seeds. A run that misses the target counts with the time limit.

    python -m benchmarks.learning.staleness
"""

from __future__ import annotations

from typing import Any

from asyncrl import DQN, Trainer
from benchmarks.harness.report import Report, script_parser

CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {"staleness_correction": "none"},
    "power_0.25": {"staleness_correction": "power", "staleness_rate": 0.25},
    "power_0.5": {"staleness_correction": "power", "staleness_rate": 0.5},
    "exponential_0.001": {"staleness_correction": "exponential", "staleness_rate": 0.001},
    "none_bound_1000": {"staleness_correction": "none", "max_staleness": 1000},
    "power_0.5_bound_1000": {"staleness_correction": "power", "staleness_rate": 0.5, "max_staleness": 1000},
}


def main() -> None:
    """Measure and write results/staleness.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--max-seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CORRECTIONS}
    for seed in range(arguments.seeds):
        for name, options in CORRECTIONS.items():
            algorithm = DQN.preset("CartPole-v1", **options)
            trainer = Trainer(
                "CartPole-v1", algorithm, seed=seed, http="off", **DQN.preset_options("CartPole-v1")
            )
            result = trainer.learn(target_return=475.0, max_seconds=arguments.max_seconds)
            runs[name].append(result.summary)
    report = Report("staleness")
    for name, summaries in runs.items():
        reached = sum(s["stop_reason"] == "target_return" for s in summaries)
        report.note(f"{name}_reached", f"{reached} of {len(summaries)}")
        report.add(f"{name}_train_seconds", [s["train_seconds"] for s in summaries], "s")
        report.add(f"{name}_updates", [s["updates"] for s in summaries], "updates")
        report.add(f"{name}_staleness_p95", [s["staleness"]["p95"] for s in summaries], "updates")
        report.add(f"{name}_discarded", [s["staleness"]["discarded_fraction"] for s in summaries], "")
    report.write()


if __name__ == "__main__":
    main()
