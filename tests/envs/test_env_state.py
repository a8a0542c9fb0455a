"""Serialization of environments in mid-episode: correct pickles, and pickles that lose state."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import EzPickle

from asyncrl.envs.env_state import StateNotKept, pack_state, unpack_state


class Rebuilt(gymnasium.Env[Any, Any], EzPickle):
    """Environment that pickles its constructor's arguments, so that a copy is at step 0."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        EzPickle.__init__(self)
        self.steps = 0


class Kept(Rebuilt):
    """Environment whose own `__getstate__` keeps everything."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("Pendulum-v1"),
        lambda: gymnasium.make("MountainCar-v0"),
        lambda: gymnasium.make("Acrobot-v1"),
        lambda: gymnasium.make("FrozenLake-v1"),
    ],
)
def test_an_episode_goes_on_to_the_same_numbers(make: Any) -> None:
    env = make()
    env.reset(seed=3)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(60)]
    for action in actions[:7]:
        env.step(action)
    copy = unpack_state(pack_state({"env": env, "more": np.arange(3)}))["env"]
    for action in actions[7:]:
        ours, theirs = env.step(action), copy.step(action)
        assert np.array_equal(ours[0], theirs[0]) and ours[1:4] == theirs[1:4]
        if ours[2] or ours[3]:
            assert np.array_equal(env.reset()[0], copy.reset()[0]), "and so does the generator"


def test_a_vector_goes_on_too() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    envs.reset(seed=1)
    envs.step(np.zeros(3, np.int64))
    copy = unpack_state(pack_state(envs))
    for _ in range(30):
        ours, theirs = envs.step(np.ones(3, np.int64)), copy.step(np.ones(3, np.int64))
        assert np.array_equal(ours[0], theirs[0])


@pytest.mark.parametrize(
    "hidden",
    [
        Rebuilt(),
        gymnasium.wrappers.TimeLimit(Rebuilt(), 5),
        [{"deep": gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(Rebuilt()), 5)}],
    ],
)
def test_an_environment_that_would_begin_anew_is_found_wherever_it_is(hidden: Any) -> None:
    with pytest.raises(StateNotKept, match="Rebuilt pickles its constructor's arguments only"):
        pack_state(hidden)


def test_one_with_a_state_of_its_own_is_kept() -> None:
    env = Kept()
    env.steps = 4
    assert unpack_state(pack_state(env)).steps == 4


def test_what_does_not_pickle_says_so() -> None:
    with pytest.raises(StateNotKept, match="TypeError: cannot pickle"):
        pack_state({"lock": threading.Lock()})
