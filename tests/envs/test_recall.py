"""Recall, the environment that needs memory."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from asyncrl.envs.recall import Recall
from asyncrl.envs.source import EnvSource


@pytest.mark.parametrize(("delay", "cues"), [(1, 2), (7, 3), (20, 4)])
def test_a_cue_distractors_and_the_question(delay: int, cues: int) -> None:
    env, asked, shown = Recall(delay, cues), [], []
    for episode in range(200):
        obs, _ = env.reset(seed=episode)
        assert obs[:2].tolist() == [1, 0] and obs[2:].sum() == 1
        cue = int(obs[2:].argmax())
        for _ in range(delay - 1):
            obs, reward, over, cut, _ = env.step(np.int64(0))
            assert (
                obs[:2].tolist() == [0, 0]
                and obs[2:].sum() == 1
                and (reward, over, cut) == (0.0, False, False)
            )
            shown.append(int(obs[2:].argmax()))
        obs, reward, over, _, _ = env.step(np.int64(0))
        assert obs.tolist() == [0, 1] + [0] * cues and (reward, over) == (0.0, False)
        answer = episode % cues
        _, reward, over, cut, _ = env.step(np.int64(answer))
        assert (reward == 1.0) == (answer == cue) and abs(reward) == 1.0 and over and not cut
        asked.append(cue)
    assert set(asked) == set(range(cues)) and set(shown) == (set(range(cues)) if delay > 1 else set())


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="delay must be at least 1, got 0"):
        Recall(delay=0)
    with pytest.raises(ValueError, match="cues must be at least 2, got 1"):
        Recall(cues=1)


def test_it_is_a_gymnasium_environment_found_by_its_id() -> None:
    env = EnvSource.from_user("asyncrl/Recall-v0").build()
    assert isinstance(env, gymnasium.Env) and env.spec is not None and env.spec.reward_threshold == 0.95
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that a wrapped environment was given
        check_env(env.unwrapped)
    env.close()
