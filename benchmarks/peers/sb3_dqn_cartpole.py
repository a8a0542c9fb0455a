"""Stable-Baselines3's DQN on CartPole-v1 at its zoo's hyper-parameters, to a greedy mean of 475 over 100 episodes.

Prints one JSON line. See `until_target.py` for the clock. The training clock is left out, as exploration at the zoo's
rate keeps the training mean below 475.

    python benchmarks/peers/sb3_dqn_cartpole.py --seed 0
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from stable_baselines3 import DQN
from until_target import UntilTarget, means

MAX_STEPS = 150_000
EVALUATE_EVERY = 1_000


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=475.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=arguments.seed,
        device="cpu",
    )
    until = UntilTarget("CartPole-v1", arguments.target, arguments.seed, EVALUATE_EVERY, ["greedy"])
    # The zoo's exploration_fraction refers to its 50,000 steps, whatever the limit here.
    model.exploration_fraction = 0.16 * 50_000 / MAX_STEPS
    model.learn(MAX_STEPS, callback=until)
    result = {
        "seconds": until.seconds,
        "train_seconds": until.train_seconds,
        "env_steps": model.num_timesteps,
        "return_mean": until.return_mean,
        "cpu_seconds": time.process_time() - started,
        **means(model),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
