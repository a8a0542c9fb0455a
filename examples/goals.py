"""Hindsight experience replay: DQN flips bits until they are those desired, with a reward for nothing else.

Goals are relabelled without being asked where observations hold them; see docs/goals.md.

    python examples/goals.py [STEPS]
"""

import sys

from asyncrl import DQN, Trainer


def main(steps: int = 8_000) -> float:
    """Train on eight bits; returns the mean return, at best about -3."""
    algorithm = DQN(
        gamma=0.98, samples_per_insert=32.0, exploration_steps=2_000, learning_starts=500, tau=0.05
    )
    with Trainer("asyncrl/BitFlip-v0", algorithm, env_kwargs={"bits": 8}, num_actors=1, seed=0) as trainer:
        result = trainer.learn(total_steps=steps)
    return float(result.summary["eval"]["return_mean"])


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
