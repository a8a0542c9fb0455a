"""Rewards in another unit: a whole run learns the same policy."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl import A2C, DQN, Trainer


def thousandfold() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 1000.0 * reward)


@pytest.mark.parametrize(
    "record",
    [
        DQN(n_step=1, hidden_sizes=(16,), learning_starts=200, discipline="lockstep"),
        A2C(hidden_sizes=(16,), discipline="lockstep"),
    ],
    ids=["dqn", "a2c"],
)
def test_a_run_with_rewards_of_a_thousand_learns_what_one_with_rewards_of_one_learns(record: Any) -> None:
    """0.001 in float32 times 1,000 is 1 to the bit, so the lockstep runs are equal to the bit."""
    results = [
        Trainer(env, record, seed=3, num_actors=1, envs_per_actor=4, http="off", eval_episodes=2).learn(
            total_steps=1_500, progress=False
        )
        for env in (lambda: gymnasium.make("CartPole-v1"), thousandfold)
    ]
    one, thousand = (result.policy.weights for result in results)
    np.testing.assert_array_equal(one, thousand)
    assert results[0].summary["updates"] > 50
