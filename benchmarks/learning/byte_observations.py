"""CartPole-v1 in bytes: what the normalisation of observations that are bytes and no image gains.

The four numbers are scaled and cut to whole bytes from 0 to 255, as those of a converter. Records are the defaults,
which normalise such bytes by their running statistics, and the same with `normalize_observations=False`.

    python -m benchmarks.learning.byte_observations
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Any

import gymnasium
import numpy as np

from asyncrl import Trainer
from asyncrl.algorithms import ALGORITHMS
from benchmarks.harness.report import Report, script_parser

STEPS = {"ppo": 60_000, "a2c": 60_000, "dqn": 40_000}
SCALE = np.array([40.0, 30.0, 400.0, 30.0])


class CartPoleInBytes(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 whose observations are four bytes, the middle of every range at 128."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = gymnasium.spaces.Box(0, 255, (4,), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.clip(observation * SCALE + 128.0, 0, 255).astype(np.uint8)


def final_return(algo: str, seed: int, options: dict[str, Any]) -> float:
    """Mean greedy return of 100 episodes after the steps of `STEPS`."""
    trainer = Trainer(CartPoleInBytes, ALGORITHMS[algo](**options), seed=seed, http="off", eval_episodes=100)
    evaluation: dict[str, float] = trainer.learn(total_steps=STEPS[algo], progress=False).summary["eval"]
    return evaluation["return_mean"]


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parsed = parser.parse_args()
    report = Report("byte_observations")
    for algo, steps in STEPS.items():
        for name, options in (("normalised", {}), ("as they are", {"normalize_observations": False})):
            returns = [final_return(algo, seed, options) for seed in range(parsed.seeds)]
            report.add(f"{algo}, {steps:,} steps, bytes {name}", returns, "return")
    report.write()


if __name__ == "__main__":
    main()
