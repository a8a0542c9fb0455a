"""NEXT_STEP semantics against gymnasium's own vector, and the native vector paths against the plain one."""

from __future__ import annotations

from typing import Any

import fakes
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.actors.streams import ActionForm, PlainStreams, Streams, VectorStreams, make_streams
from asyncrl.core import RESET, TERMINATED, TRUNCATED, BoxAction, DiscreteAction, EnvSpec
from asyncrl.env_checks import spec_of
from asyncrl.envs import EnvSource
from asyncrl.errors import AutoresetUnknown, ObservationOffSpace, OldGymAPI

SEEDS = [11, 12, 13]


def play(streams: Streams, actions: np.ndarray[Any, Any], obs_shape: tuple[int, ...]) -> dict[str, Any]:
    """Rows of a run: obs `[T + 1, E, ...]`, rewards and flags `[T, E]`."""
    obs = np.zeros((len(actions) + 1, streams.num_envs, *obs_shape), np.float32)
    rewards, flags = np.zeros((2, len(actions), streams.num_envs))
    streams.reset(SEEDS[: streams.num_envs], obs[0])
    for t, row in enumerate(actions):
        assert streams.current == -1
        for i, flag in streams.step(row, obs[t + 1], rewards[t]):
            flags[t, i] = flag
    streams.close()
    return {"obs": obs, "rewards": rewards, "flags": flags}


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name in ("flags", "rewards", "obs"):
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_plain_streams_equal_gymnasiums_next_step_vector(env_id: str) -> None:
    """Acrobot and Pendulum end by their time limit, CartPole by falling."""
    limit = {"Acrobot-v1": 40, "Pendulum-v1": 30}.get(env_id)
    options = {"max_episode_steps": limit} if limit else {}
    vector: Any = SyncVectorEnv([lambda: gymnasium.make(env_id, **options)] * 3)
    spec = spec_of(env_id, gymnasium.make(env_id))
    rng = np.random.default_rng(0)
    if isinstance(spec.action, DiscreteAction):
        actions = rng.integers(0, spec.action.n, (500, 3))
    else:
        actions = rng.uniform(-2, 2, (500, 3, 1)).astype(np.float32)
    streams = PlainStreams([gymnasium.make(env_id, **options) for _ in range(3)], spec)
    ours = play(streams, actions, spec.observation_shape)

    obs, _ = vector.reset(seed=SEEDS)
    ended = np.zeros(3, bool)
    seen = set()
    for t, row in enumerate(actions):
        assert np.array_equal(ours["obs"][t], obs.astype(np.float32))
        obs, rewards, terminated, truncated, _ = vector.step(row)
        expected = np.where(ended, RESET, terminated * TERMINATED + truncated * TRUNCATED)
        assert np.array_equal(ours["flags"][t], expected)
        assert np.array_equal(ours["rewards"][t], rewards)
        seen |= set(expected.tolist())
        ended = terminated | truncated
    vector.close()
    assert seen >= {0, RESET, TRUNCATED if limit else TERMINATED}


def test_native_vector_in_next_step_mode_equals_plain_streams() -> None:
    spec = spec_of("CartPole-v1", gymnasium.make("CartPole-v1"))
    actions = np.random.default_rng(1).integers(0, 2, (400, 3))
    plain = PlainStreams([gymnasium.make("CartPole-v1") for _ in range(3)], spec)
    SEEDS_OF_VECTOR = [SEEDS[0] + i for i in range(3)]  # how SyncVectorEnv spreads one seed
    assert SEEDS_OF_VECTOR == SEEDS
    vector = VectorStreams(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3), spec)
    same(play(plain, actions, (4,)), play(vector, actions, (4,)))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_modes_give_the_same_streams(mode: AutoresetMode) -> None:
    class Staggered(fakes.FixedLength):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.length = length

    def make(length: int) -> Any:
        return lambda: Staggered(length)

    spec = spec_of("staggered", Staggered(2))
    actions = np.zeros((60, 3), np.int64)
    plain = PlainStreams([Staggered(n) for n in (2, 3, 5)], spec)
    vector = SyncVectorEnv([make(n) for n in (2, 3, 5)], autoreset_mode=mode)
    expected = play(plain, actions, (2,))
    same(expected, play(VectorStreams(vector, spec), actions, (2,)))
    assert expected["obs"][:7, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert expected["flags"][:6, 0].tolist() == [0, TRUNCATED, RESET] * 2


def test_gymnasiums_own_cartpole_vector_is_taken() -> None:
    source = EnvSource.from_user(
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    )
    vector = source.build()
    spec = spec_of("CartPole-v1", vector)
    assert spec.vector_envs == 3
    vector.close()
    run = play(make_streams(source, spec, 3), np.ones((100, 3), np.int64), (4,))
    ends = np.argwhere(run["flags"] == TERMINATED)
    assert len(ends) > 3
    for t, e in ends[ends[:, 0] < 98]:
        assert run["flags"][t + 1, e] == RESET and run["rewards"][t + 1, e] == 0
        assert np.abs(run["obs"][t + 1, e]).max() > 0.2, "the true final observation"
        assert np.abs(run["obs"][t + 2, e]).max() <= 0.05, "the first of the next episode"


def test_vector_of_another_size_is_refused() -> None:
    source = EnvSource.from_user(lambda: SyncVectorEnv([fakes.SimpleEnv] * 3))
    with pytest.raises(ValueError, match=r"envs_per_actor must be the 3 of the VectorEnv of .*, got 2"):
        source.build_streams(2)


def test_same_step_vector_is_refused() -> None:
    vector = SyncVectorEnv([fakes.SimpleEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(AutoresetUnknown, match=r"ASYNC018\].*SAME_STEP"):
        VectorStreams(vector, spec_of("simple", fakes.SimpleEnv()))
    vector.close()


@pytest.mark.parametrize(
    ("env", "kind", "text"),
    [
        (fakes.FourValues, OldGymAPI, r"ASYNC013\].*step returned a tuple of 4 values"),
        (
            fakes.DoubleObservation,
            ObservationOffSpace,
            r"ASYNC012\].*got float64 of shape \(2,\), expected float32",
        ),
        (
            fakes.ListObservation,
            ObservationOffSpace,
            r"(?s)ASYNC012\].*got list.*np.asarray\(obs, dtype=np.float32\)",
        ),
        (fakes.BareReset, OldGymAPI, r"ASYNC013\].*reset returned ndarray"),
    ],
)
def test_broken_contracts_are_found_while_stepping(env: Any, kind: type[Exception], text: str) -> None:
    streams = PlainStreams([env()], EnvSpec("fake", (2,), "float32", DiscreteAction(5)))
    obs, rewards = np.zeros((1, 2), np.float32), np.zeros(1)
    with pytest.raises(kind, match=text):
        streams.reset([0], obs)
        streams.step(np.zeros(1, np.int64), obs, rewards)
    assert streams.current == 0


def test_array_reward_is_refused_or_read_as_a_number() -> None:
    streams = PlainStreams([fakes.ArrayReward()] * 2, EnvSpec("fake", (2,), "float32", DiscreteAction(5)))
    obs, rewards = np.zeros((2, 2), np.float32), np.zeros(2)
    streams.reset([0, 1], obs)
    with pytest.raises(OldGymAPI, match=r"ASYNC013\].*returned reward array\(\[1.\]\) of shape \(1,\)"):
        streams.step(np.zeros(2, np.int64), obs, rewards)


def test_actions_reach_the_environment_in_its_own_form() -> None:
    discrete = ActionForm(gymnasium.spaces.Discrete(3, start=5))
    rows = discrete.rows(np.array([0, 2]))
    assert rows == [5, 7] and all(type(a) is np.int64 for a in rows)
    several = MultiDiscrete(np.array([3, 4]), start=np.array([1, 2]))
    form = ActionForm(several)
    assert [a.tolist() for a in form.rows(np.array([[0, 0], [2, 3]]))] == [[1, 2], [3, 5]]
    bits = MultiBinary((2, 2))
    row = ActionForm(bits).rows(np.array([[1, 0, 0, 1]]))[0]
    assert bits.contains(row) and row.tolist() == [[1, 0], [0, 1]]
    box = Box(-1, 1, (2, 3), np.float64)
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 2, 3)).astype(np.float32)
    rows = ActionForm(box).rows(actions)
    assert box.contains(rows[0]) and not np.shares_memory(rows[0], actions)
    assert spec_of("x", with_actions(box)).action == BoxAction((-1.0,) * 6, (1.0,) * 6, (2, 3))


def with_actions(space: Any) -> Any:
    env = fakes.SimpleEnv()
    env.action_space = space
    return env
