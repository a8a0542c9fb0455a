"""Stable-Baselines3's DQN on CartPole-v1 at the hyper-parameters of its zoo, to a greedy mean of 475 over 100 episodes.

Prints one JSON line. The clock stands still during evaluations, as asyncrl's does: every 1,000 steps the present policy
plays 10 greedy episodes, and if their mean reaches the target, 100 fresh ones decide.

    python benchmarks/peers/sb3_dqn_cartpole.py --seed 0
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy

TARGET = 475.0
MAX_STEPS = 150_000
EVALUATE_EVERY = 1_000


class UntilTarget(BaseCallback):
    """Stops at the target and keeps a clock without evaluations."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.env = gymnasium.make("CartPole-v1")
        self.env.reset(seed=seed + 10_000)
        self.train_seconds = 0.0
        self.resumed = 0.0
        self.reached = False
        self.return_mean = 0.0

    def _on_training_start(self) -> None:
        self.resumed = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps % EVALUATE_EVERY:
            return True
        self.train_seconds += time.perf_counter() - self.resumed
        self.return_mean = self._play(10)
        if self.return_mean >= TARGET:
            self.return_mean = self._play(100)
            self.reached = self.return_mean >= TARGET
        self.resumed = time.perf_counter()
        return not self.reached

    def _play(self, episodes: int) -> float:
        mean, _ = evaluate_policy(self.model, self.env, n_eval_episodes=episodes, warn=False)
        return float(mean)


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
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
        seed=seed,
        device="cpu",
    )
    until = UntilTarget(seed)
    # exploration_fraction is of the zoo's 50,000 steps, whatever the limit here.
    model.exploration_fraction = 0.16 * 50_000 / MAX_STEPS
    model.learn(MAX_STEPS, callback=until)
    result = {
        "reached": until.reached,
        "train_seconds": until.train_seconds,
        "env_steps": model.num_timesteps,
        "return_mean": until.return_mean,
        "cpu_seconds": time.process_time() - started,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
