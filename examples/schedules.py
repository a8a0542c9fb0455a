"""Learning rate, clip range and exploration as functions of progress.

Progress rises from 0 at the start of the run to 1 at its `total_steps`; it counts steps, never seconds. A function of
Stable-Baselines3's `progress_remaining` becomes `lambda progress: f(1 - progress)`.

    python examples/schedules.py [STEPS]
"""

import math
import sys

from asyncrl import DQN, PPO, Trainer


def cosine(progress: float) -> float:
    """From 1e-3 to 0 along half a cosine."""
    return 1e-3 * (1 + math.cos(math.pi * progress)) / 2


def main(steps: int = 100_000) -> dict[str, float]:
    """Train PPO and DQN; returns the mean return of each."""
    algorithms = {
        "ppo": PPO(learning_rate=cosine, clip_range=lambda progress: 0.2 - 0.1 * progress),
        # The progress of exploration is that of `exploration_steps`.
        "dqn": DQN(
            learning_rate=lambda progress: 1e-3 if progress < 0.5 else 1e-4,
            exploration=lambda progress: max(0.05, 0.5 ** (10 * progress)),
            exploration_steps=20_000,
        ),
    }
    returns = {}
    for name, algorithm in algorithms.items():
        trainer = Trainer("CartPole-v1", algorithm, num_actors=1, seed=0, http="off")
        result = trainer.learn(total_steps=steps)
        returns[name] = result.evaluation.return_mean
        print(name, result)
    return returns


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
