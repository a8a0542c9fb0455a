"""Train, look at the result, save the policy, load it without torch, play.

python examples/quickstart.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import asyncrl


def main(steps: int = 100_000) -> float:
    """Train DQN with its preset; returns the return of one episode of the loaded policy."""
    result = asyncrl.train("CartPole-v1", "dqn", total_steps=steps, target_return=475.0, seed=0)
    print(result)

    path = result.policy.save(Path(tempfile.mkdtemp()) / "cartpole.policy")
    policy = asyncrl.load(path)  # NumPy only

    env = policy.make_env()
    obs, _ = env.reset(seed=1)
    total, over = 0.0, False
    while not over:
        action, _ = policy.predict(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    env.close()
    print(f"one episode: {total:.0f}")
    return total


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
