"""Policy-gradient losses: pure functions, each with its gradient written out.

    Williams 1992           Simple statistical gradient-following algorithms (the policy gradient)
    Schulman et al. 2017    Proximal policy optimization algorithms (the clipped surrogate)
    Hilton et al. 2021      Batch size-invariance for policy optimization (decoupled PPO; arXiv 2110.00641)
    Schulman 2020           Approximating KL divergence (the k3 estimator)

B is the batch; what there is one of per item is `[B]`, float32 (or float64, in tests). `weight` is an item's weight
divided by the count where a mean is meant, so every loss is a sum. No function changes its arguments, reads a value
back to the host or branches on one, so that all of them may be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, weight: Tensor, clip: float
) -> Tensor:
    """Scalar `-sum(weight * min(r A, clamp(r, 1 - clip, 1 + clip) A))`, r = pi / pi_old (Schulman 2017, eq. 7)."""
    _same_items(log_prob, old_log_prob, advantage, weight)
    ratio = (log_prob - old_log_prob).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -(weight * torch.minimum(ratio * advantage, clipped * advantage)).sum()


def clipped_surrogate_gradient(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, weight: Tensor, clip: float
) -> Tensor:
    """Gradient `[B]` of `clipped_surrogate` for `log_prob`: zero where the clip took the smaller term's place."""
    _same_items(log_prob, old_log_prob, advantage, weight)
    ratio = (log_prob - old_log_prob).exp_()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantage)
    surrogate = ratio.mul_(advantage)
    return torch.le(surrogate, clipped).mul(surrogate).mul_(weight).neg_()


def clip_fraction(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> Tensor:
    """Scalar share of items whose ratio is farther than `clip` from 1, whether or not that stops their gradient."""
    _same_items(log_prob, old_log_prob)
    ratio = (log_prob - old_log_prob).exp()
    return ((ratio - 1.0).abs() > clip).to(log_prob.dtype).mean()


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Scalar estimate of KL(pi_old, pi) from actions of pi_old: mean of `(r - 1) - log r` (Schulman 2020, k3)."""
    _same_items(log_prob, old_log_prob)
    log_ratio = log_prob - old_log_prob
    return (torch.expm1(log_ratio) - log_ratio).mean()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, weight: Tensor) -> Tensor:
    """Scalar `-sum(weight * A * log pi)` (Williams 1992); importance ratios, if any, are already in `advantage`."""
    _same_items(log_prob, advantage, weight)
    return -(weight * advantage * log_prob).sum()


def policy_gradient_loss_gradient(advantage: Tensor, weight: Tensor) -> Tensor:
    """Gradient `[B]` of `policy_gradient_loss` for `log_prob`."""
    _same_items(advantage, weight)
    return (weight * advantage).neg_()


def truncated_importance(log_prob: Tensor, behaviour_log_prob: Tensor, rho_bar: float) -> Tensor:
    """Weights `[B]` min(rho_bar, pi / mu) of items that an older policy mu acted.

    In decoupled PPO (Hilton et al. 2021, eq. 7) pi is the proximal policy, against which the ratio is then clipped;
    the truncation is that of V-trace and bounds the variance where staleness is large.
    """
    _same_items(log_prob, behaviour_log_prob)
    return (log_prob - behaviour_log_prob).exp_().clamp_(max=rho_bar)


def value_loss(
    value: Tensor, target: Tensor, weight: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Scalar `sum(weight * (V - target)^2) / 2`; with `clip`, of the larger of that and the clipped value's error.

    The clipped value is V held within `clip` of `old_value`, as in the code that belongs to Schulman et al. 2017
    (not in the paper).
    """
    _same_items(value, target, weight)
    error = (value - target).square()
    if clip is not None:
        assert old_value is not None and old_value.shape == value.shape
        error = torch.maximum(error, (_held(value, old_value, clip) - target).square())
    return (weight * error).sum() * 0.5


def value_loss_gradient(
    value: Tensor, target: Tensor, weight: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Gradient `[B]` of `value_loss` for `value`: zero where the clipped value's error is the larger one."""
    _same_items(value, target, weight)
    error = value - target
    if clip is None:
        return error.mul_(weight)
    assert old_value is not None and old_value.shape == value.shape
    counts = error.abs() >= (_held(value, old_value, clip) - target).abs()
    return error.mul_(weight).mul_(counts)


def _held(value: Tensor, old_value: Tensor, clip: float) -> Tensor:
    """`value` within `clip` of `old_value`; inside exactly `value`, so that equal errors compare as equal."""
    return value.clamp(old_value - clip, old_value + clip)


def _same_items(first: Tensor, *others: Tensor) -> None:
    assert first.dim() == 1 and all(other.shape == first.shape for other in others)
