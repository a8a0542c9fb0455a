"""NEXT_STEP semantics against gymnasium's own vector, and the native vector paths against the plain one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import fakes
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.actors.streams import ActionForm, PlainStreams, Streams, VectorStreams, make_streams
from asyncrl.envs.checks import spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AutoresetUnknown, ObservationOffSpace, OldGymAPI, SpacesDoNotFit
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, BoxAction, DiscreteAction, EnvSpec

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
        assert np.array_equal(streams.newest, obs[t + 1]) and streams.newest.dtype == obs.dtype
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
            fakes.FloatForByte,
            ObservationOffSpace,
            r"ASYNC012\].*got float32 of shape \(2,\), expected uint8",
        ),
        (
            fakes.RaggedObservation,
            ObservationOffSpace,
            r"(?s)ASYNC012\].*got list.*return an observation of observation_space",
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


def test_boxes_are_cut_to_their_finite_bounds() -> None:
    mixed = Box(np.array([-1, -np.inf, 0], np.float32), np.array([1, 2, np.inf], np.float32))
    actions = np.array([[-3, -30, -3], [3, 30, 30], [0.5, -0.25, 0.75]], np.float32)
    before = actions.copy()
    rows = ActionForm(mixed).batch(actions)
    assert rows.tolist() == [[-1, -30, 0], [1, 2, 30], [0.5, -0.25, 0.75]]
    assert np.array_equal(actions, before), "the ring keeps what was drawn"
    double = Box(-0.1, 0.1, (1,), np.float64)
    row = ActionForm(double).rows(np.array([[0.5]], np.float32))[0]
    assert double.contains(row) and row.dtype == np.float64 and row[0] == 0.1
    bytes_ = Box(0, 255, (2,), np.uint8)
    row = ActionForm(bytes_).rows(np.array([[-3.0, 300.0]], np.float32))[0]
    assert row.dtype == np.uint8 and row.tolist() == [0, 255], "cut before it could wrap around"
    steps = ActionForm(Box(-3, 4, (1,), np.int64))
    draws = np.arange(-2.995, 4, 0.01, np.float32)[:, None]
    counts = np.unique(steps.batch(draws), return_counts=True)
    assert counts[0].tolist() == [*range(-3, 5)] and counts[1].tolist() == [50, *[100] * 6, 50], (
        "the nearest one"
    )
    scalar = ActionForm(Box(-1, 1, (), np.float32)).batch(np.array([2, -0.5], np.float32))
    assert scalar.tolist() == [1, -0.5] and scalar.shape == (2,)
    free = ActionForm(Box(-np.inf, np.inf, (1,), np.float32)).batch(actions[:, :1])
    assert np.array_equal(free, actions[:, :1]) and not np.shares_memory(free, actions)


@pytest.mark.parametrize("plain", [True, False])
def test_environments_never_see_an_action_outside_of_their_box(plain: bool) -> None:
    class Strict(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Box(-1, 2, (2,), np.float32)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            return super().step(action)

    spec = spec_of("strict", Strict())
    envs = [Strict() for _ in range(2)]
    built = iter(envs)
    streams = (
        PlainStreams(envs, spec) if plain else VectorStreams(SyncVectorEnv([lambda: next(built)] * 2), spec)
    )
    actions = np.random.default_rng(0).normal(size=(20, 2, 2)).astype(np.float32) * 5
    assert np.isfinite(play(streams, actions, (2,))["obs"]).all()


def test_a_thousand_streams_of_a_native_vector_are_exact() -> None:
    """Against gymnasium's own loop over the same vector with the same seed and actions."""
    envs, rows = 1024, 120

    def build() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")

    vector, twin = build(), build()
    assert vector.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    actions = np.random.default_rng(5).integers(0, 2, (rows, envs))
    streams = VectorStreams(vector, spec_of("CartPole-v1", vector))
    obs, rewards = np.zeros((envs, rows + 1, 4), np.float32), np.zeros(envs)
    streams.reset([7], obs[:, 0])
    expected, _ = twin.reset(seed=7)
    ended, seen = np.zeros(envs, bool), 0
    for t, row in enumerate(actions):
        assert np.array_equal(obs[:, t], expected) and np.array_equal(streams.newest, expected)
        events = streams.step(row, obs[:, t + 1], rewards)
        expected, reward, terminated, truncated, _ = twin.step(row)
        slow = [
            (e, RESET if ended[e] else terminated[e] * TERMINATED + truncated[e] * TRUNCATED)
            for e in range(envs)
            if ended[e] or terminated[e] or truncated[e]
        ]
        assert [(int(e), int(f)) for e, f in events] == slow
        assert np.array_equal(rewards, np.where(ended, 0, reward))
        ended = terminated | truncated
        seen = max(seen, len(slow))
    assert seen > 100
    streams.close()
    twin.close()


def test_double_observations_of_a_vector_are_read_as_they_are_stored() -> None:
    spec = spec_of("double", fakes.DoubleSpace())
    streams = VectorStreams(SyncVectorEnv([fakes.DoubleSpace] * 3), spec)
    play(streams, np.zeros((3, 3), np.int64), spec.observation_shape)


def test_rewards_and_flags_of_reset_rows_are_ours_whatever_a_vector_returns_there() -> None:
    class Sloppy:
        """Environment that reports the end of stream 1 in every step, with a reward also in the row that resets it."""

        num_envs = 3
        metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        single_observation_space = Box(-1, 1, (1,), np.float32)
        single_action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed: int) -> Any:
            return np.zeros((3, 1), np.float32), {}

        def step(self, actions: Any) -> Any:
            ended = [np.array([False, True, False]), np.array([False, True, True])]
            return np.zeros((3, 1), np.float32), np.ones(3), *ended, {}

        def close(self) -> None: ...

    run = play(VectorStreams(Sloppy(), spec_of("sloppy", Sloppy())), np.zeros((4, 3), np.int64), (1,))
    both = TERMINATED | TRUNCATED
    assert run["flags"].T.tolist() == [[0] * 4, [both, RESET] * 2, [TRUNCATED, RESET] * 2]
    assert run["rewards"].T.tolist() == [[1] * 4, [1, 0] * 2, [1, 0] * 2]


def with_actions(space: Any) -> Any:
    env = fakes.SimpleEnv()
    env.action_space = space
    return env


@pytest.mark.parametrize("space", [Discrete(3, start=1), Discrete(4), Box(-1, 1, (1,))], ids=str)
def test_environments_of_one_factory_must_have_the_spaces_of_the_first(space: Any) -> None:
    source = EnvSource.from_user(lambda: with_actions(space))
    spec = spec_of("mine", with_actions(Discrete(3)))
    with pytest.raises(
        SpacesDoNotFit, match=r"ASYNC005\] All environments of mine must have one action space"
    ):
        make_streams(source, spec, 2)
    other = replace(spec, action=spec_of("mine", with_actions(space)).action, observation_shape=(7,))
    with pytest.raises(SpacesDoNotFit, match="observation space"):
        make_streams(source, other, 2)
