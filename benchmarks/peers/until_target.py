"""The two clocks of the peers' runs, as a callback of Stable-Baselines3; both are stopped during evaluations.

At most every `every` steps, between two updates, the current policy plays a few greedy episodes (the hint). If their
mean reaches the target, new episodes decide, by default a hundred. The training clock uses Stable-Baselines3's window
of the last 100 episodes. The run ends when all given clocks have reached the target, or at the time limit of training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

HINT_EPISODES, EPISODES = 10, 100


class UntilTarget(BaseCallback):
    """Callback that stops training when every clock has reached its target.

    `seconds` has the time of each clock, None if it has not reached the target.

    Args:
        env: id of the environment; evaluations use vectors of as many environments as episodes.
        target: mean return.
        seed: seed of the run; episodes have another.
        every: steps between two evaluations.
        clocks: "greedy", "training" or both.
        starts: steps before the first interval of evaluations.
        hint_episodes, episodes: numbers of episodes of the hint and of the decision.
        max_seconds: time limit of training; None for no limit.
    """

    def __init__(
        self,
        env: str,
        target: float,
        seed: int,
        every: int,
        clocks: Sequence[str] = ("greedy", "training"),
        *,
        starts: int = 0,
        hint_episodes: int = HINT_EPISODES,
        episodes: int = EPISODES,
        max_seconds: float | None = None,
    ) -> None:
        super().__init__()
        self._envs = {n: make_vec_env(env, n_envs=n, seed=seed + 10_000) for n in (hint_episodes, episodes)}
        self._hint_episodes, self._episodes = hint_episodes, episodes
        self._target = target
        self._every = every
        self._due = starts + every
        self._max_seconds = float("inf") if max_seconds is None else max_seconds
        self._resumed = 0.0
        self.train_seconds = 0.0
        self.seconds: dict[str, float | None] = dict.fromkeys(clocks)
        self.return_mean: float | None = None

    def _on_training_start(self) -> None:
        self._resumed = time.perf_counter()

    def _on_rollout_start(self) -> None:
        """Between two updates: stop the clock, check the targets, restart the clock."""
        self._pause()
        if self.seconds.get("training", 0.0) is None and self._window_has_target():
            self.seconds["training"] = self.train_seconds
        if self.seconds.get("greedy", 0.0) is None and self.num_timesteps >= self._due:
            self._due = self.num_timesteps + self._every
            self._evaluate()
        self._resumed = time.perf_counter()

    def _on_step(self) -> bool:
        return None in self.seconds.values() and self.train_seconds < self._max_seconds

    def _on_training_end(self) -> None:
        self._pause()

    def _pause(self) -> None:
        self.train_seconds += time.perf_counter() - self._resumed

    def _window_has_target(self) -> bool:
        window = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        return len(window) == 100 and sum(window) / 100 >= self._target

    def _evaluate(self) -> None:
        self.return_mean = self._play(self._hint_episodes)
        if self.return_mean >= self._target:
            self.return_mean = self._play(self._episodes)
            if self.return_mean >= self._target:
                self.seconds["greedy"] = self.train_seconds

    def _play(self, episodes: int) -> float:
        mean, _ = evaluate_policy(self.model, self._envs[episodes], n_eval_episodes=episodes, warn=False)
        return float(mean)


def means(model: Any, *packages: str) -> dict[str, Any]:
    """Resources of the peer: versions (which may differ from ours), cores, torch threads and environments."""
    names = ("stable-baselines3", "torch", "gymnasium", *packages)
    return {
        "versions": {name: version(name) for name in names},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "environments": model.n_envs,
    }
