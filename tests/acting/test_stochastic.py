"""Acting of stochastic policies, against slow formulas in float64 and scipy's distributions."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from oracles import slow_perceptron
from scipy import stats
from waiting import PATIENCE_SECONDS

from asyncrl.acting.kernels import (
    add_squashing,
    draw_choices,
    draw_gaussian,
    elu_in_place,
    mlp_forward,
    tanh_in_place,
)
from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy, extra_fields_of
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.envs.observations import FORBIDDEN
from asyncrl.interfaces import ActionSpec, BoxAction, DiscreteAction, EnvSpec, FieldSpec, MultiDiscreteAction
from asyncrl.protocols import Policy

DISCRETE = DiscreteAction(3)
SEVERAL = MultiDiscreteAction((2, 4, 3))
BOX = BoxAction((-1.0, -2.0, 0.0), (1.0, 2.0, 5.0), (3,))
FREE = BoxAction((-math.inf,) * 4, (math.inf,) * 4, (2, 2))
INPUTS = 5


def make(
    action: ActionSpec,
    *,
    seed: int = 0,
    scale: float = 0.5,
    log_std: float = -0.7,
    dtype: str = "float32",
    shape: tuple[int, ...] = (INPUTS,),
    hidden: tuple[int, ...] = (7, 6),
    **options: Any,
) -> tuple[StochasticPolicy, np.ndarray]:
    spec = EnvSpec("test", shape, dtype, action)
    layout = ActorLayout(math.prod(shape), hidden, action, **options)
    made, rng = StochasticPolicy(spec, layout), np.random.default_rng(seed)
    weights = (scale * rng.normal(size=layout.weight_count)).astype(np.float32)
    weights[layout.log_std] = log_std + 0.1 * np.arange(layout.action_values)
    if layout.normalized:
        weights[layout.obs_mean] = rng.normal(size=layout.inputs)
        weights[layout.obs_scale] = rng.uniform(0.5, 2, layout.inputs)
    made.load_weights(weights)
    return made, weights


def slow_outputs(layout: ActorLayout, flat: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Outputs computed one value at a time in float64."""
    function = np.tanh if layout.activation == "tanh" else lambda v: max(v, 0.0)
    own = flat[: layout.network_count]
    return np.array([slow_perceptron(layout.sizes, own, x, function) for x in rows.reshape(len(rows), -1)])


def observations(rows: int = 11, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, INPUTS)).astype(np.float32)


def test_layout_by_hand() -> None:
    layout = ActorLayout(4, (8, 6), BOX, squashed=True, normalized=True)
    assert layout.sizes == (4, 8, 6, 3)
    assert layout.network_count == 40 + 54 + 21 == 115
    assert (layout.log_std, layout.obs_mean, layout.obs_scale) == (
        slice(115, 118),
        slice(118, 122),
        slice(122, 126),
    )
    assert (
        layout.weight_count == 126 and layout.outputs == 3 and layout.action_values == 3 and layout.gaussian
    )
    assert extra_fields_of(layout) == (
        FieldSpec("log_prob", (), "float32"),
        FieldSpec("latent", (3,), "float32"),
    )
    plain = ActorLayout(4, (8,), SEVERAL)
    assert plain.outputs == 9 and plain.action_values == 0 and not plain.gaussian
    assert plain.sizes == (4, 8, 9) and plain.weight_count == plain.network_count == 121
    assert all(s == slice(121, 121) for s in (plain.log_std, plain.obs_mean, plain.obs_scale))
    assert extra_fields_of(plain) == (FieldSpec("log_prob", (), "float32"),)
    assert ActorLayout(4, (8,), DiscreteAction(5)).outputs == 5
    assert ActorLayout(4, (), FREE).sizes == (4, 4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="squashed needs a Box action, got DiscreteAction"):
        ActorLayout(4, (8,), DISCRETE, squashed=True)
    with pytest.raises(ValueError, match="squashed needs finite bounds, got low"):
        ActorLayout(4, (8,), BoxAction((-1e39,), (1e39,), (1,)), squashed=True)  # infinite in float32
    with pytest.raises(ValueError, match=r"squashed needs finite bounds, got low \(-inf"):
        ActorLayout(4, (8,), FREE, squashed=True)
    with pytest.raises(ValueError, match="activation must be 'tanh' or 'relu', got 'gelu'"):
        ActorLayout(4, (8,), DISCRETE, activation="gelu")  # type: ignore[arg-type]
    spec = EnvSpec("test", (4,), "float32", DISCRETE)
    with pytest.raises(ValueError, match=r"layout\.inputs must be 4, the values of one observation, got 5"):
        StochasticPolicy(spec, ActorLayout(5, (8,), DISCRETE))
    with pytest.raises(ValueError, match=r"layout\.action must be the environment's, DiscreteAction\(n=3"):
        StochasticPolicy(spec, ActorLayout(4, (8,), SEVERAL))
    with pytest.raises(ValueError, match=r"weights must have shape \(67,\), got \(66,\)"):
        StochasticPolicy(spec, ActorLayout(4, (8,), DISCRETE)).load_weights(np.zeros(66, np.float32))


def test_tanh_is_within_its_bound() -> None:
    fine, coarse = np.linspace(-1e-3, 1e-3, 20_001), np.linspace(-12, 12, 400_001)
    x = np.concatenate([fine, coarse, [-1e30, 1e30, 0.0, -np.inf, np.inf]]).astype(np.float32)
    y = x.copy()
    tanh_in_place(y)
    assert np.abs(y - np.tanh(x.astype(np.float64))).max() < 5e-7
    assert np.abs(y).max() <= 1
    z = x[::1000].copy()
    tanh_in_place.py_func(z)
    np.testing.assert_allclose(z, y[::1000], rtol=0, atol=5e-7)


def test_elu_is_within_its_bound() -> None:
    fine, coarse = np.linspace(-1e-3, 1e-3, 20_001), np.linspace(-30, 12, 400_001)
    x = np.concatenate([fine, coarse, [-1e30, 1e30, 0.0, -np.inf, np.inf, np.nan]]).astype(np.float32)
    y = x.copy()
    elu_in_place(y)
    wide = x.astype(np.float64)
    expected = np.where(wide > 0, wide, np.expm1(np.minimum(wide, 0)))
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(y[x > 0], x[x > 0])
    z = x[::1000].copy()
    elu_in_place.py_func(z)
    np.testing.assert_allclose(z, y[::1000], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (8,), (5, 9, 4)])
def test_outputs_are_those_of_the_slow_formula(hidden: tuple[int, ...], activation: Any, rows: int) -> None:
    made, weights = make(DISCRETE, hidden=hidden, activation=activation)
    obs = observations(rows)
    np.testing.assert_allclose(
        made.outputs(obs), slow_outputs(made.layout, weights, obs), rtol=1e-5, atol=5e-6
    )
    inner = np.zeros((rows, 4, INPUTS), np.float32)
    inner[:, 2] = obs
    assert np.array_equal(made.outputs(obs).copy(), made.outputs(inner[:, 2])), "a strided view of a ring"


def test_kernel_compiled_and_interpreted_agree() -> None:
    made, weights = make(BOX, normalized=True)
    obs, sizes = observations(4), np.array(made.layout.sizes)
    for relu in (False, True):
        outs = []
        for kernel in (mlp_forward, mlp_forward.py_func):
            outs.append(np.full((4, 3), np.nan, np.float32))
            kernel(obs, weights, sizes, relu, False, np.full((2, 4, 7), np.nan, np.float32), outs[-1])
        np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-6)
    uniform, logits = np.random.default_rng(1).random((4, 2)), obs[:, :5].copy()
    results = []
    for draw in (draw_choices, draw_choices.py_func):
        action, log_prob = np.zeros((4, 2), np.int64), np.zeros(4, np.float32)
        rate = draw(logits, np.array([2, 3]), uniform, action, log_prob)
        results.append((action.tolist(), log_prob.tolist(), rate))
    assert results[0][0] == results[1][0]
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6)
    assert results[0][2] == pytest.approx(results[1][2])
    for gauss in (draw_gaussian, draw_gaussian.py_func):
        noise, log_prob = obs[:, :2].copy(), np.zeros(4, np.float32)
        gauss(np.ones((4, 2), np.float32), np.array([0, -1], np.float32), np.zeros(2), noise, log_prob)
        slow = stats.norm(1, np.exp([0, -1])).logpdf(noise).sum(axis=1)
        np.testing.assert_allclose(log_prob, slow, rtol=1e-5)
    for squash in (add_squashing, add_squashing.py_func):
        corrected = np.zeros(4, np.float32)
        squash(obs[:, :2].copy(), corrected)
        slow = -np.log(1 - np.tanh(obs[:, :2].astype(np.float64)) ** 2).sum(axis=1)
        np.testing.assert_allclose(corrected, slow, rtol=1e-5, atol=1e-6)


def test_choices_by_hand() -> None:
    """Probabilities 1/4, 1/4, 1/2 and 0.2, 0.8; draws at the steps of the distribution function."""
    logits = np.log(np.array([[0.25, 0.25, 0.5, 0.2, 0.8]] * 5)).astype(np.float32)
    logits[:, :3] += 50  # a shift changes nothing
    uniform = np.array([[0, 0], [0.2, 0.19], [0.26, 0.21], [0.49, 0.9], [0.51, 1 - 2**-53]])
    action, log_prob = np.zeros((5, 2), np.int64), np.zeros(5, np.float32)
    rate = draw_choices(logits, np.array([3, 2]), uniform, action, log_prob)
    assert action.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1], [2, 1]]
    expected = np.log([0.25 * 0.2, 0.25 * 0.2, 0.25 * 0.8, 0.25 * 0.8, 0.5 * 0.8])
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    assert rate == pytest.approx((0.5 + 0.2) / 2, rel=1e-5)


def test_a_draw_on_the_very_border_takes_the_next_choice() -> None:
    """Choice j has `[F(j - 1), F(j))`: a draw of 0.5 of two equal choices is the second, 0 never an impossible one."""
    action, log_prob = np.zeros((2, 1), np.int64), np.zeros(2, np.float32)
    logits = np.array([[1, 1], [-3e38, 1]], np.float32)
    draw_choices(logits, np.array([2]), np.array([[0.5], [0.0]]), action, log_prob)
    assert action[:, 0].tolist() == [1, 1]


def test_a_forbidden_choice_behind_the_allowed_ones_is_never_drawn() -> None:
    """The sum up to the last allowed one rounded to float32 may lie below the largest draws."""
    logits = np.random.default_rng(0).normal(0, 3, (1000, 8)).astype(np.float32)
    logits[:, 5:] = FORBIDDEN
    action, log_prob = np.zeros((1000, 1), np.int64), np.zeros(1000, np.float32)
    for below_one in (1 - 2**-53, 1 - 2**-30, 1 - 2**-24):
        draw_choices(logits, np.array([8]), np.full((1000, 1), below_one), action, log_prob)
        assert action.max() == 4 and log_prob.min() > -100


def test_extreme_logits_stay_finite_and_legal() -> None:
    logits = np.array([[3e38, -3e38], [-3e38, 3e38], [-3e38, -3e38], [1e4, 0]], np.float32)
    action, log_prob = np.zeros((4, 1), np.int64), np.zeros(4, np.float32)
    draw_choices(logits, np.array([2]), np.full((4, 1), 1 - 2**-53), action, log_prob)
    assert action[:, 0].tolist() == [0, 1, 1, 0]
    np.testing.assert_allclose(log_prob, [0, 0, -math.log(2), 0], rtol=1e-6)
    draw_choices(np.full((4, 2), np.nan, np.float32), np.array([2]), np.full((4, 1), 0.5), action, log_prob)
    assert ((action >= 0) & (action < 2)).all(), "a diverged network never leaves the action space"


@pytest.mark.parametrize(("action", "choices"), [(DISCRETE, (3,)), (SEVERAL, (2, 4, 3))])
def test_log_prob_of_choices_is_log_softmax(action: ActionSpec, choices: tuple[int, ...]) -> None:
    made, weights = make(action, scale=1.0)
    obs = observations(50)
    drawn, extras = made.act(obs, np.random.default_rng(1), 0)
    assert drawn.dtype == np.int64 and drawn.shape == (50, *action.shape)
    assert extras["log_prob"].dtype == np.float32 and extras["log_prob"].shape == (50,) and len(extras) == 1
    logits, columns = slow_outputs(made.layout, weights, obs), drawn.reshape(50, -1)
    expected, misses = np.zeros(50), []
    greedy = made.greedy(obs)
    assert greedy.shape == drawn.shape and greedy.dtype == np.int64
    for c, part in enumerate(np.split(logits, np.cumsum(choices)[:-1], axis=1)):
        p = np.exp(part) / np.exp(part).sum(axis=1, keepdims=True)
        expected += np.log(p[np.arange(50), columns[:, c]])
        misses.append(1 - p.max(axis=1))
        assert np.array_equal(greedy.reshape(50, -1)[:, c], part.argmax(axis=1))
    np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-5, atol=1e-5)
    assert made.exploration_rate == pytest.approx(np.mean(misses), rel=1e-4)


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL])
def test_choices_fall_as_often_as_their_probability_says(action: ActionSpec) -> None:
    made, weights = make(action)
    rows = 40_000
    obs = np.repeat(observations(1), rows, axis=0)
    drawn, extras = made.act(obs, np.random.default_rng(7), 0)
    columns = drawn.reshape(rows, -1)
    logits = slow_outputs(made.layout, weights, obs[:1])[0]
    joint = np.ones(1)
    for part in np.split(logits, np.cumsum(made.layout.choices)[:-1]):
        joint = np.multiply.outer(joint, np.exp(part) / np.exp(part).sum()).ravel()
    index = np.ravel_multi_index(columns.T, made.layout.choices)
    counts = np.bincount(index, minlength=len(joint))
    assert stats.chisquare(counts, joint * rows).pvalue > 0.01
    np.testing.assert_allclose(np.exp(extras["log_prob"]), joint[index], rtol=1e-4)


def test_gaussian_is_drawn_unclipped_with_the_density_of_the_draw() -> None:
    made, weights = make(BOX, log_std=0.5)
    rows = 20_000
    obs = np.repeat(observations(1), rows, axis=0)
    drawn, extras = made.act(obs, np.random.default_rng(7), 0)
    assert drawn.dtype == np.float32 and drawn.shape == (rows, 3) and set(extras) == {"log_prob"}
    mean = slow_outputs(made.layout, weights, obs[:1])[0]
    std = np.exp(weights[made.layout.log_std].astype(np.float64))
    normal = stats.norm(mean, std)
    np.testing.assert_allclose(extras["log_prob"], normal.logpdf(drawn).sum(axis=1), rtol=1e-4, atol=1e-4)
    assert (np.abs(drawn[:, 0]) > 1).mean() > 0.3, "not cut to the box"
    for i in range(3):
        assert stats.kstest((drawn[:, i] - mean[i]) / std[i], "norm").pvalue > 0.01
    np.testing.assert_allclose(made.greedy(obs[:1])[0], mean, rtol=1e-5, atol=1e-6)
    assert made.exploration_rate == pytest.approx(std.mean(), rel=1e-6)


def test_tiny_noise_on_a_large_mean_has_the_density_of_the_rounded_number() -> None:
    mean, std = np.full((200, 1), 1000, np.float32), 1e-3
    draw = np.random.default_rng(0).standard_normal((200, 1), np.float32)
    log_prob = np.zeros(200, np.float32)
    draw_gaussian(mean, np.array([math.log(std)], np.float32), np.zeros(1), draw, log_prob)
    expected = stats.norm(1000, math.exp(np.float32(math.log(std)))).logpdf(draw.astype(np.float64))[:, 0]
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


def test_squashed_draws_lie_in_the_box_with_their_change_of_variables() -> None:
    made, weights = make(BOX, squashed=True, log_std=0.0)
    obs = observations(500)
    drawn, extras = made.act(obs, np.random.default_rng(7), 0)
    low, high = np.array(BOX.low), np.array(BOX.high)
    assert ((drawn >= low) & (drawn <= high)).all() and drawn.dtype == np.float32
    latent = extras["latent"]
    assert latent.shape == (500, 3) and latent.dtype == np.float32 and set(extras) == {"log_prob", "latent"}
    u = latent.astype(np.float64)
    np.testing.assert_allclose(drawn, low + (np.tanh(u) + 1) / 2 * (high - low), rtol=1e-5, atol=1e-6)
    mean = slow_outputs(made.layout, weights, obs)
    std = np.exp(weights[made.layout.log_std].astype(np.float64))
    jacobian = np.log(1 - np.tanh(u) ** 2).sum(axis=1)
    expected = stats.norm(mean, std).logpdf(u).sum(axis=1) - jacobian
    np.testing.assert_allclose(extras["log_prob"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        made.greedy(obs), low + (np.tanh(mean) + 1) / 2 * (high - low), rtol=1e-5, atol=1e-5
    )


def test_squashing_far_out_by_hand() -> None:
    """At u = 100, 1 - tanh(u)^2 = 4 exp(-2u): log 4 - 200; the plain formula rounds it to zero."""
    latent, log_prob = np.array([[100], [-100], [0]], np.float32), np.zeros(3, np.float32)
    add_squashing(latent, log_prob)
    assert log_prob.tolist() == pytest.approx([200 - math.log(4), 200 - math.log(4), 0])


def test_squashed_saturation_never_leaves_the_box() -> None:
    odd = BoxAction((-0.1, 1 / 3), (0.3, 0.7), (2,))
    made, _ = make(odd, squashed=True, scale=0.0, log_std=5.0)
    drawn, extras = made.act(observations(2000), np.random.default_rng(0), 0)
    low, high = (np.array(v, np.float32) for v in (odd.low, odd.high))
    assert ((drawn >= low) & (drawn <= high)).all() and np.isfinite(extras["log_prob"]).all()
    assert {*drawn[:, 0].tolist()} >= {float(low[0]), float(high[0])}, "it saturates on both sides"


def test_bytes_are_scaled_and_images_flattened() -> None:
    shape = (2, 3, 2)
    made, weights = make(DISCRETE, dtype="uint8", shape=shape)
    frames = np.random.default_rng(2).integers(0, 256, (6, 4, *shape), dtype=np.uint8)
    expected = slow_outputs(made.layout, weights, frames[:, 1].astype(np.float64) / 255)
    np.testing.assert_allclose(made.outputs(frames[:, 1]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_normalised_observations_are_clipped_and_never_scaled_twice(dtype: str) -> None:
    made, weights = make(DISCRETE, dtype=dtype, normalized=True)
    layout, rng = made.layout, np.random.default_rng(2)
    obs = rng.normal(size=(40, INPUTS)) * 12 if dtype == "float32" else rng.integers(0, 25, (40, INPUTS))
    obs = obs.astype(dtype)
    plain = (obs - weights[layout.obs_mean].astype(np.float64)) * weights[layout.obs_scale]
    assert (plain > OBSERVATION_CLIP).any() and (np.abs(plain) < OBSERVATION_CLIP).any()
    assert dtype == "uint8" or (plain < -OBSERVATION_CLIP).any()
    expected = slow_outputs(layout, weights, np.clip(plain, -OBSERVATION_CLIP, OBSERVATION_CLIP))
    np.testing.assert_allclose(made.outputs(obs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("action", "squashed"), [(DISCRETE, False), (SEVERAL, False), (BOX, False), (BOX, True), (FREE, False)]
)
def test_shapes_freshness_and_pickling(action: ActionSpec, squashed: bool) -> None:
    made, _ = make(action, squashed=squashed, normalized=True)
    obs = observations(9)
    made.assign_streams(3, 9, 30)
    first, extras = made.act(obs, np.random.default_rng(5), 0)
    fields = {f.name: f for f in extra_fields_of(made.layout)}
    assert set(extras) == set(fields)
    for name, values in extras.items():
        assert values.shape == (9, *fields[name].shape) and values.dtype == fields[name].dtype
    assert first.shape == (9, *action.shape) and first.dtype == action.dtype
    kept, kept_log_prob = first.copy(), extras["log_prob"].copy()
    packed = pickle.dumps(made)
    assert len(packed) < 4 * made.weight_count + 4000
    other: StochasticPolicy = pickle.loads(packed)
    assert isinstance(other, Policy) and other.exploration_rate == made.exploration_rate
    second, more = other.act(obs, np.random.default_rng(5), 0)
    assert np.array_equal(first, second) and np.array_equal(extras["log_prob"], more["log_prob"])
    greedy = made.greedy(obs)
    assert greedy.shape == first.shape and greedy.dtype == first.dtype
    held = greedy.copy()
    made.act(observations(9, seed=8), np.random.default_rng(6), 0)
    made.greedy(observations(4))
    assert np.array_equal(greedy, held) and np.array_equal(first, kept)
    assert np.array_equal(extras["log_prob"], kept_log_prob), "what was returned is not written again"
    other.load_weights(np.zeros(made.weight_count, np.float32))
    changed, _ = other.act(obs, np.random.default_rng(5), 0)
    assert not np.array_equal(changed, first), "weights reach a policy that was unpickled"


def test_exploration_before_the_first_act_is_that_of_no_knowledge() -> None:
    spec = EnvSpec("test", (4,), "float32", SEVERAL)
    rate = StochasticPolicy(spec, ActorLayout(4, (8,), SEVERAL)).exploration_rate
    assert rate == pytest.approx(1 - (1 / 2 + 1 / 4 + 1 / 3) / 3)


def trained(action: ActionSpec, **options: Any) -> TrainedPolicy:
    made, weights = make(action, **options)
    spec = EnvSpec("test", (INPUTS,), "float32", action)
    return TrainedPolicy(spec, made, weights, np.random.default_rng(0))


def test_predict_takes_the_greedy_action_of_every_kind() -> None:
    obs = np.random.default_rng(4).normal(size=(6, INPUTS))
    narrow = obs.astype(np.float32)
    shifted = trained(DiscreteAction(3, start=-4))
    assert np.array_equal(shifted.predict(obs)[0], shifted.policy.greedy(narrow) - 4)
    several = trained(SEVERAL)
    batch, _ = several.predict(obs)
    assert np.array_equal(batch, several.policy.greedy(narrow)) and batch.shape == (6, 3)
    single, _ = several.predict(obs[2])
    assert single.tolist() == batch[2].tolist()
    squashed = trained(BOX, squashed=True)
    assert np.array_equal(squashed.predict(obs)[0], squashed.policy.greedy(narrow))


def test_predict_clips_boxes_into_the_very_box() -> None:
    model = trained(BOX, scale=3.0)
    obs = np.random.default_rng(4).normal(size=(200, INPUTS))
    mean = model.policy.greedy(obs.astype(np.float32))
    low, high = np.array(BOX.low, np.float32), np.array(BOX.high, np.float32)
    assert (mean < low).any() and (mean > high).any()
    assert np.array_equal(model.predict(obs)[0], np.clip(mean, low, high))
    drawn, _ = model.predict(obs, deterministic=False)
    assert ((drawn >= low) & (drawn <= high)).all() and not np.array_equal(drawn, model.predict(obs)[0])
    fine = BoxAction((-0.1,), (0.1,), (1,))  # neither bound is a float32 number
    action, _ = trained(fine, scale=9.0).predict(obs)
    assert np.abs(action.astype(np.float64)).max() <= 0.1 and np.abs(action).max() > 0.0999999
    free, _ = trained(FREE, scale=3.0).predict(obs)
    assert free.shape == (200, 2, 2) and np.abs(free).max() > 5


def test_predict_draws_where_asked() -> None:
    model = trained(SEVERAL)
    obs = np.zeros((30_000, INPUTS), np.float32)
    drawn, _ = model.predict(obs, deterministic=False)
    logits = slow_outputs(model.policy.layout, model.weights, obs[:1])[0]  # type: ignore[attr-defined]
    for c, part in enumerate(np.split(logits, [2, 6])):
        p = np.exp(part) / np.exp(part).sum()
        counts = np.bincount(drawn[:, c], minlength=len(p))
        assert stats.chisquare(counts, p * len(drawn)).pvalue > 0.01
    one, _ = model.predict(obs[0], deterministic=False)
    assert one.shape == (3,)


def test_acting_never_imports_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from asyncrl.interfaces import DiscreteAction, EnvSpec\n"
        "from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy\n"
        "action = DiscreteAction(2)\n"
        "policy = StochasticPolicy(EnvSpec('x', (4,), 'float32', action), ActorLayout(4, (8,), action))\n"
        "policy.act(np.zeros((1, 4), np.float32), np.random.default_rng(0), 0)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
