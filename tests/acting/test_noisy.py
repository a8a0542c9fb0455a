import pickle

import numpy as np
import pytest
from oracles import layers_of

from asyncrl.acting.kernels import layer_forward, noisy_mlp_forward
from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.network import NoisyActingNetwork
from asyncrl.acting.policies import QLayout, QPolicy
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.interfaces import DiscreteAction, EnvSpec

SPEC = EnvSpec("test", (4,), "float32", DiscreteAction(3))
LAYOUTS = [
    QLayout(4, (8,), 3, noisy=True),
    QLayout(4, (7, 6), 3, noisy=True),
    QLayout(4, (5, 9, 4), 3, dueling=True, atoms=5, noisy=True),
]


def network(layout: QLayout, sigma: float = 1.0, seed: int = 0) -> NoisyActingNetwork:
    made = NoisyActingNetwork(SPEC, layout)
    weights = np.random.default_rng(seed).normal(size=layout.weight_count).astype(np.float32)
    weights[parameter_count(layout.sizes) :] *= sigma
    made.load(weights)
    return made


def observations(rows: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32)


def slow_noisy(layout: QLayout, flat: np.ndarray, obs: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Fortunato et al. 2018, eq. 9 to 11, one row and one layer at a time, float64."""
    result = []
    for x, drawn in zip(obs.astype(np.float64), normal.astype(np.float64), strict=True):
        f = np.sign(drawn) * np.sqrt(np.abs(drawn))
        at, last = 0, len(layout.sizes) - 2
        split = parameter_count(layout.sizes)
        sigmas = layers_of(layout.sizes[1:], flat[split:])
        for layer, (w, b) in enumerate(layers_of(layout.sizes, flat[:split])):
            if layer:
                sigma, sigma_bias = sigmas[layer - 1]
                e_in, e_out = f[at : at + len(w)], f[at + len(w) : at + len(w) + len(b)]
                at += len(w) + len(b)
                w, b = w + sigma * np.outer(e_in, e_out), b + sigma_bias * e_out
            x = x @ w + b
            x = x if layer == last else np.maximum(x, 0)
        assert at == len(f)
        result.append(x)
    return np.array(result)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_perturbed_outputs_are_those_of_the_slow_formula(layout: QLayout, rows: int) -> None:
    made, obs = network(layout), observations(rows)
    count = sum(a + b for a, b in zip(layout.sizes[1:], layout.sizes[2:], strict=False))
    normal = np.random.default_rng(9).standard_normal((rows, count), dtype=np.float32)
    expected = slow_noisy(layout, made.weights, obs, normal)
    got = made.perturbed(obs, np.random.default_rng(9))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_kernels_compiled_and_interpreted_agree() -> None:
    layout, rng = LAYOUTS[2], np.random.default_rng(3)
    flat = rng.normal(size=layout.weight_count).astype(np.float32)
    x, sizes = rng.normal(size=(5, 4)).astype(np.float32), np.array(layout.sizes)
    mean_count = parameter_count(layout.sizes)
    normal = rng.normal(size=(5, 9 + 5 + 9 + 8 + 8 + 20)).astype(np.float32)
    outs, layers = [], []
    for kernel in (noisy_mlp_forward, noisy_mlp_forward.py_func):
        out = np.full((5, 20), np.nan, np.float32)
        scratch = np.full((4, max(layout.sizes)), np.nan, np.float32)
        kernel(x, flat, sizes, mean_count, normal.copy(), scratch, out)
        outs.append(out)
    np.testing.assert_allclose(*outs, rtol=1e-4, atol=1e-4)
    w = rng.normal(size=(5, 7)).astype(np.float32)
    for kernel in (layer_forward, layer_forward.py_func):
        layers.append(np.full(7, np.nan, np.float32))
        kernel(x[0], w, layers[-1])
    np.testing.assert_allclose(layers[0], x[0] @ w[:-1] + w[-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*layers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_deviations_there_is_no_noise(layout: QLayout) -> None:
    made, obs = network(layout, sigma=0.0), observations(6)
    np.testing.assert_allclose(made.perturbed(obs, np.random.default_rng(0)), made(obs), rtol=1e-4, atol=1e-5)


def test_every_stream_and_every_step_has_noise_of_its_own() -> None:
    made, rng = network(LAYOUTS[1]), np.random.default_rng(0)
    obs = np.repeat(observations(1), 8, axis=0)
    first, second = made.perturbed(obs, rng), made.perturbed(obs, rng)
    assert len(np.unique(first[:, 0])) == 8 and (first != second).all()
    assert len(np.unique(made(obs)[:, 0])) == 1, "the means have none"
    again = made.perturbed(obs, np.random.default_rng(0))
    assert (again == first).all(), "the generator decides it"


def test_bytes_are_scaled_with_and_without_noise() -> None:
    layout = LAYOUTS[1]
    spec = EnvSpec("bytes", (2, 2), "uint8", DiscreteAction(3))
    made, twin = NoisyActingNetwork(spec, layout), network(layout)
    made.load(twin.weights)
    frames = np.random.default_rng(2).integers(0, 256, (5, 2, 2), dtype=np.uint8)
    rows = (frames.reshape(5, 4) / 255).astype(np.float32)
    np.testing.assert_allclose(made(frames), twin(rows), rtol=1e-4, atol=1e-4)
    ours, theirs = (net.perturbed(x, np.random.default_rng(0)) for net, x in ((made, frames), (twin, rows)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_noise_of_one_layer_has_the_deviations_of_the_weights() -> None:
    layout = QLayout(4, (6,), 2, noisy=True)
    made, obs = network(layout, sigma=0.3), np.repeat(observations(1), 20_000, axis=0)
    out = made.perturbed(obs, np.random.default_rng(2))
    np.testing.assert_allclose(out.mean(axis=0), made(obs[:1])[0], atol=0.02)
    w, b = made.weights[: 5 * 6].reshape(5, 6)[:-1], made.weights[: 5 * 6].reshape(5, 6)[-1]
    hidden = np.maximum(obs[0] @ w + b, 0)
    sigma, sigma_bias = made.weights[-14:-2].reshape(2, 6), made.weights[-2:]
    # E[f(e)^2] = E|e| = sqrt(2 / pi), for the output's factor and for each input's
    share = np.sqrt(2 / np.pi)
    variance = share * (share * np.square(sigma * hidden).sum(axis=1) + np.square(sigma_bias))
    np.testing.assert_allclose(out.var(axis=0), variance, rtol=0.05)


def test_policy_acts_by_noise_and_is_greedy_by_the_means() -> None:
    layout, obs = LAYOUTS[1], observations(12)
    policy = QPolicy(SPEC, layout, EpsilonSchedule(0.0, 0.0, 0))
    weights = network(layout).weights
    policy.load_weights(weights)
    policy = pickle.loads(pickle.dumps(policy))
    policy.assign_streams(0, 12, 12)
    rng = np.random.default_rng(0)
    acted = np.array([policy.act(obs, rng, 0)[0] for _ in range(60)])
    assert policy.exploration_rate == 0.0
    assert (acted != policy.greedy(obs)).any() and (acted == policy.greedy(obs)).any()
    assert (policy.greedy(obs) == policy.q_values(obs).argmax(1)).all()
    trained = TrainedPolicy(SPEC, policy, weights)
    assert (trained.predict(obs)[0] == policy.greedy(obs)).all()
    assert any((trained.predict(obs, deterministic=False)[0] != policy.greedy(obs)).any() for _ in range(20))


def test_epsilon_may_stand_beside_noise() -> None:
    policy = QPolicy(SPEC, LAYOUTS[1], EpsilonSchedule(1.0, 1.0, 0))
    policy.load_weights(np.zeros(LAYOUTS[1].weight_count, np.float32))
    policy.assign_streams(0, 300, 300)
    action, _ = policy.act(observations(300), np.random.default_rng(0), 0)
    assert set(action.tolist()) == {0, 1, 2}
