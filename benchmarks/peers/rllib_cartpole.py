"""RLlib's PPO or DQN on CartPole-v1 at the settings of its own tuned examples, to a mean of 475; prints one JSON line.

Clocks as in `until_target.py`, both stopped during evaluations, which are between two calls of `train`: PPO's are 4,000
steps apart, DQN's 1,000. As tuned, but for the environments of PPO: eight in one runner process, in place of one in
each of two.

    python -m benchmarks.peers.rllib_cartpole ppo --seed 0
"""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.harness.report import script_parser, usable_cores
from benchmarks.peers.ray_start import start_ray

HINT_EPISODES, EPISODES = 10, 100
PPO_ENVS = 8


def configured(algo: str, seed: int) -> Any:
    """The built algorithm."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import (
        DefaultModelConfig as Model,
    )

    if algo == "ppo":
        config = (
            PPOConfig()
            .training(gamma=0.99, lr=0.0003, num_epochs=6, vf_loss_coeff=0.01, use_kl_loss=True)
            .rl_module(
                model_config=Model(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
            )
            .env_runners(num_env_runners=1, num_envs_per_env_runner=PPO_ENVS)
        )
    else:
        replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4}
        config = (
            DQNConfig()
            .training(
                lr=0.0005,
                train_batch_size_per_learner=32,
                replay_buffer_config=replay,
                n_step=(2, 5),
                double_q=True,
                dueling=True,
                epsilon=[(0, 1.0), (10_000, 0.02)],
            )
            .rl_module(
                model_config=Model(
                    fcnet_hiddens=[256],
                    fcnet_activation="tanh",
                    fcnet_bias_initializer="zeros_",
                    head_fcnet_bias_initializer="zeros_",
                    head_fcnet_hiddens=[256],
                )
            )
        )
    return config.environment("CartPole-v1").debugging(seed=seed).build_algo()


def greedy_return(module: Any, episodes: int, seed: int) -> float:
    """Mean return of greedy episodes, one in each environment of a vector."""
    envs: Any = gymnasium.make_vec("CartPole-v1", episodes)
    obs, _ = envs.reset(seed=seed)
    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    while playing.any():
        with torch.no_grad():
            out = module.forward_inference({"obs": torch.as_tensor(obs)})
        actions = out["actions"] if "actions" in out else out["action_dist_inputs"].argmax(dim=-1)
        obs, rewards, terminated, truncated, _ = envs.step(np.asarray(actions))
        returns += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def main() -> None:
    """Train once."""
    parser = script_parser(__doc__)
    parser.add_argument("algo", choices=("dqn", "ppo"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--max-seconds", type=float, default=90.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start_ray()
    algorithm = configured(given.algo, given.seed)
    seconds: dict[str, float | None] = {"greedy": None, "training": None}
    trained, steps, return_mean = 0.0, 0, None
    while None in seconds.values() and trained < given.max_seconds:
        began = time.perf_counter()
        result = algorithm.train()["env_runners"]
        trained += time.perf_counter() - began
        steps = int(result["num_env_steps_sampled_lifetime"])
        if seconds["training"] is None and result.get("episode_return_mean", 0.0) >= given.target:
            seconds["training"] = trained
        if seconds["greedy"] is None:
            module = algorithm.learner_group._learner.module["default_policy"]
            return_mean = greedy_return(module, HINT_EPISODES, given.seed + 10_000)
            if return_mean >= given.target:
                return_mean = greedy_return(module, EPISODES, given.seed + 20_000)
                seconds["greedy"] = trained if return_mean >= given.target else None
    sides = {
        "versions": {name: version(name) for name in ("ray", "torch", "gymnasium")},
        "cores": usable_cores(),
        "environments": PPO_ENVS if given.algo == "ppo" else 1,
    }
    times = {"seconds": seconds, "train_seconds": trained, "env_steps": steps}
    print(json.dumps({**times, "return_mean": return_mean, **sides}))


if __name__ == "__main__":
    main()
