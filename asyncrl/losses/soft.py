"""Losses of actor-critic learning from replay with continuous actions: pure functions, gradients written out.

    Haarnoja et al. 2018a  Soft actor-critic: off-policy maximum entropy deep reinforcement learning (appendix C)
    Haarnoja et al. 2018b  Soft actor-critic algorithms and applications (soft targets, temperature)
    Fujimoto et al. 2018   Addressing function approximation error in actor-critic methods (TD3)
    Lillicrap et al. 2016  Continuous control with deep reinforcement learning (DDPG)

B is the batch, d the values of an action, C the critics. What there is one of per item is a column `[B, 1]`, and what
C critics say of it `[C, B, 1]`. Actions are those of tanh, -1 to 1. No function changes its arguments, reads a value
back to the host or branches on one, so that all of them may be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_LOG_DENSITY_OFFSET = 0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)


class SquashedDraw(NamedTuple):
    """Actions that `squashed_gaussian` made of noise.

    Attributes:
        action: tanh(u) `[B, d]`.
        log_prob: log-density of `action` `[B, 1]`, over all of its values.
        deviation: std * noise `[B, d]`, what u is away from its mean; `squashed_gaussian_gradient` needs it.
    """

    action: Tensor
    log_prob: Tensor
    deviation: Tensor


def squashed_gaussian(out: Tensor, noise: Tensor, log_std_min: float, log_std_max: float) -> SquashedDraw:
    """Reparameterised draw of tanh(u), u = mean + std * noise (Haarnoja 2018a, appendix C).

    The density of tanh(u) is the Gaussian's over 1 - tanh(u)^2, whose logarithm is 2 (log 2 - u - softplus(-2 u)) =
    2 (log 2 - log(e^u + e^-u)), which is exact where 1 - tanh(u)^2 rounds to 0.

    Args:
        out: `[B, 2 d]`, d means and d logarithms of standard deviations.
        noise: `[B, d]`, standard normal.
        log_std_min: to which a smaller logarithm is raised.
        log_std_max: to which a greater logarithm is lowered.
    """
    assert out.dim() == 2 and out.shape == (noise.shape[0], 2 * noise.shape[1])
    d = noise.shape[1]
    log_std = out[:, d:].clamp(log_std_min, log_std_max)
    deviation = log_std.exp().mul_(noise)
    u = deviation + out[:, :d]
    density = torch.logaddexp(u, -u).mul_(2.0).addcmul_(noise, noise, value=-0.5).sub_(log_std)
    log_prob = density.sum(dim=1, keepdim=True).sub_(d * _LOG_DENSITY_OFFSET)
    return SquashedDraw(u.tanh_(), log_prob, deviation)


def squashed_gaussian_gradient(
    out: Tensor,
    action: Tensor,
    deviation: Tensor,
    grad_action: Tensor,
    grad_log_prob: Tensor,
    log_std_min: float,
    log_std_max: float,
) -> Tensor:
    """Gradient `[B, 2 d]` at `out` through a draw, the noise held fixed.

    d a / d u = 1 - a^2        d log p / d u = 2 a        d u / d log std = std * noise
    d log p / d log std = -1 beside what comes through u; nothing passes a logarithm outside of its limits.

    Args:
        out: what was given to `squashed_gaussian`.
        action: what it returned, as is `deviation`.
        deviation: see `action`.
        grad_action: `[B, d]`, the loss's gradient at the actions.
        grad_log_prob: `[B, 1]` or a scalar, the loss's gradient at the log-density.
        log_std_min: as given there.
        log_std_max: as given there.
    """
    assert action.shape == deviation.shape == grad_action.shape and out.shape[1] == 2 * action.shape[1]
    grad_u = torch.addcmul(grad_action, grad_action * action, action, value=-1.0)
    grad_u.addcmul_(action, grad_log_prob, value=2.0)
    log_std = out[:, action.shape[1] :]
    inside = (log_std >= log_std_min).logical_and_(log_std <= log_std_max)
    grad_log_std = (grad_u * deviation).sub_(grad_log_prob).mul_(inside)
    return torch.cat((grad_u, grad_log_std), dim=1)


def squashed_gradient(action: Tensor, grad_action: Tensor) -> Tensor:
    """Gradient `[B, d]` at u of actions tanh(u), given the one at the actions: (1 - a^2) g."""
    assert action.shape == grad_action.shape
    return torch.addcmul(grad_action, grad_action * action, action, value=-1.0)


def smoothed_action(action: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Target policy smoothing `[B, d]`: a + clip(scale * noise, -clip, clip), kept in -1..1 (Fujimoto 2018, eq. 14).

    Args:
        action: what the target policy does, `[B, d]`.
        noise: standard normal, `[B, d]`.
        scale: standard deviation, in units of half the range of actions.
        clip: largest change, in the same unit.
    """
    assert action.shape == noise.shape
    return (noise * scale).clamp_(-clip, clip).add_(action).clamp_(-1.0, 1.0)


def clipped_target(
    reward: Tensor,
    discount: Tensor,
    next_q: Tensor,
    alpha: Tensor | None = None,
    next_log_prob: Tensor | None = None,
) -> Tensor:
    """`reward + discount * (min_c next_q - alpha * next_log_prob)`, `[B, 1]`.

    The smallest of C critics is Fujimoto et al. 2018, eq. 10, and with one critic the target of Lillicrap et al. 2016;
    the entropy's term is Haarnoja et al. 2018b, eq. 2 and 3. Where `reward` sums k steps, the entropy of the steps in
    between is left out of it: it belongs to the policy that acted then.

    Args:
        reward: `[B, 1]`, discounted sum of k rewards.
        discount: `[B, 1]`, gamma**k, or 0 after a termination.
        next_q: `[C, B, 1]`, of the target critics.
        alpha: scalar temperature, or None where entropy does not count.
        next_log_prob: `[B, 1]`, of the actions that `next_q` is about; with `alpha`.
    """
    assert next_q.shape[1:] == reward.shape == discount.shape and reward.shape[1] == 1
    value = next_q.amin(dim=0)
    if alpha is not None and next_log_prob is not None:
        assert next_log_prob.shape == reward.shape
        value.addcmul_(next_log_prob, alpha, value=-1.0)
    return torch.addcmul(reward, discount, value)


def critic_loss(td: Tensor, weight: Tensor) -> Tensor:
    """Scalar sum over critics and batch of `weight * td^2 / 2`; its gradient at the critics is `weight * td`.

    `td` is `[C, B, 1]`; `weight` `[B, 1]` is the importance weight divided by B where the mean is meant.
    """
    assert td.dim() == 3 and td.shape[1:] == weight.shape
    return (td.square() * weight).sum() * 0.5


def smallest_gradient(q: Tensor, slope: float) -> Tensor:
    """Gradient `[C, B, 1]` of `slope * sum min_c q` at `q` `[C, B, 1]`: `slope` at the first of the smallest."""
    assert q.dim() == 3 and q.shape[2] == 1
    return torch.zeros_like(q).scatter_(0, q.argmin(dim=0, keepdim=True), slope)


def temperature_gradient(log_prob: Tensor, target_entropy: float) -> Tensor:
    """Scalar gradient at log(alpha) of `-log(alpha) * mean(log_prob + target_entropy)`.

    Haarnoja et al. 2018b, eq. 18, with log(alpha) in alpha's place, as its authors' code and Stable-Baselines3 have it:
    both vanish at the same entropy, and alpha stays positive.
    """
    assert log_prob.dim() == 2 and log_prob.shape[1] == 1
    return log_prob.sum().mul_(-1.0 / log_prob.shape[0]).sub_(target_entropy)
