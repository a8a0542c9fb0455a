"""Action distributions of the learner: log probability and entropy, as pure differentiable functions.

The counterpart in actors, without torch, is `acting/stochastic.py`. B is the batch size. Nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def categorical(logits: Tensor, action: Tensor, choices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log probability and entropy, `[B]` each, of one choice, or summed over several independent ones.

    Args:
        logits: `[B, sum(choices)]`, concatenated over the choices.
        action: int64 `[B]`, or `[B, k]` for k choices.
        choices: number of logits of each choice.
    """
    log_ps = _log_softmax(logits, choices)
    entropies = (-(log_p.exp() * log_p).sum(dim=1) for log_p in log_ps)
    return _chosen(log_ps, action), sum(entropies, logits.new_zeros(()))


def categorical_log_prob(logits: Tensor, action: Tensor, choices: Sequence[int]) -> Tensor:
    """Log probability `[B]` alone, equal to that of `categorical`."""
    return _chosen(_log_softmax(logits, choices), action)


def _log_softmax(logits: Tensor, choices: Sequence[int]) -> list[Tensor]:
    assert logits.dim() == 2 and logits.shape[1] == sum(choices)
    return [torch.log_softmax(own, dim=1) for own in logits.split_with_sizes(list(choices), dim=1)]


def _chosen(log_ps: list[Tensor], action: Tensor) -> Tensor:
    columns = action.reshape(log_ps[0].shape[0], len(log_ps))
    found = [log_p.gather(1, columns[:, i : i + 1]).squeeze(1) for i, log_p in enumerate(log_ps)]
    return sum(found[1:], found[0])


def diagonal_gaussian(mean: Tensor, action: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Log density and entropy, `[B]` each, of d independent normal values.

    Args:
        mean: `[B, d]`.
        action: `[B, d]`, as drawn, not clipped to the environment's bounds.
        log_std: `[d]` or `[B, d]`.
    """
    assert mean.dim() == 2 and action.shape == mean.shape and log_std.shape[-1] == mean.shape[1]
    z = (action - mean) * (-log_std).exp()
    volume = log_std.sum(dim=-1) + mean.shape[1] * _HALF_LOG_TWO_PI
    return -0.5 * z.square().sum(dim=1) - volume, (volume + 0.5 * mean.shape[1]).expand(mean.shape[0])


def log_tanh_slope(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)^2), the logarithm of tanh's derivative, exact where tanh(u) rounds to 1."""
    return 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
