"""Memory of a cue through actors, rings and updates: solved with a recurrent policy, at chance without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import DQN, IMPALA, PPO, R2D2, Trainer, load
from asyncrl.envs.recall import Recall

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

DELAY = 4
SMALL: dict[str, Any] = {
    "discipline": "lockstep",
    "hidden_sizes": (32,),
    "recurrent_size": 32,
    "learning_rate": 3e-3,
}


def trained(algorithm: Any, total_steps: int) -> Any:
    with Trainer(
        "asyncrl/Recall-v0",
        algorithm,
        env_kwargs={"delay": DELAY},
        seed=0,
        http="off",
        num_actors=1,
        envs_per_actor=16,
        eval_interval_steps=2000,
        eval_episodes=50,
    ) as trainer:
        return trainer.learn(target_return=0.95, total_steps=total_steps)


def test_ppo_remembers_with_a_gru_and_not_without(tmp_path: Path) -> None:
    options = {**SMALL, "segment_length": 32, "minibatch_size": 128}
    result = trained(PPO(recurrent="gru", **options), 20_000)
    assert result.stop_reason == "target_return", result.summary
    policy, right = load(result.policy.save(tmp_path / "recall.policy")), 0
    env = Recall(DELAY)
    for episode in range(50):
        obs, _ = env.reset(seed=episode)
        state, start, over, reward = None, True, False, 0.0
        while not over:
            action, state = policy.predict(obs, state=state, episode_start=start)
            obs, reward, over, _, _ = env.step(np.int64(action))
            start = False
        right += reward == 1.0
    assert right >= 47
    without = trained(PPO(**options), result.summary["env_steps"])
    assert without.stop_reason == "total_steps" and abs(without.summary["eval"]["return_mean"]) < 0.5, (
        without.summary
    )


def test_impala_remembers_with_an_lstm() -> None:
    result = trained(IMPALA(recurrent="lstm", segment_length=20, **SMALL), 60_000)
    assert result.stop_reason == "target_return", result.summary


def test_r2d2_remembers_and_dqn_does_not() -> None:
    off_policy = {
        "discipline": "lockstep",
        "learning_rate": 2e-3,
        "learning_starts": 500,
        "exploration_steps": 3000,
    }
    result = trained(
        R2D2(sequence_length=12, burn_in=4, hidden_sizes=(32,), recurrent_size=32, **off_policy), 40_000
    )
    assert result.stop_reason == "target_return", result.summary
    without = trained(DQN(hidden_sizes=(32,), **off_policy), result.summary["env_steps"])
    assert without.stop_reason == "total_steps" and abs(without.summary["eval"]["return_mean"]) < 0.5, (
        without.summary
    )
