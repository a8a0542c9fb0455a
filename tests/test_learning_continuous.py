"""Correctness of learning with continuous actions, with real actors and rings.

discount, n-step sum or bootstrapped value wrong    Loan, in one of its two cases
all of it, at the length of a real task             Pendulum-v1
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from small_records import small

from asyncrl import Trainer

pytestmark = pytest.mark.slow


class Loan(gymnasium.Env[np.ndarray, np.ndarray]):
    """Five steps. The first action a earns (1 - a) / 4 at once, and (1 + a) / 2 at the last step, four steps later.

    The return is 0.25 (1 - a) + gamma^4 (1 + a) / 2, linear in a: with gamma 0.8 (0.41 against 0.5) the best first
    action is -1, with gamma 0.95 (0.81) it is 1. Later actions do not matter.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.lent = 0, 0.0
        return self._see(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        if self.at == 0:
            self.lent = float(action[0])
            reward = (1.0 - self.lent) / 4.0
        self.at += 1
        done = self.at == 5
        return self._see(), (1.0 + self.lent) / 2.0 if done else reward, done, False, {}

    def _see(self) -> np.ndarray:
        return np.append(np.eye(5)[min(self.at, 4)], self.lent).astype(np.float32)


OPTIONS: dict[str, Any] = {
    "discipline": "lockstep",  # the same numbers in every run: a relaxed TD3 was seen to fail once in some twenty
    "tau": 0.02,
    "learning_starts": 500,
    "samples_per_insert": 32.0,
    "exploration_scale": 0.5,
    "ent_coef": 0.01,
}


@pytest.mark.parametrize(("gamma", "n_step", "best"), [(0.8, 3, -1), (0.95, 1, 1)])
@pytest.mark.parametrize("name", ["ddpg", "sac", "td3"])
def test_the_discount_decides_the_loan(name: str, gamma: float, n_step: int, best: int) -> None:
    algorithm = small(name, gamma=gamma, n_step=n_step, **OPTIONS)
    options: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 8, "http": "off", "target_eval_episodes": 2}
    result = Trainer(Loan, algorithm, seed=1, **options).learn(total_steps=3_500)
    first = np.array([1.0, 0, 0, 0, 0, 0], np.float32)
    action, _ = result.policy.predict(first, deterministic=True)
    assert best * action[0] > 0.8


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_pendulum_is_solved_by_its_preset(name: str) -> None:
    """-200 over 100 greedy episodes within 40,000 steps."""
    result = Trainer("Pendulum-v1", name, seed=0, http="off").learn(target_return=-200.0, total_steps=40_000)
    assert result.stop_reason == "target_return"
    assert result.evaluation.return_mean >= -200 and result.evaluation.episodes == 100
