"""Continuous actions: SAC on Pendulum, evaluated by steps, with its files in a directory.

python examples/continuous_actions.py [STEPS]
"""

import json
import sys
import tempfile
from pathlib import Path

from asyncrl import SAC, Trainer


def main(steps: int = 20_000) -> float:
    """Train; returns the mean return of the final evaluation."""
    run_dir = Path(tempfile.mkdtemp()) / "pendulum"
    sac = SAC.preset("Pendulum-v1", hidden_sizes=(128, 128))
    trainer = Trainer(
        "Pendulum-v1", sac, num_actors=1, eval_interval_steps=2_000, run_dir=run_dir, http="off"
    )
    result = trainer.learn(total_steps=steps, target_return=-200.0)
    for evaluation in result.evaluations:
        print(
            f"{evaluation.env_steps:>7,} steps: {evaluation.return_mean:8.1f} +/- {evaluation.return_std:.1f}"
        )
    summary = json.loads((run_dir / "summary.json").read_text())
    print(f"staleness {summary['staleness']}, files in {run_dir}")
    return result.evaluation.return_mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
