"""Losses of DDPG, TD3 and SAC by hand."""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms import ddpg, sac, td3
from asyncrl.algorithms.continuous import deterministic_actor_loss
from asyncrl.algorithms.maximum_entropy import temperature_gradient
from asyncrl.algorithms.maximum_entropy_update import squashed_draw

LIMITS = (-20.0, 2.0)


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def batch_of(reward: Tensor, discount: Tensor, weight: Tensor) -> Any:
    return SimpleNamespace(size=len(reward), reward=reward, discount=discount, weight=weight)


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


# --- the draw ---


def test_draw_is_that_of_torch_distributions() -> None:
    out, noise = outputs(0)
    mean, log_std = out.chunk(2, dim=1)
    std = log_std.clamp(*LIMITS).exp()
    u = mean + std * noise
    normal = torch.distributions.Normal(mean, std).log_prob(u)
    change = 2 * (math.log(2) - u - torch.log1p(torch.exp(-2 * u.abs())) - (-2 * u).clamp(min=0))
    drawn = squashed_draw(out, noise)
    torch.testing.assert_close(drawn.action, u.tanh())
    torch.testing.assert_close(drawn.log_prob, (normal - change).sum(dim=1, keepdim=True))


def test_density_integrates_to_one() -> None:
    u = torch.linspace(-9, 9, 20001, dtype=torch.float64).unsqueeze(1)
    mean, log_std = 0.4, -0.3
    out = torch.tensor([[mean, log_std]], dtype=torch.float64).expand(u.shape[0], 2)
    drawn = squashed_draw(out, (u - mean) / math.exp(log_std))
    mass = torch.trapezoid(drawn.log_prob.exp()[:, 0], drawn.action[:, 0])
    assert float(mass) == pytest.approx(1.0, abs=1e-5)


def test_density_is_exact_where_tanh_has_rounded_to_one() -> None:
    drawn = squashed_draw(torch.tensor([[30.0, 0.0], [-30.0, 0.0]]), torch.zeros(2, 1))
    assert drawn.action.tolist() == [[1.0], [-1.0]]
    # log N(0) - log(4 e^-60)
    expected = -0.5 * math.log(2 * math.pi) - math.log(4) + 60
    assert drawn.log_prob[:, 0].tolist() == pytest.approx([expected] * 2)


# --- losses by hand ---


def test_smoothing_by_hand() -> None:
    action, noise = torch.tensor([[0.0, 0.9], [-0.8, 0.1]]), torch.tensor([[1.0, 0.9], [-1.25, -5.0]])
    # noise 0.2 * [1, 0.9, -1.25, -5] within 0.3, the sum within 1
    expected = torch.tensor([[0.2, 1.0], [-1.0, -0.2]])
    torch.testing.assert_close(td3.smoothed_action(action, noise, 0.2, 0.3), expected)


def test_critic_losses_by_hand() -> None:
    batch = batch_of(column(1.0, 2.0, 3.0), column(0.5, 0.5, 0.0), column(0.5, 0.25, 0.0))
    next_q = torch.stack((column(4.0, 1.0, 9.0), column(2.0, 8.0, 9.0)))
    q = torch.zeros(2, 3, 1)
    # targets 1 + 2 / 2, 2 + 1 / 2, terminated
    twin = td3.critic_loss(q, next_q, batch)
    assert twin.td[:, :, 0].tolist() == [[-2.0, -2.5, -3.0]] * 2
    assert float(twin.loss) == pytest.approx(0.5 * 2 * (0.5 * 4 + 0.25 * 6.25))
    one = ddpg.critic_loss(q[:1], next_q[:1], batch)
    assert one.td[0, :, 0].tolist() == [-3.0, -2.5, -3.0]
    soft = sac.critic_loss(q, next_q, column(-2.0, 4.0, 7.0), torch.tensor(0.5), batch)
    # 1 + (2 + 1) / 2, 2 + (1 - 2) / 2, terminated
    assert soft.td[1, :, 0].tolist() == [-2.5, -1.5, -3.0]


def test_actor_losses_by_hand() -> None:
    q = torch.stack((column(4.0, 1.0), column(2.0, 8.0)))
    assert float(deterministic_actor_loss(q[:1]).loss) == -2.5
    # (0.5 * 6 - 2 + 0.5 * -2 - 1) / 2
    assert float(sac.actor_loss(q, column(6.0, -2.0), torch.tensor(0.5)).loss) == -0.5


def test_temperature_gradient_is_that_of_autograd() -> None:
    log_alpha, log_prob = torch.tensor(0.3, requires_grad=True), torch.randn(9, 1)
    (-log_alpha * (log_prob - 2.0)).mean().backward()
    assert log_alpha.grad is not None
    torch.testing.assert_close(temperature_gradient(log_prob, -2.0), log_alpha.grad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: squashed_draw(torch.zeros(2, 3), torch.zeros(2, 1)),
        lambda: td3.critic_loss(torch.zeros(2, 2, 1), torch.zeros(1, 2, 1), batch_of(*torch.zeros(3, 2, 1))),
        lambda: ddpg.critic_loss(torch.zeros(2, 2, 1), torch.zeros(2, 2, 1), batch_of(*torch.zeros(3, 2, 1))),
        lambda: sac.actor_loss(torch.zeros(2, 3, 1), torch.zeros(2, 1), torch.zeros(())),
        lambda: temperature_gradient(torch.zeros(3), 1.0),
        partial(td3.smoothed_action, torch.zeros(2, 1), torch.zeros(2, 2), 1.0, 1.0),
    ],
)
def test_axes_are_checked(call: Any) -> None:
    with pytest.raises(AssertionError):
        call()
