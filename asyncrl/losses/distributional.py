"""Losses for distributions of the return: pure functions, and the gradient of the loss written out.

    Bellemare et al. 2017   A distributional perspective on reinforcement learning (C51)
    Dabney et al. 2018      Distributional reinforcement learning with quantile regression (QR-DQN)
    Wang et al. 2016        Dueling network architectures
    Hessel et al. 2018      Rainbow (dueling over atoms; the divergence as priority)

B is the batch, A the actions, N the atoms or quantiles of one action. What there is one of per item is a column
`[B, 1]`. As in `td.py`, no function changes its arguments, reads a value back to the host or branches on one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dueling_atoms(value: Tensor, advantage: Tensor) -> Tensor:
    """V + A - mean(A) `[B, A, N]`, atom by atom, of V `[B, N]` and A `[B, A, N]` (Hessel et al. 2018)."""
    assert advantage.dim() == 3 and value.shape == (advantage.shape[0], advantage.shape[2])
    return advantage + (value - advantage.mean(dim=1)).unsqueeze(1)


def of_action(atoms: Tensor, action: Tensor) -> Tensor:
    """The atoms `[B, N]` of one action per item; `atoms` is `[B, A, N]`, `action` `[B, 1]` int64. A copy."""
    assert atoms.dim() == 3 and action.shape == (atoms.shape[0], 1)
    return atoms.gather(1, action.unsqueeze(2).expand(-1, -1, atoms.shape[2])).squeeze(1)


def at_action(grad: Tensor, action: Tensor, num_actions: int) -> Tensor:
    """The gradient `[B, A, N]` that is `grad` `[B, N]` at the chosen action and zero elsewhere."""
    assert grad.dim() == 2 and action.shape == (grad.shape[0], 1)
    out = grad.new_zeros(grad.shape[0], num_actions, grad.shape[1])
    return out.scatter_(1, action.unsqueeze(2).expand(-1, -1, grad.shape[1]), grad.unsqueeze(1))


def dueling_at_action(grad: Tensor, action: Tensor, num_actions: int) -> Tensor:
    """Gradient `[B, 1 + A, N]` for `[value, advantages...]`, given that of `dueling_atoms` at the chosen action.

    Which is `grad` `[B, N]`: all of it for the value, and less its share of the mean for the advantages.
    """
    assert grad.dim() == 2 and action.shape == (grad.shape[0], 1)
    out = grad.new_empty(grad.shape[0], 1 + num_actions, grad.shape[1])
    out[:, 0] = grad
    out[:, 1:] = (grad / -num_actions).unsqueeze(1)
    places = (action + 1).unsqueeze(2).expand(-1, -1, grad.shape[1])
    return out.scatter_add_(1, places, grad.unsqueeze(1))


def project(next_prob: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Distribution of `reward + discount * Z'` brought back to the atoms (Bellemare et al. 2017, eq. 7).

    An atom that lands between two neighbours is shared by them in proportion to its nearness; what lands beyond
    an end of the support goes to that end. The lower neighbour is at most the last but one, so that an atom
    exactly on the last (or any) atom gives all of its mass to it; with floor and ceiling, as algorithm 1 is
    written, both shares of such an atom are zero. Adding the shares with `scatter_add_` takes 36 microseconds at
    B = 64 and N = 51 and 69 at B = 256; as a product with the kernel `max(0, 1 - |Tz_j - z_i| / dz)` 110 and 578.

    Args:
        next_prob: probabilities `[B, N]` of the next state's atoms.
        reward: `[B, 1]`, the discounted sum of k rewards.
        discount: `[B, 1]`, gamma^k, or 0 after a termination.
        support: `[N]`, N at least 2, evenly spaced and ascending.

    Returns:
        `[B, N]`, rows sum to the sums of `next_prob`; NaN where reward or discount is NaN. On a GPU the order of the
        sums is not fixed, and so neither is their rounding.
    """
    assert next_prob.dim() == 2 and support.shape == (next_prob.shape[1],)
    assert reward.shape == discount.shape == (next_prob.shape[0], 1)
    last = support.shape[0] - 1
    position = torch.addcmul(reward, discount, support).sub_(support[0])
    position = position.mul_(last / (support[-1] - support[0])).clamp_(0, last)
    lower = position.long().clamp_(0, last - 1)  # after the conversion: a NaN must not become an address
    upper_share = position.sub_(lower).mul_(next_prob)
    out = torch.zeros_like(next_prob).scatter_add_(1, lower, next_prob - upper_share)
    out[:, 1:].scatter_add_(1, lower, upper_share)
    return out


def cross_entropy(log_prob: Tensor, target: Tensor) -> Tensor:
    """`-sum_i m_i log p_i` `[B, 1]` of `log_prob` and target m, both `[B, N]` (Bellemare et al. 2017, alg. 1)."""
    assert log_prob.dim() == 2 and target.shape == log_prob.shape
    return -(target * log_prob).sum(dim=1, keepdim=True)


def expected_value(logits: Tensor, support: Tensor) -> Tensor:
    """Mean return `[...]` of the distribution that `logits` `[..., N]` give to the atoms of `support` `[N]`."""
    assert support.shape == logits.shape[-1:]
    return logits.softmax(dim=-1) @ support


def divergence(log_prob: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence `[B, 1]` of p from the target m, at least 0.

    The cross entropy less the entropy of m: it has the same gradient, and is zero where the prediction is
    right, which makes it a priority (Hessel et al. 2018) and a loss to look at.
    """
    assert log_prob.dim() == 2 and target.shape == log_prob.shape
    log_target = target.clamp(
        min=torch.finfo(target.dtype).tiny
    ).log_()  # 0 log 0 is 0; xlogy takes twice as long
    return log_target.sub_(log_prob).mul_(target).sum(dim=1, keepdim=True).clamp_(min=0)


def cross_entropy_gradient(log_prob: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Gradient `[B, N]` of the sum of `weight * cross_entropy` for the logits behind `log_prob`; m sums to 1."""
    assert log_prob.dim() == 2 and target.shape == log_prob.shape and weight.shape == (log_prob.shape[0], 1)
    return log_prob.exp().sub_(target).mul_(weight)


def midpoints(count: int, like: Tensor) -> Tensor:
    """tau-hat_i = (2 i + 1) / (2 N) `[N]`, the quantile that the i-th value stands for (Dabney 2018, lemma 2)."""
    return torch.arange(1, 2 * count, 2, dtype=like.dtype, device=like.device) / (2 * count)


def quantile_loss(theta: Tensor, target: Tensor, kappa: float | None) -> Tensor:
    """Quantile Huber loss `[B, 1]`: sum over i of the mean over j of `|tau_i - 1{u < 0}| L(u)`, u = T_j - theta_i.

    Dabney et al. 2018, eq. 9 and 10 and algorithm 1. L is Huber's loss, u^2 / 2 up to kappa and
    `kappa (|u| - kappa / 2)` beyond; for `kappa` None or 0 it is `|u|`, which is plain quantile regression
    (eq. 8). `theta` is `[B, N]`, `target` `[B, N']`.
    """
    assert theta.dim() == target.dim() == 2 and theta.shape[0] == target.shape[0]
    u = target.unsqueeze(1) - theta.unsqueeze(2)
    size = u.abs()
    if kappa:
        inside = size.clamp(max=kappa)
        size = inside * (size - 0.5 * inside)
    tau = midpoints(theta.shape[1], theta).unsqueeze(1)
    return ((tau - (u < 0).to(u.dtype)).abs() * size).mean(dim=2).sum(dim=1, keepdim=True)


def quantile_gradient(theta: Tensor, target: Tensor, weight: Tensor, kappa: float | None) -> Tensor:
    """Gradient `[B, N]` of the sum of `weight * quantile_loss` for `theta`, `target` held fixed."""
    assert theta.dim() == target.dim() == 2 and theta.shape[0] == target.shape[0]
    assert weight.shape == (theta.shape[0], 1)
    slope = target.unsqueeze(1) - theta.unsqueeze(2)
    slope = slope.clamp_(-kappa, kappa) if kappa else slope.sign_()
    both = slope.sum(dim=2)
    above = slope.relu_().sum(
        dim=2
    )  # in place: at B = 128 and N = 51 a second [B, N, N'] cost four times this
    tau = midpoints(theta.shape[1], theta)
    pull = torch.addcmul((1 - tau) * both, 2 * tau - 1, above)  # tau * above + (1 - tau) * below
    return pull.mul_(weight / -target.shape[1])
