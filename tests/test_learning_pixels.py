"""Learning of Catch from pixels, with real actors, rings, frame stacks and convolutional networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import DQN, PPO, Trainer, load
from asyncrl.envs.catch import Catch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def learned(algorithm: Any, path: Path, target: float = 0.95, **options: Any) -> Any:
    with Trainer(
        "asyncrl/Catch-v0", algorithm, seed=0, http="off", num_actors=1, envs_per_actor=16, **options
    ) as trainer:
        result = trainer.learn(target_return=target, max_seconds=500)
    assert result.stop_reason == "target_return", result.summary
    return load(result.policy.save(path / "catch.policy"))


def test_dqn_learns_catch(tmp_path: Path) -> None:
    algorithm = DQN.preset("asyncrl/Catch-v0", frame_stack=2)
    policy = learned(algorithm, tmp_path, 0.5, total_steps=40_000, eval_interval_steps=1000)  # chance is -0.6
    env, wrapped = Catch(), policy.make_env()
    assert wrapped.observation_space.shape == (2, 21, 21)
    for episode in range(5):  # single frames with a state, and the stacks of gymnasium's wrapper
        state, done = None, True
        obs, _ = env.reset(seed=episode)
        stack, _ = wrapped.reset(seed=episode)
        while True:
            action, state = policy.predict(obs, state=state, episode_start=done)
            np.testing.assert_array_equal(state, stack)
            assert action == policy.predict(stack)[0]
            obs, _, done, _, _ = env.step(action)
            stack, _, ended, _, _ = wrapped.step(action)
            assert done == ended
            if done:
                break
    with pytest.raises(ValueError, match="the policy sees 2 frames"):
        policy.predict(obs)


def test_ppo_learns_catch(tmp_path: Path) -> None:
    algorithm = PPO.preset("asyncrl/Catch-v0", frame_stack=2)
    learned(algorithm, tmp_path, total_steps=80_000, eval_interval_steps=4000)
