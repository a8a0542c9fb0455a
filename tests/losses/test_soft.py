import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.losses.soft import (
    clipped_target,
    critic_loss,
    smallest_gradient,
    smoothed_action,
    squashed_gaussian,
    squashed_gaussian_gradient,
    squashed_gradient,
    temperature_gradient,
)
from asyncrl.losses.soft_kernels import critic_gradient, draw_gradient, draw_squashed

LIMITS = (-20.0, 2.0)


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def draw_by_autograd(out: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's formula, written slowly."""
    mean, log_std = out.chunk(2, dim=1)
    std = log_std.clamp(*LIMITS).exp()
    u = mean + std * noise
    normal = torch.distributions.Normal(mean, std).log_prob(u)
    change = 2 * (math.log(2) - u - torch.log1p(torch.exp(-2 * u.abs())) - (-2 * u).clamp(min=0))
    return u.tanh(), (normal - change).sum(dim=1, keepdim=True)


def outputs(
    seed: int, rows: int = 40, values: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Means up to far saturation and log standard deviations within, at and beyond their limits."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(rows, 2 * values, generator=generator, dtype=dtype)
    out[: rows // 4, :values] *= 20
    out[rows // 2 :, values:] -= 2
    out[0, values:], out[1, values:], out[2, values:], out[3, values] = 2.5, -21.0, 2.0, -20.0
    return out, torch.randn(rows, values, generator=generator, dtype=dtype)


@pytest.mark.parametrize("values", [1, 3])
def test_draw_and_its_gradient_are_those_of_autograd(values: int) -> None:
    out, noise = outputs(0, values=values)
    leaf = out.clone().requires_grad_()
    action, log_prob = draw_by_autograd(leaf, noise)
    drawn = squashed_gaussian(out, noise, *LIMITS)
    torch.testing.assert_close(drawn.action, action.detach())
    torch.testing.assert_close(drawn.log_prob, log_prob.detach())
    grad_action, grad_log_prob = torch.randn_like(action), torch.randn_like(log_prob)
    torch.autograd.backward([action, log_prob], [grad_action, grad_log_prob])
    ours = squashed_gaussian_gradient(out, drawn.action, drawn.deviation, grad_action, grad_log_prob, *LIMITS)
    torch.testing.assert_close(ours, leaf.grad, rtol=1e-6, atol=1e-6)  # the twin divides by e^-20
    assert (ours[0, values:] == 0).all() and (ours[1, values:] == 0).all(), "beyond the limits"
    assert (ours[2, values:] != 0).all(), "at a limit"


def test_density_integrates_to_one() -> None:
    u = torch.linspace(-9, 9, 20001, dtype=torch.float64).unsqueeze(1)
    mean, log_std = 0.4, -0.3
    out = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(u.shape[0], 2)
    drawn = squashed_gaussian(out, (u - mean) / math.exp(log_std), *LIMITS)
    mass = torch.trapezoid(drawn.log_prob.exp()[:, 0], drawn.action[:, 0])
    assert float(mass) == pytest.approx(1.0, abs=1e-5)


def test_density_is_exact_where_tanh_has_rounded_to_one() -> None:
    drawn = squashed_gaussian(torch.tensor([[30.0, 0.0], [-30.0, 0.0]]), torch.zeros(2, 1), *LIMITS)
    assert drawn.action.tolist() == [[1.0], [-1.0]]
    # log N(0) - log(4 e^-60)
    expected = -0.5 * math.log(2 * math.pi) - math.log(4) + 60
    assert drawn.log_prob[:, 0].tolist() == pytest.approx([expected] * 2)


def test_squashed_gradient_is_that_of_autograd() -> None:
    u = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(5, 2, dtype=torch.float64)
    u.tanh().backward(grad)
    assert u.grad is not None
    torch.testing.assert_close(squashed_gradient(u.detach().tanh(), grad), u.grad)


def test_smoothing_by_hand() -> None:
    action, noise = torch.tensor([[0.0, 0.9], [-0.8, 0.1]]), torch.tensor([[1.0, 0.9], [-1.25, -5.0]])
    # noise 0.2 * [1, 0.9, -1.25, -5] within 0.3, the sum within 1
    expected = torch.tensor([[0.2, 1.0], [-1.0, -0.2]])
    torch.testing.assert_close(smoothed_action(action, noise, 0.2, 0.3), expected)


def test_target_by_hand() -> None:
    reward, discount = column(1.0, 2.0, 3.0), column(0.5, 0.5, 0.0)
    next_q = torch.stack((column(4.0, 1.0, 9.0), column(2.0, 8.0, 9.0)))
    assert clipped_target(reward, discount, next_q)[:, 0].tolist() == [2.0, 2.5, 3.0]
    assert clipped_target(reward, discount, next_q[:1])[:, 0].tolist() == [3.0, 2.5, 3.0]
    soft = clipped_target(reward, discount, next_q, torch.tensor(0.5), column(-2.0, 4.0, 7.0))
    # 1 + (2 + 1) / 2, 2 + (1 - 2) / 2, terminated
    assert soft[:, 0].tolist() == [2.5, 1.5, 3.0]
    assert next_q[0, 0, 0] == 4.0, "arguments stay"


def test_critic_loss_by_hand() -> None:
    td = torch.stack((column(1.0, -2.0), column(3.0, 0.0)))
    # (1 + 9) * 0.5 / 2 + (4 + 0) * 0.25 / 2
    assert float(critic_loss(td, column(0.5, 0.25))) == pytest.approx(3.0)


def test_smallest_gradient_is_that_of_autograd() -> None:
    q = torch.randn(3, 7, 1, requires_grad=True)
    (q.min(dim=0).values * -0.1).sum().backward()
    assert q.grad is not None
    torch.testing.assert_close(smallest_gradient(q.detach(), -0.1), q.grad)
    assert smallest_gradient(torch.zeros(2, 1, 1), 1.0)[:, 0, 0].tolist() == [1.0, 0.0], "the first of equals"


def test_temperature_gradient_is_that_of_autograd() -> None:
    log_alpha, log_prob = torch.tensor(0.3, requires_grad=True), torch.randn(9, 1)
    (-log_alpha * (log_prob - 2.0)).mean().backward()
    assert log_alpha.grad is not None
    torch.testing.assert_close(temperature_gradient(log_prob, -2.0), log_alpha.grad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: squashed_gaussian(torch.zeros(2, 3), torch.zeros(2, 1), *LIMITS),
        lambda: clipped_target(torch.zeros(2), torch.zeros(2), torch.zeros(1, 2, 1)),
        lambda: critic_loss(torch.zeros(2, 1), torch.zeros(2, 1)),
        lambda: smallest_gradient(torch.zeros(2, 3), 1.0),
        lambda: temperature_gradient(torch.zeros(3), 1.0),
        lambda: smoothed_action(torch.zeros(2, 1), torch.zeros(2, 2), 1.0, 1.0),
    ],
)
def test_axes_are_checked(call: Any) -> None:
    with pytest.raises(AssertionError):
        call()


# --- kernels ---

each_way = pytest.mark.parametrize("compiled", [True, False])


def kernel(function: Any, compiled: bool) -> Any:
    return function if compiled else function.py_func


@each_way
@pytest.mark.parametrize("values", [1, 3, 70])
def test_draw_kernels_say_what_tensors_do(values: int, compiled: bool) -> None:
    out, noise = outputs(1, rows=8, values=values, dtype=torch.float32)
    wide = torch.zeros(8, values + 2)
    action, deviation, log_prob = wide[:, 2:], torch.zeros(8, values), torch.zeros(8, 1)
    filled = [x.numpy() for x in (action, deviation, log_prob)]
    limits = np.float32(LIMITS[0]), np.float32(LIMITS[1])
    kernel(draw_squashed, compiled)(out.numpy(), noise.numpy(), *limits, *filled)
    drawn = squashed_gaussian(out, noise, *LIMITS)
    torch.testing.assert_close(action, drawn.action)
    torch.testing.assert_close(deviation, drawn.deviation)
    torch.testing.assert_close(log_prob, drawn.log_prob, rtol=1e-5, atol=1e-4)
    grad_action, grad_out = torch.randn(5, values), torch.zeros(5, 2 * values)
    more = grad_action.numpy(), np.float32(0.3), *limits, grad_out.numpy()
    kernel(draw_gradient, compiled)(out.numpy(), *filled[:2], *more)
    expected = squashed_gaussian_gradient(
        out[:5], drawn.action[:5], drawn.deviation[:5], grad_action, torch.tensor(0.3), *LIMITS
    )
    torch.testing.assert_close(grad_out, expected, rtol=1e-5, atol=1e-5)


@each_way
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("rows", [6, 12])
@pytest.mark.parametrize("critics", [1, 2, 3])
def test_critic_kernel_says_what_tensors_do(critics: int, rows: int, alpha: float, compiled: bool) -> None:
    q, next_q = torch.randn(critics, rows, 1), torch.randn(critics, 6, 1)
    next_q[-1, 2], next_q[0, 4] = torch.nan, torch.nan
    log_prob, reward, discount, weight = torch.randn(4, 6, 1)
    td, grad_q = torch.zeros(critics, 6, 1), torch.full((critics, rows, 1), torch.nan)
    columns = [x.numpy() for x in (log_prob, reward, discount, weight)]
    numbers = np.float32(alpha), np.float32(-0.25)
    kernel(critic_gradient, compiled)(
        q.numpy(), next_q.numpy(), *columns, *numbers, td.numpy(), grad_q.numpy()
    )
    y = clipped_target(reward, discount, next_q, torch.tensor(alpha), log_prob)
    assert td.isnan().any(dim=0)[:, 0].tolist() == [False, False, True, False, True, False]
    torch.testing.assert_close(td, q[:, :6] - y, equal_nan=True)
    torch.testing.assert_close(grad_q[:, :6], (q[:, :6] - y) * weight, equal_nan=True)
    if rows > 6:
        torch.testing.assert_close(grad_q[:, 6:], smallest_gradient(q[:, 6:], -0.25))
