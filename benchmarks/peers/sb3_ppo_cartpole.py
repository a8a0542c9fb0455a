"""Stable-Baselines3's PPO on CartPole-v1 at the tuned hyper-parameters of its zoo, to 475 on both clocks.

Prints one JSON line. See `until_target.py` for the clocks.

    python benchmarks/peers/sb3_ppo_cartpole.py --seed 0
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from until_target import UntilTarget, means

MAX_STEPS = 100_000
EVALUATE_EVERY = 1_024


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
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=arguments.seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        # The zoo's `lin_0.001` and `lin_0.2` over its 100,000 steps.
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=arguments.seed,
        device="cpu",
    )
    until = UntilTarget("CartPole-v1", arguments.target, arguments.seed, EVALUATE_EVERY)
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
