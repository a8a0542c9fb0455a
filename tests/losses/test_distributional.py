import math

import numpy as np
import pytest
import torch

from asyncrl.losses.distributional import (
    at_action,
    cross_entropy,
    cross_entropy_gradient,
    divergence,
    dueling_at_action,
    dueling_atoms,
    expected_value,
    midpoints,
    of_action,
    project,
    quantile_gradient,
    quantile_loss,
)
from asyncrl.losses.td import dueling


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def numbers(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- the projection, in the notation of Bellemare et al. 2017: V_MIN = -1, V_MAX = 3, N = 5, so dz = 1 ---

SUPPORT = torch.linspace(-1, 3, 5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("prob", "reward", "discount", "expected"),
    [
        # Tz = [-0.75 .. 3.25 -> 3]: z_1 = 0 lands on 0.25, a quarter of the way from z_1 to z_2
        ([0.0, 1.0, 0.0, 0.0, 0.0], 0.25, 1.0, [0.0, 0.75, 0.25, 0.0, 0.0]),
        # exactly on an atom: 0 -> 1, l = u = 2; all of the mass, none of it lost
        ([0.0, 1.0, 0.0, 0.0, 0.0], 1.0, 1.0, [0.0, 0.0, 1.0, 0.0, 0.0]),
        # nothing moves, every atom on itself, the last one too
        ([0.1, 0.2, 0.3, 0.15, 0.25], 0.0, 1.0, [0.1, 0.2, 0.3, 0.15, 0.25]),
        # clamped below: -1 -> -3.5, 0 -> -2.5, 1 -> -1.5, 2 -> -0.5 (half between z_0 and z_1), 3 -> 0.5
        ([0.1, 0.2, 0.3, 0.2, 0.2], -2.5, 1.0, [0.7, 0.2, 0.1, 0.0, 0.0]),
        # clamped above: -1 -> 1.5, 0 -> 2.5, the rest beyond 3
        ([0.2, 0.4, 0.1, 0.1, 0.2], 2.5, 1.0, [0.0, 0.0, 0.1, 0.3, 0.6]),
        # far out, both sides
        ([0.2, 0.2, 0.2, 0.2, 0.2], 1e6, 1.0, [0.0, 0.0, 0.0, 0.0, 1.0]),
        ([0.2, 0.2, 0.2, 0.2, 0.2], -1e6, 1.0, [1.0, 0.0, 0.0, 0.0, 0.0]),
        # a termination: whatever comes next, the return is the reward, 1.75
        ([0.3, 0.1, 0.2, 0.3, 0.1], 1.75, 0.0, [0.0, 0.0, 0.25, 0.75, 0.0]),
        ([0.3, 0.1, 0.2, 0.3, 0.1], 3.0, 0.0, [0.0, 0.0, 0.0, 0.0, 1.0]),
        ([0.3, 0.1, 0.2, 0.3, 0.1], -1.0, 0.0, [1.0, 0.0, 0.0, 0.0, 0.0]),
        # discount 0.5: -1 -> -0.5, 0 -> 0, 1 -> 0.5, 2 -> 1, 3 -> 1.5
        ([0.2, 0.1, 0.4, 0.1, 0.2], 0.0, 0.5, [0.1, 0.1 + 0.1 + 0.2, 0.2 + 0.1 + 0.1, 0.1, 0.0]),
        # two rewards of 1 with gamma 0.5: R = 1.5, gamma^2 = 0.25; 1 -> 1.75, 3 -> 2.25
        ([0.0, 0.0, 0.5, 0.0, 0.5], 1.0 + 0.5 * 1.0, 0.25, [0.0, 0.0, 0.125, 0.375 + 0.375, 0.125]),
    ],
)
def test_projection_by_hand(prob: list[float], reward: float, discount: float, expected: list[float]) -> None:
    result = project(numbers(prob), column(reward), column(discount), SUPPORT)
    torch.testing.assert_close(result, numbers(expected), rtol=0, atol=1e-15)


def slow_projection(prob, reward, discount, v_min, v_max):  # type: ignore[no-untyped-def]
    """Algorithm 1, one atom at a time; an atom with l = u gives its mass to that one."""
    size, count = prob.shape
    dz = (v_max - v_min) / (count - 1)
    m = np.zeros((size, count))
    for item in range(size):
        for j in range(count):
            z = v_min + j * dz
            tz = min(max(reward[item] + discount[item] * z, v_min), v_max)
            b = (tz - v_min) / dz
            lower, upper = math.floor(b), math.ceil(b)
            if lower == upper:
                m[item, lower] += prob[item, j]
            else:
                m[item, lower] += prob[item, j] * (upper - b)
                m[item, upper] += prob[item, j] * (b - lower)
    return m


@pytest.mark.parametrize(
    ("count", "v_min", "v_max"), [(2, -1.0, 1.0), (51, -10.0, 10.0), (21, 0.0, 7.0), (3, -5.0, -4.0)]
)
def test_projection_is_algorithm_1(count: int, v_min: float, v_max: float) -> None:
    rng = np.random.default_rng(3)
    prob = rng.dirichlet(np.full(count, 0.3), 60)
    reward = np.where(rng.random(60) < 0.5, rng.integers(-3, 4, 60), rng.normal(0, 4, 60)).astype(float)
    discount = rng.choice([0.0, 1.0, 0.5, 0.9], 60)
    support = torch.linspace(v_min, v_max, count, dtype=torch.float64)
    ours = project(torch.tensor(prob), column(*reward), column(*discount), support)
    torch.testing.assert_close(ours, torch.tensor(slow_projection(prob, reward, discount, v_min, v_max)))
    single = project(*(x.float() for x in (torch.tensor(prob), column(*reward), column(*discount), support)))
    torch.testing.assert_close(single.double(), ours, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mass_is_kept_and_the_mean_is_right_where_nothing_clamps(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(-10, 10, 51, dtype=dtype)
    prob = torch.rand(200, 51, dtype=dtype, generator=generator)
    prob /= prob.sum(1, keepdim=True)
    reward = torch.rand(200, 1, dtype=dtype, generator=generator) * 10 - 5
    discount = torch.rand(200, 1, dtype=dtype, generator=generator) * 0.5  # -5 - 5 to 5 + 5
    result = project(prob, reward, discount, support)
    assert (result >= 0).all()
    torch.testing.assert_close(result.sum(1), torch.ones(200, dtype=dtype))
    mean = reward + discount * (prob @ support).unsqueeze(1)
    torch.testing.assert_close((result @ support).unsqueeze(1), mean, rtol=1e-5, atol=1e-5)
    wild = project(prob, reward * 100, discount * 4, support)
    torch.testing.assert_close(wild.sum(1), torch.ones(200, dtype=dtype))


def test_projection_of_what_is_not_a_number_shows_and_does_not_crash() -> None:
    prob = torch.full((3, 5), 0.2, dtype=torch.float64)
    reward, discount = column(math.nan, 0.0, 0.0), column(1.0, math.nan, 1.0)
    result = project(prob, reward, discount, SUPPORT)
    assert result[:2].isnan().any(1).all() and torch.equal(result[2], prob[2])


# --- cross entropy ---


def test_cross_entropy_and_divergence_by_hand() -> None:
    log_prob = numbers([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]).log()
    target = numbers([0.5, 0.5, 0.0], [0.5, 0.25, 0.25])
    # 0.5 log 2 + 0.5 log 4, of which log 2 is the entropy of m; 0.5 log 2 + 0.5 log 4, all of it entropy
    torch.testing.assert_close(cross_entropy(log_prob, target), column(1.5 * math.log(2), 1.5 * math.log(2)))
    torch.testing.assert_close(divergence(log_prob, target), column(0.5 * math.log(2), 0.0))


def test_divergence_is_never_below_zero() -> None:
    log_prob = torch.log_softmax(torch.randn(2000, 51), 1)
    assert (divergence(log_prob, log_prob.exp()) >= 0).all()


def test_cross_entropy_gradient_is_that_of_autograd() -> None:
    logits = torch.randn(30, 4, 7, dtype=torch.float64, requires_grad=True)
    action, weight = torch.randint(0, 4, (30, 1)), torch.rand(30, 1, dtype=torch.float64)
    target = torch.softmax(torch.randn(30, 7, dtype=torch.float64), 1)
    log_prob = torch.log_softmax(of_action(logits, action), 1)
    (weight * cross_entropy(log_prob, target)).sum().backward()
    ours = at_action(cross_entropy_gradient(log_prob.detach(), target, weight), action, 4)
    torch.testing.assert_close(ours, logits.grad)


def test_expected_value_by_hand() -> None:
    logits = numbers([0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 0.75]).log() + 7
    torch.testing.assert_close(expected_value(logits, SUPPORT), torch.tensor([0.0, 2.75]).double())


# --- quantiles ---


def test_midpoints_by_hand() -> None:
    assert midpoints(4, torch.zeros(1)).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_quantile_loss_by_hand() -> None:
    theta, target = numbers([0.0, 2.0]), numbers([0.5, 3.0])  # tau = 0.25, 0.75
    # u: 0.5, 3 at theta 0; -1.5, 1 at theta 2
    plain = 0.25 * (0.5 + 3.0) / 2 + (0.25 * 1.5 + 0.75 * 1.0) / 2
    huber = 0.25 * (0.125 + 2.5) / 2 + (0.25 * 1.0 + 0.75 * 0.5) / 2
    assert quantile_loss(theta, target, None).item() == quantile_loss(theta, target, 0.0).item() == plain
    assert quantile_loss(theta, target, 1.0).item() == huber
    # downhill for theta 0 is up (0.25 * (0.5 + 1) / 2), and for theta 2 too (0.75 * 1 - 0.25 * 1) / 2
    gradient = quantile_gradient(theta, target, column(2.0), 1.0)
    torch.testing.assert_close(gradient, numbers([-0.375, -0.5]))


def slow_quantile_loss(theta, target, kappa):  # type: ignore[no-untyped-def]
    """Dabney et al. 2018, algorithm 1, one pair at a time."""
    total = 0.0
    for i, value in enumerate(theta):
        tau = (2 * (i + 1) - 1) / (2 * len(theta))
        for other in target:
            u = other - value
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau - (1 if u < 0 else 0)) * (huber if kappa else abs(u)) / len(target)
    return total


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_quantile_loss_is_the_papers_formula(kappa: float) -> None:
    rng = np.random.default_rng(5)
    theta, target = rng.normal(0, 2, (20, 6)), rng.normal(0, 2, (20, 9))
    expected = [slow_quantile_loss(a, b, kappa) for a, b in zip(theta, target, strict=True)]
    ours = quantile_loss(torch.tensor(theta), torch.tensor(target), kappa)
    torch.testing.assert_close(ours, column(*expected))


@pytest.mark.parametrize("kappa", [None, 0.5, 1.0])
def test_quantile_gradient_is_that_of_autograd(kappa: float | None) -> None:
    quantiles = torch.randn(30, 4, 7, dtype=torch.float64, requires_grad=True)
    action, weight = torch.randint(0, 4, (30, 1)), torch.rand(30, 1, dtype=torch.float64)
    target = torch.randn(30, 5, dtype=torch.float64) * 2
    theta = of_action(quantiles, action)
    (weight * quantile_loss(theta, target, kappa)).sum().backward()
    kept = target.clone()
    ours = at_action(quantile_gradient(theta.detach(), target, weight, kappa), action, 4)
    torch.testing.assert_close(ours, quantiles.grad)
    assert torch.equal(target, kept)


def test_quantile_regression_finds_the_quantiles_of_a_distribution() -> None:
    generator = torch.Generator().manual_seed(1)
    theta, weight = torch.zeros(1, 5), torch.ones(1, 1)
    for step in range(3000):
        sample = torch.empty(1, 64).exponential_(generator=generator)
        theta -= 0.5 / (1 + step / 100) * quantile_gradient(theta, sample, weight, None)
    expected = -torch.log1p(-midpoints(5, theta))
    torch.testing.assert_close(theta[0], expected, rtol=0, atol=0.06)


# --- dueling over atoms ---


def test_dueling_of_one_atom_is_dueling() -> None:
    value, advantage = torch.randn(5, 1), torch.randn(5, 3)
    expected = dueling(value, advantage)
    torch.testing.assert_close(dueling_atoms(value, advantage.unsqueeze(2))[:, :, 0], expected)


def test_dueling_works_atom_by_atom() -> None:
    value, advantage = torch.randn(5, 4), torch.randn(5, 3, 4)
    result = dueling_atoms(value, advantage)
    for n in range(4):
        torch.testing.assert_close(result[:, :, n], dueling(value[:, n : n + 1], advantage[:, :, n]))


def test_dueling_gradient_is_that_of_autograd() -> None:
    out = torch.randn(5, 1 + 3, 4, dtype=torch.float64, requires_grad=True)
    grad, action = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 3, (5, 1))
    dueling_atoms(out[:, 0], out[:, 1:]).backward(at_action(grad, action, 3))
    torch.testing.assert_close(dueling_at_action(grad, action, 3), out.grad)


def test_axes_are_checked() -> None:
    prob, one, flat = torch.full((3, 5), 0.2), torch.zeros(3, 1), torch.zeros(3)
    for call in (
        lambda: project(prob, flat, one, torch.zeros(5)),
        lambda: project(prob, one, one, torch.zeros(4)),
        lambda: cross_entropy(prob, prob[:, :4]),
        lambda: cross_entropy_gradient(prob, prob, flat),
        lambda: quantile_loss(prob, flat, None),
        lambda: quantile_gradient(prob, prob, flat, 1.0),
        lambda: dueling_atoms(one, torch.zeros(3, 2, 5)),
        lambda: of_action(torch.zeros(3, 2, 5), flat.long()),
    ):
        with pytest.raises(AssertionError):
            call()
