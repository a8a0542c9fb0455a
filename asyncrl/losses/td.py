"""Temporal-difference losses for action values: pure functions, and the gradient of the loss written out.

    Mnih et al. 2015        Human-level control through deep reinforcement learning (target, error clipping)
    van Hasselt et al. 2016 Deep reinforcement learning with double Q-learning
    Wang et al. 2016        Dueling network architectures
    Schaul et al. 2016      Prioritized experience replay (importance weights)
    Sutton 1988             Learning to predict by temporal differences (n-step returns)

B is the batch, A the actions. What there is one of per item is a column `[B, 1]`, so that nothing has to be
reshaped or broadcast by accident. Everything is float32 but `action`, which is int64. No function changes its
arguments, reads a value back to the host or branches on one, so that all of them may be captured in a CUDA
graph.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Action values V + A - mean(A) `[B, A]` of V `[B, 1]` and advantages A `[B, A]` (Wang 2016, eq. 9)."""
    assert advantage.dim() == 2 and value.shape == (advantage.shape[0], 1)
    return value + advantage - advantage.mean(dim=1, keepdim=True)


def dueling_gradient(grad_q: Tensor) -> Tensor:
    """Gradient `[B, 1 + A]` for `[value, advantages...]`, given the one for the action values, `[B, A]`."""
    assert grad_q.dim() == 2
    total = grad_q.sum(dim=1, keepdim=True)
    return torch.cat((total, grad_q - total / grad_q.shape[1]), dim=1)


def bootstrap(next_q: Tensor, next_q_online: Tensor | None = None) -> Tensor:
    """Value `[B, 1]` of the next state from the target network's `next_q` `[B, A]`.

    The best of `next_q` (Mnih et al. 2015); with `next_q_online` `[B, A]`, what `next_q` says of the action
    that the online network finds best (van Hasselt et al. 2016, eq. 4). The first of equal actions counts.
    """
    assert next_q.dim() == 2
    if next_q_online is None:
        return next_q.amax(dim=1, keepdim=True)
    assert next_q_online.shape == next_q.shape
    return next_q.gather(1, next_q_online.argmax(dim=1, keepdim=True))


def td_error(q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """`q[action] - (reward + discount * next_value)`, `[B, 1]`; `q` is `[B, A]`, the others `[B, 1]`.

    `reward` is the discounted sum of k rewards and `discount` is gamma**k, or 0 after a termination (Sutton
    1988).
    """
    assert q.dim() == 2 and action.shape == (q.shape[0], 1)
    assert action.shape == reward.shape == discount.shape == next_value.shape
    return q.gather(1, action).sub_(torch.addcmul(reward, discount, next_value))


def dqn_loss(td: Tensor, weight: Tensor, huber_delta: float | None) -> Tensor:
    """Scalar sum over the batch of `weight * l(td)`; both arguments `[B, 1]`.

    l is Huber's loss, td^2 / 2 up to `huber_delta` and `huber_delta * (|td| - huber_delta / 2)` beyond (for
    1: the error clipping of Mnih et al. 2015), or td^2 / 2 everywhere where `huber_delta` is None. `weight`
    is the importance weight divided by B where the mean of Schaul et al. 2016 is meant: over B, not over the
    sum of weights.
    """
    assert td.dim() == 2 and td.shape[1] == 1 and weight.shape == td.shape
    if huber_delta is None:
        return (weight * td.square()).sum() * 0.5
    size = td.abs()
    inside = size.clamp(max=huber_delta)
    return (weight * inside * (size - 0.5 * inside)).sum()


def dqn_loss_gradient(
    td: Tensor, action: Tensor, weight: Tensor, num_actions: int, huber_delta: float | None
) -> Tensor:
    """Gradient `[B, A]` of `dqn_loss` for the action values behind `td`; zero but at `action`."""
    assert td.dim() == 2 and td.shape[1] == 1 and td.shape == action.shape == weight.shape
    slope = td if huber_delta is None else td.clamp(-huber_delta, huber_delta)
    return td.new_zeros(td.shape[0], num_actions).scatter_(1, action, slope * weight)
