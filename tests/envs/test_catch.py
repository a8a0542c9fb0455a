"""Catch, the package's environment with image observations."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from asyncrl.envs.catch import BALL, GROUND, LIGHT, PADDLE, SIDE, Catch
from asyncrl.envs.source import EnvSource


def returns(episodes: int, follow: bool) -> np.ndarray:
    env, rng, totals = Catch(), np.random.default_rng(0), []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total, steps, ended = 0.0, 0, False
        while not ended:
            lit = obs[:GROUND].any(axis=0)
            ball = np.flatnonzero(lit).mean()  # the part of it above the paddle
            paddle = np.flatnonzero(obs[SIDE - 1]).mean()
            action = 1 + int(np.sign(ball - paddle)) if follow else int(rng.integers(3))
            obs, reward, ended, truncated, _ = env.step(np.int64(action))
            total, steps = total + reward, steps + 1
            assert not truncated and (reward == 0.0) == (not ended)
        assert steps == (GROUND - BALL) // 2
        totals.append(total)
    return np.array(totals)


def test_following_the_ball_catches_it_and_chance_does_not() -> None:
    assert returns(300, follow=True).mean() == 1.0
    assert -0.4 < returns(1000, follow=False).mean() < -0.15


def test_everything_is_in_the_image() -> None:
    env = Catch(render_mode="rgb_array")
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            assert set(np.unique(obs)) == {0, LIGHT}
            lit = (obs > 0).sum()
            assert lit <= (2 * BALL + 1) ** 2 + 2 * (2 * PADDLE + 1)
            obs, _, ended, _, _ = env.step(env.action_space.sample())
    assert env.render().shape == (252, 252, 3)


def test_it_is_a_gymnasium_environment_found_by_its_id() -> None:
    env = EnvSource.from_user("asyncrl/Catch-v0").build()
    assert isinstance(env, gymnasium.Env) and env.spec is not None and env.spec.reward_threshold == 0.95
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that a wrapped environment was given
        check_env(env.unwrapped)
    env.close()
