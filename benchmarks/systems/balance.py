"""Accuracy of samples per insert: achieved over target within a minute, with fast actors and a fast learner.

python -m benchmarks.systems.balance
"""

from __future__ import annotations

from asyncrl import DQN, Trainer
from benchmarks.harness.report import Report, script_parser


def main() -> None:
    """Measure and write results/balance.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    report = Report("balance")
    for target in (0.5, 4.0, 32.0):
        algorithm = DQN(samples_per_insert=target, learning_starts=1_000)
        trainer = Trainer("CartPole-v1", algorithm, num_actors=2, http="off", eval_interval_steps=None)
        summary = trainer.learn(max_seconds=seconds).summary
        ratio = summary["samples_per_insert"]["achieved"] / target
        report.add(f"achieved_to_target_{target:g}", [ratio], "x", "0.98 to 1.02")
        report.add(f"learner_wait_fraction_{target:g}", [summary["learner_wait_fraction"]], "")
        report.add(f"actor_wait_fraction_{target:g}", [summary["actor_wait_fraction"]], "")
    report.write()


if __name__ == "__main__":
    main()
