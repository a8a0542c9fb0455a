"""Acting of DDPG, TD3 and SAC, against numbers worked by hand and slow formulas in float64."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oracles import slow_perceptron
from scipy import stats
from waiting import PATIENCE_SECONDS

from asyncrl.acting.box import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    BoxLayout,
    BoxPolicy,
    DeterministicPolicy,
    SquashedGaussianPolicy,
    scaling,
)
from asyncrl.acting.network import ActionBox
from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec
from asyncrl.protocols import Policy

ODD = BoxAction((-1.0, -2.0, 0.0, 10.0, 7.0, -0.1), (3.0, 2.0, 0.3, 11.0, 7.0, 1 / 3), (2, 3))
"""Off centre, degenerate, and with bounds that float32 does not hold."""
SIDE = BoxAction((-1.0,), (3.0,), (1,))
INPUTS = 5
LARGEST = float(np.finfo(np.float32).max)


def bounds(action: BoxAction) -> tuple[np.ndarray, np.ndarray]:
    low, high = (np.array(v, np.float32).reshape(action.shape) for v in (action.low, action.high))
    return low, high


def make(
    gaussian: bool,
    action: BoxAction = ODD,
    *,
    noise: GaussianNoise | None = None,
    scale: float = 0.5,
    random_steps: int = 0,
    correlation: float = 0.0,
    hidden: tuple[int, ...] = (7, 6),
    dtype: str = "float32",
    shape: tuple[int, ...] = (INPUTS,),
) -> tuple[Any, np.ndarray]:
    spec = EnvSpec("test", shape, dtype, action)
    layout = BoxLayout(math.prod(shape), hidden, action, gaussian)
    made: DeterministicPolicy | SquashedGaussianPolicy
    if gaussian:
        made = SquashedGaussianPolicy(spec, layout, random_steps, correlation)
    else:
        made = DeterministicPolicy(spec, layout, noise or GaussianNoise(0.1), random_steps)
    weights = (scale * np.random.default_rng(0).normal(size=layout.weight_count)).astype(np.float32)
    made.load_weights(weights)
    return made, weights


def constant(gaussian: bool, head: list[float], action: BoxAction, **options: Any) -> Any:
    """Policy whose head outputs `head` for every observation."""
    made, weights = make(gaussian, action, hidden=(), **options)
    weights[:] = 0.0
    weights[-len(head) :] = head
    made.load_weights(weights)
    return made


def slow_outputs(layout: BoxLayout, flat: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Outputs computed one value at a time in float64."""
    assert layout.weight_count == len(flat)
    flat_rows = rows.reshape(len(rows), -1)
    return np.array([slow_perceptron(layout.sizes, flat, x, lambda v: max(0.0, v)) for x in flat_rows])


def to_box(unit: np.ndarray, action: BoxAction) -> np.ndarray:
    low, high = np.array(action.low), np.array(action.high)
    return (low + (unit + 1) / 2 * (high - low)).reshape(len(unit), *action.shape)


def observations(rows: int = 11, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, INPUTS)).astype(np.float32)


class Scripted:
    """Generator with given standard normal draws."""

    def __init__(self, *draws: list[list[float]]) -> None:
        self._draws = iter(np.array(draws, np.float32))

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        drawn = next(self._draws)
        assert drawn.shape == shape and drawn.dtype == dtype
        return drawn.copy()


def test_layout_by_hand() -> None:
    action = BoxAction((-1.0,) * 6, (1.0,) * 6, (2, 3))
    layout = BoxLayout(4, (8, 5), action)
    assert layout.sizes == (4, 8, 5, 6)
    assert layout.weight_count == 40 + 45 + 36 == 121 and layout.action_values == 6
    drawn = BoxLayout(4, (8, 5), action, gaussian=True)
    assert drawn.sizes == (4, 8, 5, 12) and drawn.weight_count == 157
    assert drawn.action_values == 6


def test_what_does_not_fit_is_refused() -> None:
    for low, high in ((-math.inf, 1.0), (-1.0, math.inf), (-1e300, 1.0), (math.nan, 1.0)):
        named = re.escape(f"finite bounds, got low ({low}, 0.0) and high ({high}, 1.0); wrap the environment")
        with pytest.raises(ValueError, match=named):
            BoxLayout(4, (8,), BoxAction((low, 0.0), (high, 1.0), (2,)))
    BoxLayout(4, (8,), BoxAction((-LARGEST,), (LARGEST,), (1,)))
    spec, noise = EnvSpec("test", (4,), "float32", SIDE), GaussianNoise(0.1)
    with pytest.raises(ValueError, match=r"layout\.inputs must be 4, the values of one observation, got 5"):
        DeterministicPolicy(spec, BoxLayout(5, (8,), SIDE), noise)
    with pytest.raises(
        ValueError, match=r"layout\.action must be the environment's, BoxAction\(low=\(-1\.0,"
    ):
        DeterministicPolicy(spec, BoxLayout(4, (8,), ODD), noise)
    with pytest.raises(ValueError, match=r"layout\.action must be the environment's, DiscreteAction"):
        DeterministicPolicy(EnvSpec("x", (4,), "float32", DiscreteAction(2)), BoxLayout(4, (), SIDE), noise)
    with pytest.raises(ValueError, match=r"layout\.gaussian must be False for DeterministicPolicy, got True"):
        DeterministicPolicy(spec, BoxLayout(4, (8,), SIDE, True), noise)
    with pytest.raises(ValueError, match=r"layout\.gaussian must be True for SquashedGaussianPolicy, got F"):
        SquashedGaussianPolicy(spec, BoxLayout(4, (8,), SIDE))
    with pytest.raises(ValueError, match="random_steps must be at least 0, got -1"):
        SquashedGaussianPolicy(spec, BoxLayout(4, (8,), SIDE, True), -1)
    with pytest.raises(ValueError, match=r"correlation must be at least 0 and below 1, got 1\.0"):
        SquashedGaussianPolicy(spec, BoxLayout(4, (8,), SIDE, True), 0, 1.0)
    with pytest.raises(ValueError, match=r"weights must have shape \(5,\), got \(6,\)"):
        DeterministicPolicy(spec, BoxLayout(4, (), SIDE), noise).load_weights(np.zeros(6, np.float32))


def test_scaling_by_hand() -> None:
    centre, half = scaling(ODD)
    assert centre.dtype == half.dtype == np.float32 and centre.shape == half.shape == (6,)
    np.testing.assert_allclose(centre, [1, 0, 0.15, 10.5, 7, (1 / 3 - 0.1) / 2], rtol=1e-6)
    np.testing.assert_allclose(half, [2, 2, 0.15, 0.5, 0, (1 / 3 + 0.1) / 2], rtol=1e-6)
    centre, half = scaling(BoxAction((-LARGEST,), (LARGEST,), (1,)))
    assert (centre[0], half[0]) == (0, np.float32(LARGEST)), "the range itself would overflow"


def test_scaling_undoes_what_a_policy_does() -> None:
    made, weights = make(False, scale=1.0)
    obs = observations(50)
    centre, half = scaling(ODD)
    moving = half > 0
    unit = (made.greedy(obs).reshape(50, 6) - centre)[:, moving] / half[moving]
    expected = np.tanh(slow_outputs(made.layout, weights, obs))[:, moving]
    np.testing.assert_allclose(unit, expected, atol=1e-5)


def test_deterministic_by_hand() -> None:
    """One ReLU unit max(0, 2x - 1), head [0.5 h + 0.25, -h]; box -1..3 and 0..10; noise 0.5 of half of each."""
    action = BoxAction((-1.0, 0.0), (3.0, 10.0), (2,))
    spec = EnvSpec("test", (1,), "float32", action)
    made = DeterministicPolicy(spec, BoxLayout(1, (1,), action), GaussianNoise(0.5))
    made.load_weights(np.array([2, -1, 0.5, -1, 0.25, 0], np.float32))
    made.assign_streams(0, 2, 2)
    obs = np.array([[0.0], [1.5]], np.float32)  # hidden 0 and 2: heads [0.25, 0] and [1.25, -2]
    tanh = [[0.24491866, 0.0], [0.84828364, -0.96402758]]
    plain = [[1 + 2 * tanh[0][0], 5], [1 + 2 * tanh[1][0], 5 + 5 * tanh[1][1]]]
    np.testing.assert_allclose(made.greedy(obs), plain, rtol=1e-5, atol=1e-5)
    noise = Scripted([[1.0, -0.2], [1.0, 0.8]])  # times 0.5; the third leaves the box and is cut
    action_taken, extras = made.act(obs, noise, 0)  # type: ignore[arg-type]
    noisy = [[1 + 2 * (tanh[0][0] + 0.5), 5 - 0.5], [3, 5 + 5 * (tanh[1][1] + 0.4)]]
    np.testing.assert_allclose(action_taken, noisy, rtol=1e-5, atol=1e-5)
    assert extras == {} and action_taken.dtype == np.float32 and action_taken[1, 0] == 3


def test_squashed_gaussian_by_hand() -> None:
    """Mean 0.5 and -1, log stds 0 and log 0.5; draws 1 and 2 give u = 1.5 and 0; box -1..3 and 0..10."""
    action = BoxAction((-1.0, 0.0), (3.0, 10.0), (2,))
    made = constant(True, [0.5, -1.0, 0.0, math.log(0.5)], action)
    obs = observations(1)
    drawn, extras = made.act(obs, Scripted([[1.0, 2.0]]), 0)
    np.testing.assert_allclose(drawn, [[1 + 2 * 0.90514825, 5]], rtol=1e-5)
    np.testing.assert_allclose(made.greedy(obs), [[1 + 2 * 0.46211716, 5 - 5 * 0.76159416]], rtol=1e-5)
    assert extras == {} and drawn.dtype == np.float32
    assert made.exploration_rate == pytest.approx(0.75)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("hidden", [(), (8,), (5, 9, 4)])
@pytest.mark.parametrize("gaussian", [False, True])
def test_greedy_is_the_slow_formula(gaussian: bool, hidden: tuple[int, ...], rows: int) -> None:
    made, weights = make(gaussian, hidden=hidden)
    inner = np.zeros((rows, 4, INPUTS), np.float32)
    inner[:, 2] = observations(rows)
    expected = to_box(np.tanh(slow_outputs(made.layout, weights, inner[:, 2])[:, :6]), ODD)
    np.testing.assert_allclose(made.greedy(inner[:, 2]), expected, rtol=1e-5, atol=1e-5)
    made.assign_streams(0, rows, rows)
    assert not np.array_equal(made.act(inner[:, 2], np.random.default_rng(0), 0)[0], made.greedy(inner[:, 2]))


@pytest.mark.parametrize("gaussian", [False, True])
def test_bytes_are_scaled_and_images_flattened(gaussian: bool) -> None:
    shape = (2, 3, 2)
    made, weights = make(gaussian, dtype="uint8", shape=shape)
    frames = np.random.default_rng(2).integers(0, 256, (6, 4, *shape), dtype=np.uint8)
    unit = np.tanh(slow_outputs(made.layout, weights, frames[:, 1].astype(np.float64) / 255)[:, :6])
    np.testing.assert_allclose(made.greedy(frames[:, 1]), to_box(unit, ODD), rtol=1e-4, atol=1e-4)


def test_box_at_its_ends_and_at_the_ends_of_float32() -> None:
    wide = BoxAction((-LARGEST, -1.0), (LARGEST, 3.0), (2,))
    box = ActionBox(wide)
    ends = np.array([[-1, -1], [1, 1], [0, 0]], np.float32)
    assert box.scale(ends).tolist() == [[-LARGEST, -1], [LARGEST, 3], [0, 1]]
    assert box.squash(np.float32(1e30) * ends).tolist() == [[-LARGEST, -1], [LARGEST, 3], [0, 1]]
    share = np.random.default_rng(0).random((20_000, 6), np.float32)
    low, high = bounds(ODD)
    at = ActionBox(ODD).at(share)
    assert ((at >= low) & (at <= high)).all() and (at[:, 1, 1] == 7).all()


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("size", [1.0, 50.0, 1e30])
def test_actions_never_leave_the_box(gaussian: bool, size: float) -> None:
    made, weights = make(gaussian, noise=GaussianNoise(3.0))
    made.load_weights((weights * np.float32(size ** (1 / 3))).astype(np.float32))
    made.assign_streams(0, 3000, 3000)
    low, high = bounds(ODD)
    obs = observations(3000)
    for action in (made.greedy(obs), made.act(obs, np.random.default_rng(0), 0)[0]):
        assert ((action >= low) & (action <= high)).all() and np.isfinite(action).all()


@pytest.mark.parametrize("gaussian", [False, True])
def test_both_ends_of_the_box_are_reached(gaussian: bool) -> None:
    made = constant(gaussian, [0.0] * 6 + [2.0] * 6 * gaussian, ODD, noise=GaussianNoise(3.0))
    made.assign_streams(0, 3000, 3000)
    drawn, _ = made.act(observations(3000), np.random.default_rng(0), 0)
    low, high = bounds(ODD)
    assert np.array_equal(drawn.min(axis=0), low) and np.array_equal(drawn.max(axis=0), high)
    end = constant(gaussian, [1e30, -1e30] * (6 if gaussian else 3), ODD).greedy(observations(1))[0]
    np.testing.assert_array_equal(end.ravel(), np.where(np.arange(6) % 2, low.ravel(), high.ravel()))


def test_log_stds_are_clamped() -> None:
    """The head outputs log stds of 100 and -100; the latent draw has stds of e^2 and e^-20."""
    action = BoxAction((-1.0,) * 2, (1.0,) * 2, (2,))
    made = constant(True, [0.0, 0.0, 100.0, -100.0], action)
    drawn, _ = made.act(observations(1), Scripted([[0.05, 1e8]]), 0)
    expected = np.tanh([0.05 * math.exp(LOG_STD_MAX), 1e8 * math.exp(LOG_STD_MIN)])
    np.testing.assert_allclose(drawn[0], expected, rtol=1e-5)
    assert made.exploration_rate == pytest.approx((math.exp(2) + math.exp(-20)) / 2)
    inside = constant(True, [0.0, 0.0, 1.9, -19.0], action)
    inside.act(observations(1), np.random.default_rng(0), 0)
    assert inside.exploration_rate == pytest.approx((math.exp(1.9) + math.exp(-19)) / 2)


def test_squashed_draws_have_the_distribution_of_their_row() -> None:
    made, weights = make(True, scale=0.3)
    rows = 20_000
    obs = observations(2)
    drawn, _ = made.act(np.repeat(obs, rows, axis=0), np.random.default_rng(7), 0)
    heads = slow_outputs(made.layout, weights, obs)
    centre, half = scaling(ODD)
    for r in range(2):
        part = drawn[r * rows : (r + 1) * rows].reshape(rows, 6).astype(np.float64)
        for i in (0, 1, 3):
            latent = np.arctanh(np.clip((part[:, i] - centre[i]) / half[i], -1 + 1e-7, 1 - 1e-7))
            normal = stats.norm(heads[r, i], np.exp(heads[r, 6 + i]))
            assert stats.kstest(latent, normal.cdf).pvalue > 0.01
    assert made.exploration_rate == pytest.approx(np.exp(heads[:, 6:]).mean(), rel=1e-5)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_squashed_draws_of_a_stream_are_correlated_and_each_is_the_policys(correlation: float) -> None:
    made = constant(True, [0.4, math.log(0.5)], SIDE, correlation=correlation)
    made.assign_streams(2, 2, 4)
    rng, obs = np.random.default_rng(10), observations(2)
    centre, half = scaling(SIDE)
    actions = np.array([made.act(obs, rng, 0)[0][:, 0] for _ in range(40_000)], np.float64)
    latent = np.arctanh((actions - centre) / half)
    apart = latent[::100]  # 0.9 ** 100 is 3e-5
    assert stats.kstest(apart.ravel(), stats.norm(0.4, 0.5).cdf).pvalue > 0.01
    for stream in latent.T:
        assert np.corrcoef(stream[:-1], stream[1:])[0, 1] == pytest.approx(correlation, abs=0.02)
        assert np.corrcoef(stream[:-5], stream[5:])[0, 1] == pytest.approx(correlation**5, abs=0.05)
    assert abs(np.corrcoef(apart.T)[0, 1]) < 0.15, "streams are independent"


def test_noise_is_that_of_each_stream_in_units_of_half_the_range() -> None:
    noise = GaussianNoise(0.2, 0.05)
    made = constant(False, [0.0] * 6, ODD, noise=noise)
    made.assign_streams(1, 3, 5)
    rng, obs = np.random.default_rng(8), observations(3)
    actions = np.array([made.act(obs, rng, 0)[0].reshape(3, 6) for _ in range(8000)], np.float64)
    centre, half = scaling(ODD)
    expected = noise.scales(1, 3, 5)[:, None] * half
    np.testing.assert_allclose(actions.std(axis=0), expected, rtol=0.04)
    np.testing.assert_allclose(actions.mean(axis=0), np.tile(centre, (3, 1)), atol=0.02)
    assert made.exploration_rate == pytest.approx(noise.scales(1, 3, 5).mean())


def test_ornstein_uhlenbeck_noise_runs_on_from_act_to_act() -> None:
    made = constant(False, [0.0], SIDE, noise=OrnsteinUhlenbeckNoise(0.1, theta=0.3))
    rng, obs = np.random.default_rng(9), observations(1)
    course = np.array([made.act(obs, rng, 0)[0][0, 0] for _ in range(20_000)], np.float64)
    assert course.std() == pytest.approx(0.2, rel=0.04), "0.1 of half the range, which is 2"
    assert np.corrcoef(course[:-1], course[1:])[0, 1] == pytest.approx(0.7, abs=0.02)


def test_noise_under_way_goes_on_with_the_options_of_another() -> None:
    """The state of a resumed actor, whose run has other options of exploration now."""
    kept = constant(False, [0.0], SIDE, noise=OrnsteinUhlenbeckNoise(0.1, theta=0.5))
    now = constant(False, [0.0], SIDE, noise=OrnsteinUhlenbeckNoise(0.2, theta=0.5))
    obs, (centre, half) = observations(1), scaling(SIDE)
    kept.act(obs, Scripted([[1.0]]), 0)
    kept.take_exploration(now)
    action, _ = kept.act(obs, Scripted([[0.0]]), 0)
    assert action[0, 0] - centre[0] == pytest.approx(0.2 * 0.5 * half[0]), (
        "half of the last draw, at the new scale"
    )
    assert kept.exploration_rate == pytest.approx(0.2)


def test_uniform_actions_and_correlation_are_those_of_the_options_that_were_taken() -> None:
    kept, _ = make(True, random_steps=1000, correlation=0.5)
    now, _ = make(True, random_steps=10)
    kept.take_exploration(now)
    obs = observations(1)
    drawn = [kept.act(obs, np.random.default_rng(1), 10)[0] for _ in range(2)]
    np.testing.assert_array_equal(*drawn)  # equal generators: nothing goes on from step to step
    np.testing.assert_array_equal(drawn[0], now.act(obs, np.random.default_rng(1), 10)[0])


@pytest.mark.parametrize("gaussian", [False, True])
def test_actions_are_uniform_in_the_box_until_exactly_random_steps(gaussian: bool) -> None:
    made, _ = make(gaussian, random_steps=1000, noise=GaussianNoise(0.25))
    rows = 20_000
    made.assign_streams(0, rows, rows)
    assert made.exploration_rate == 1.0
    obs, (low, high) = observations(rows), bounds(ODD)
    for at in (0, 999):
        drawn, extras = made.act(obs, np.random.default_rng(1), at)
        assert extras == {} and drawn.dtype == np.float32 and made.exploration_rate == 1.0
        assert ((drawn >= low) & (drawn <= high)).all()
        flat = drawn.reshape(rows, 6).astype(np.float64)
        for i in (0, 1, 2, 3, 5):
            uniform = stats.uniform(ODD.low[i], ODD.high[i] - ODD.low[i])
            assert stats.kstest(flat[:, i], uniform.cdf).pvalue > 0.01
        assert (flat[:, 4] == 7).all()
    drawn, _ = made.act(obs, np.random.default_rng(1), 1000)
    plain, _ = make(gaussian, noise=GaussianNoise(0.25))
    plain.assign_streams(0, rows, rows)
    assert np.array_equal(drawn, plain.act(obs, np.random.default_rng(1), 0)[0])
    assert made.exploration_rate == plain.exploration_rate != 1.0
    assert gaussian or plain.exploration_rate == pytest.approx(0.25)
    made.act(obs, np.random.default_rng(1), 999)
    assert made.exploration_rate == 1.0, "that of the last act"


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("random_steps", [0, 10])
def test_exploration_before_the_first_act(gaussian: bool, random_steps: int) -> None:
    made, _ = make(gaussian, random_steps=random_steps, noise=GaussianNoise(0.3))
    assert made.exploration_rate == pytest.approx(0.3 if not gaussian and random_steps == 0 else 1.0)


def test_rows_are_the_assigned_streams_where_streams_differ() -> None:
    made, _ = make(False, random_steps=10)
    for steps in (0, 10):
        with pytest.raises(ValueError, match="obs must have 1 rows, one per assigned stream, got 2"):
            made.act(observations(2), np.random.default_rng(0), steps)
    assert made.greedy(observations(2)).shape == (2, 2, 3), "greedy takes any number"
    made.assign_streams(3, 2, 5)
    assert made.act(observations(2), np.random.default_rng(0), 10)[0].shape == (2, 2, 3)
    with pytest.raises(ValueError, match="streams 3 to 5 must lie in the 5 of all actors"):
        made.assign_streams(3, 3, 5)
    other, _ = make(True, random_steps=10)
    for rows in (1, 4):
        assert other.act(observations(rows), np.random.default_rng(0), 10)[0].shape == (rows, 2, 3)


@pytest.mark.parametrize("gaussian", [False, True])
def test_shapes_freshness_and_pickling(gaussian: bool) -> None:
    made, weights = make(gaussian, noise=OrnsteinUhlenbeckNoise(0.3, 0.1))
    obs, rng = observations(9), np.random.default_rng(5)
    made.assign_streams(3, 9, 30)
    first, _ = made.act(obs, rng, 0)
    kept = first.copy()
    made.greedy(observations(500))
    packed = pickle.dumps(made)
    assert len(packed) < 4 * made.weight_count + 4000, "without buffers"
    other: BoxPolicy = pickle.loads(packed)
    assert isinstance(other, Policy) and other.exploration_rate == made.exploration_rate
    assert other.layout == made.layout
    one, two = np.random.default_rng(6), np.random.default_rng(6)
    for _ in range(3):
        assert np.array_equal(made.act(obs, one, 0)[0], other.act(obs, two, 0)[0])
    greedy = made.greedy(obs)
    held = greedy.copy()
    made.greedy(observations(4))
    made.act(observations(9, seed=8), rng, 0)
    assert np.array_equal(greedy, held) and np.array_equal(first, kept), (
        "what was returned is not written again"
    )
    assert greedy.shape == first.shape == (9, 2, 3) and greedy.dtype == first.dtype == np.float32
    weights[:] = 0
    assert np.array_equal(made.greedy(obs), held), "loaded weights are a copy"
    other.load_weights(weights)
    np.testing.assert_allclose(other.greedy(obs)[0], to_box(np.zeros((1, 6)), ODD)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gaussian", [False, True])
def test_predict(gaussian: bool) -> None:
    made, weights = make(gaussian, random_steps=10**9)
    model = TrainedPolicy(EnvSpec("test", (INPUTS,), "float32", ODD), made, weights, np.random.default_rng(0))
    obs = observations(6).astype(np.float64)
    batch, _ = model.predict(obs)
    np.testing.assert_allclose(batch, made.greedy(observations(6)), rtol=1e-6, atol=1e-6)
    assert np.array_equal(model.predict(obs[2])[0], batch[2])
    drawn, _ = model.predict(obs, deterministic=False)
    assert drawn.shape == (6, 2, 3) and not np.array_equal(drawn, batch)
    assert made.exploration_rate != 1.0, "never uniform: the random steps are over"
    assert model.predict(obs[0], deterministic=False)[0].shape == (2, 3)


def test_acting_never_imports_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from asyncrl.interfaces import BoxAction, EnvSpec\n"
        "from asyncrl.acting.box import BoxLayout, DeterministicPolicy, SquashedGaussianPolicy\n"
        "from asyncrl.acting.noise import GaussianNoise\n"
        "action = BoxAction((-1.0,), (1.0,), (1,))\n"
        "spec = EnvSpec('x', (4,), 'float32', action)\n"
        "one = DeterministicPolicy(spec, BoxLayout(4, (8,), action), GaussianNoise(0.1))\n"
        "other = SquashedGaussianPolicy(spec, BoxLayout(4, (8,), action, True))\n"
        "for policy in (one, other):\n"
        "    policy.act(np.zeros((1, 4), np.float32), np.random.default_rng(0), 0)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
