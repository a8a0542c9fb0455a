"""CartPole-v1 and Pendulum-v1 with rewards multiplied by 0.00001 to 100,000: what is learned by the default options.

The returns are those of the last policy over 100 greedy episodes, divided by the size again. The algorithms that learn
from replay, and A2C and IMPALA with discrete actions, scale rewards of an unusual size by a power of ten, once
(`algorithms/reward_factor.py`); PPO normalises rewards by their running deviation. `--as-they-are` takes the rewards
as they are (`reward_scale=1`). `--peer` runs Stable-Baselines3's algorithms by their defaults, if that is installed.

    python -m benchmarks.learning.reward_sizes
    python -m benchmarks.learning.reward_sizes --as-they-are --only dqn,qrdqn,sac,td3,tqc,ddpg --seeds 1
    python -m benchmarks.learning.reward_sizes --seeds 1 --peer --only a2c,sac,td3
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from functools import partial
from typing import Any

import gymnasium
import numpy as np

from asyncrl import Trainer
from asyncrl.algorithms import ALGORITHMS
from benchmarks.harness.report import Report, script_parser

SIZES = (1e-5, 1e-3, 1.0, 1e3, 1e5)
STEPS = {
    "ppo": ("CartPole-v1", 40_000),
    "a2c": ("CartPole-v1", 40_000),
    "impala": ("CartPole-v1", 40_000),
    "dqn": ("CartPole-v1", 30_000),
    "qrdqn": ("CartPole-v1", 30_000),
    "sac": ("Pendulum-v1", 10_000),
    "td3": ("Pendulum-v1", 10_000),
    "tqc": ("Pendulum-v1", 10_000),
    "ddpg": ("Pendulum-v1", 10_000),
}
PEERS = ("ppo", "a2c", "dqn", "sac", "td3", "ddpg")
EPISODES = 100


def make(name: str, size: float) -> gymnasium.Env[Any, Any]:
    """Make the environment with rewards times `size`."""
    return gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: float(reward) * size)


def ours(algo: str, size: float, seed: int, **options: Any) -> float:
    """Final return of asyncrl's default record with these options."""
    name, steps = STEPS[algo]
    trainer = Trainer(
        partial(make, name, size), ALGORITHMS[algo](**options), seed=seed, http="off", eval_episodes=EPISODES
    )
    evaluation: dict[str, float] = trainer.learn(total_steps=steps, progress=False).summary["eval"]
    return evaluation["return_mean"] / size


def theirs(algo: str, size: float, seed: int) -> float:
    """Final return of Stable-Baselines3's defaults."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    name, steps = STEPS[algo]
    model = getattr(stable_baselines3, algo.upper())("MlpPolicy", make(name, size), seed=seed, device="cpu")
    model.learn(steps)
    returns, _ = evaluate_policy(
        model, Monitor(make(name, size)), EPISODES, deterministic=True, return_episode_rewards=True
    )
    return float(np.mean(returns)) / size


def main() -> None:
    """Run the benchmark."""
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(STEPS), help="comma-separated algorithms")
    parser.add_argument("--peer", action="store_true", help="Stable-Baselines3 in place of asyncrl")
    parser.add_argument("--as-they-are", action="store_true", help="rewards are not scaled")
    parsed = parser.parse_args()
    variant = "_peer" if parsed.peer else "_as_they_are" if parsed.as_they_are else ""
    report = Report("reward_sizes" + variant)
    run = theirs if parsed.peer else partial(ours, reward_scale=1.0) if parsed.as_they_are else ours
    for algo in parsed.only.split(","):
        if parsed.peer and algo not in PEERS:
            continue
        for size in SIZES:
            returns = [run(algo, size, seed) for seed in range(parsed.seeds)]
            report.add(f"{algo}, rewards times {size:g}", returns, "return")
    report.write()


if __name__ == "__main__":
    main()
