"""Steps/s and final return of Stable-Baselines3's PPO with one environment, with a given amount of work per step.

Prints one JSON line. The time includes collecting and learning, not the evaluation at the end. `--normalize`
normalises rewards and observations, as asyncrl's preset does.

    python -m benchmarks.peers.sb3_ppo_throughput HalfCheetah-v5 --steps 20000 --rollout 2048 --epochs 10
"""

from __future__ import annotations

import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness.report import script_parser
from benchmarks.peers.until_target import means


def main() -> None:
    """Train once."""
    parser = script_parser(__doc__)
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rollout", type=int, default=2048, help="steps between two updates")
    parser.add_argument("--minibatch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--normalize", action="store_true", help="observations and rewards")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    env = make_vec_env(arguments.env, n_envs=1, seed=arguments.seed)
    if arguments.normalize:
        env = VecNormalize(env, gamma=arguments.gamma)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=arguments.rollout,
        batch_size=arguments.minibatch,
        n_epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        gamma=arguments.gamma,
        seed=arguments.seed,
        device="cpu",
    )
    started = time.perf_counter()
    model.learn(arguments.steps)
    seconds = time.perf_counter() - started
    if arguments.normalize:
        env.training = env.norm_reward = False
    mean, _ = evaluate_policy(model, env, n_eval_episodes=10, warn=False)
    result = {
        "env_steps": model.num_timesteps,
        "train_seconds": seconds,
        "env_steps_per_second": model.num_timesteps / seconds,
        "return_mean": float(mean),
        **means(model),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
