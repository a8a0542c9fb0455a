"""Losses of C51 and QR-DQN against hand-worked numbers and the papers' formulas, one atom at a time."""

import math

import numpy as np
import pytest
import torch
from q_rig import column, staged

from asyncrl.algorithms.c51 import c51_loss, expected_value, project
from asyncrl.algorithms.q_learning import of_action
from asyncrl.algorithms.qrdqn import midpoints, quantile_loss
from asyncrl.networks.gradients import output_gradients


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
    """Algorithm 1, one atom at a time; an atom with l = u gives its mass to that atom."""
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


def test_c51_loss_by_hand() -> None:
    p, other = [0.5, 0.25, 0.25], [0.1, 0.1, 0.8]
    logits = numbers(other, p, p, other).log().view(2, 2, 3) + 7
    following = numbers([1e-9, 0.5, 0.5], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], p).log().view(2, 2, 3)
    support = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    # discount 1, reward -1: 1 -> 0 and 2 -> 1; discount 1, reward 0: nothing moves
    batch = staged([1, 0], [-1.0, 0.0], [1.0, 1.0], [2.0, 3.0])
    result = c51_loss(logits, following, torch.tensor([[0], [1]]), batch, support)
    # m = (1/2, 1/2, 0): 0.5 log(0.5 / 0.5) + 0.5 log(0.5 / 0.25); m = p: nothing
    expected = column(0.5 * math.log(2), 0.0)
    torch.testing.assert_close(result.priorities, expected, rtol=0, atol=1e-7)
    assert result.loss.item() == pytest.approx(math.log(2))


def test_divergence_has_the_gradient_of_the_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, following = torch.randn(2, 30, 4, 7, dtype=torch.float64, generator=generator)
    action, best = torch.randint(0, 4, (2, 30, 1), generator=generator)
    batch = staged(action[:, 0], [0.3] * 30, [0.9] * 30, torch.rand(30, generator=generator))
    support = torch.linspace(-2, 3, 7, dtype=torch.float64)
    result, (gradient,) = output_gradients(c51_loss, (logits,), following, best, batch, support)
    m = project(of_action(following, best).softmax(1), batch.reward, batch.discount, support)
    leaf = logits.clone().requires_grad_()
    (-batch.weight * m * of_action(leaf, batch.action).log_softmax(1)).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    assert (result.priorities >= 0).all()


def test_expected_value_by_hand() -> None:
    logits = numbers([0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.25, 0.75]).log() + 7
    torch.testing.assert_close(expected_value(logits, SUPPORT), torch.tensor([0.0, 2.75]).double())


# --- quantiles ---


def test_midpoints_by_hand() -> None:
    assert midpoints(torch.zeros(1, 4)).tolist() == [0.125, 0.375, 0.625, 0.875]


def one_action(theta, target, kappa, weight=None):  # type: ignore[no-untyped-def]
    """Loss of quantiles `theta` `[B, N]` of the only action for targets `[B, N]`."""
    size = len(theta)
    batch = staged([0] * size, [0.0] * size, [1.0] * size, [1.0] * size if weight is None else weight)
    best = torch.zeros(size, 1, dtype=torch.int64)
    return output_gradients(
        quantile_loss, (theta.unsqueeze(1),), target.unsqueeze(1), best, batch, kappa, bound_targets=False
    )


def test_quantile_loss_by_hand() -> None:
    theta, target = numbers([0.0, 2.0]), numbers([0.5, 3.0])  # tau = 0.25, 0.75
    # u: 0.5, 3 at theta 0; -1.5, 1 at theta 2
    plain = 0.25 * (0.5 + 3.0) / 2 + (0.25 * 1.5 + 0.75 * 1.0) / 2
    huber = 0.25 * (0.125 + 2.5) / 2 + (0.25 * 1.0 + 0.75 * 0.5) / 2
    assert one_action(theta, target, None)[0].loss.item() == plain
    assert one_action(theta, target, 0.0)[0].loss.item() == plain
    result, (gradient,) = one_action(theta, target, 1.0, weight=[2.0])
    assert result.loss.item() == 2 * huber and result.priorities.item() == 1.0 - 1.75
    # downhill for theta 0 is up (0.25 * (0.5 + 1) / 2), and for theta 2 too (0.75 * 1 - 0.25 * 1) / 2
    torch.testing.assert_close(gradient[0], numbers([-0.375, -0.5]))


def test_target_quantiles_are_those_of_the_next_action_clipped() -> None:
    theta, following = torch.zeros(1, 2, 2).double(), numbers([1.0, 2.0], [-9.0, 8.0]).unsqueeze(0)
    batch = staged([0], [0.5], [0.5], [1.0], low=-1.0, high=4.0)
    for bound, expected in ((False, 0.5 + 0.5 * -0.5), (True, 0.5 + 0.5 * 1.5)):
        result = quantile_loss(theta, following, torch.tensor([[1]]), batch, 1.0, bound)
        assert result.priorities.item() == -expected


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
    theta, target = rng.normal(0, 2, (2, 20, 6))
    weight = rng.random(20)
    pairs = zip(theta, target, weight, strict=True)
    expected = sum(w * slow_quantile_loss(a, b, kappa) for a, b, w in pairs)
    ours = one_action(torch.tensor(theta), torch.tensor(target), kappa, weight)[0].loss
    assert ours.item() == pytest.approx(expected)


def test_quantile_regression_finds_the_quantiles() -> None:
    """Samples of an exponential distribution, whose quantiles are -log(1 - tau)."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(1, 5, dtype=torch.float64)
    for step in range(2000):
        sample = torch.empty(100, 5, dtype=torch.float64).exponential_(generator=generator)
        _, (gradient,) = one_action(theta.expand(100, -1), sample, None, [0.01] * 100)
        theta -= 0.5 / (1 + step / 50) * gradient.sum(0)
    expected = -torch.log1p(-midpoints(theta))
    torch.testing.assert_close(theta[0], expected, rtol=0, atol=0.06)


def test_axes_are_checked() -> None:
    prob, one, flat = torch.full((3, 5), 0.2), torch.zeros(3, 1), torch.zeros(3)
    for call in (
        lambda: project(prob, flat, one, torch.zeros(5)),
        lambda: project(prob, one, one, torch.zeros(4)),
        lambda: expected_value(prob, torch.zeros(4)),
        lambda: of_action(torch.zeros(3, 2, 5), flat.long()),
        lambda: quantile_loss(prob, prob, one.long(), staged([0] * 3, flat, flat, flat), 1.0, False),
    ):
        with pytest.raises(AssertionError):
            call()
