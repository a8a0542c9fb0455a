"""Stable-Baselines3's DQN or PPO on CartPole-v1 at the tuned hyper-parameters of its zoo, to a mean of 475.

Prints one JSON line. See `until_target.py` for the clocks. DQN has the greedy clock alone, as exploration at the zoo's
rate keeps the training mean below 475.

    python -m benchmarks.peers.sb3_cartpole dqn --seed 0
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.harness.report import script_parser
from benchmarks.peers.until_target import UntilTarget, means

DQN_STEPS, PPO_STEPS = 150_000, 100_000


def dqn(target: float, seed: int) -> tuple[Any, UntilTarget]:
    """Train DQN; returns the model and the clock."""
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
        seed=seed,
        device="cpu",
    )
    # The zoo's exploration_fraction refers to its 50,000 steps, whatever the limit here.
    model.exploration_fraction = 0.16 * 50_000 / DQN_STEPS
    until = UntilTarget("CartPole-v1", target, seed, 1_000, ["greedy"])
    return model.learn(DQN_STEPS, callback=until), until


def ppo(target: float, seed: int) -> tuple[Any, UntilTarget]:
    """Train PPO; returns the model and the clocks."""
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        # The zoo's `lin_0.001` and `lin_0.2` over its 100,000 steps.
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    until = UntilTarget("CartPole-v1", target, seed, 1_024)
    return model.learn(PPO_STEPS, callback=until), until


ALGORITHMS = {"dqn": dqn, "ppo": ppo}


def main() -> None:
    """Train once."""
    parser = script_parser(__doc__)
    parser.add_argument("algo", choices=ALGORITHMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=475.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    model, until = ALGORITHMS[arguments.algo](arguments.target, arguments.seed)
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
