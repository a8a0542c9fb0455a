"""The two clocks of the peers' runs, as a callback of Stable-Baselines3; both stand still during evaluations.

At most every `every` steps, between two updates, the present policy plays 10 greedy episodes; if their mean reaches the
target, 100 fresh ones decide. The training clock reads Stable-Baselines3's own window of the last 100 episodes. The run
ends when all clocks that it was given have reached the target.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import gymnasium
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

HINT_EPISODES, EPISODES = 10, 100


class UntilTarget(BaseCallback):
    """Stops when every clock has its target; `seconds` says when each had, None where it had not."""

    def __init__(
        self, env: str, target: float, seed: int, every: int, clocks: Sequence[str] = ("greedy", "training")
    ) -> None:
        super().__init__()
        self._envs = {n: make_vec_env(env, n_envs=n, seed=seed + 10_000) for n in (HINT_EPISODES, EPISODES)}
        self._target = target
        self._every = every
        self._due = every
        self._resumed = 0.0
        self.train_seconds = 0.0
        self.seconds: dict[str, float | None] = dict.fromkeys(clocks)
        self.return_mean = 0.0

    def _on_training_start(self) -> None:
        self._resumed = time.perf_counter()

    def _on_rollout_start(self) -> None:
        """Between two updates: stop the clock and look."""
        self._pause()
        window = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        if (
            self.seconds.get("training", 0.0) is None
            and len(window) == 100
            and sum(window) / 100 >= self._target
        ):
            self.seconds["training"] = self.train_seconds
        if self.seconds.get("greedy", 0.0) is None and self.num_timesteps >= self._due:
            self._due = self.num_timesteps + self._every
            self._evaluate()
        self._resumed = time.perf_counter()

    def _on_step(self) -> bool:
        return None in self.seconds.values()

    def _on_training_end(self) -> None:
        self._pause()

    def _pause(self) -> None:
        self.train_seconds += time.perf_counter() - self._resumed

    def _evaluate(self) -> None:
        self.return_mean = self._play(HINT_EPISODES)
        if self.return_mean >= self._target:
            self.return_mean = self._play(EPISODES)
            if self.return_mean >= self._target:
                self.seconds["greedy"] = self.train_seconds

    def _play(self, episodes: int) -> float:
        mean, _ = evaluate_policy(self.model, self._envs[episodes], n_eval_episodes=episodes, warn=False)
        return float(mean)


def versions() -> dict[str, str]:
    """What the peer ran with; it may be another environment than ours."""
    import stable_baselines3
    import torch

    packages = {"stable-baselines3": stable_baselines3, "torch": torch, "gymnasium": gymnasium}
    return {name: str(package.__version__) for name, package in packages.items()}
