"""Kernels for the gradients of the PPO and IMPALA losses at the networks' outputs, on the CPU.

The losses are defined, with references, in `ppo.ppo_loss` and `impala.impala_loss`;
`tests/algorithms/test_kernel_contract.py` checks that the kernels agree with them.
`benchmarks/systems/loss_kernels.py` says what they gain.

A batch has B items. The first six rows of `columns` `[C, B]` are those of `PPO.rollout_columns`: log-probability under
the old policy, importance weight, advantage, target, old value, and weight, which is zero for padding. Sums are
accumulated in float64. NaN propagates.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from asyncrl.shm.kernel import inlined, kernel

Outputs = tuple[Tensor, Tensor, Tensor]
"""Outputs of the networks (policy outputs, values, log standard deviations), or gradients of the loss at them."""

_OLD_LOG_PROB, _IMPORTANCE, _ADVANTAGE, _TARGET, _OLD_VALUE, _WEIGHT = range(6)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@inlined
def _by_log_prob(log_ratio, columns, b, loss):  # type: ignore[no-untyped-def]
    """Derivative of item b's loss with respect to its log-probability: zero where the clipped term is smaller."""
    ratio = math.exp(log_ratio)
    advantage = np.float64(columns[_ADVANTAGE, b])
    surrogate = ratio * advantage
    clipped = min(max(ratio, 1.0 - loss[0]), 1.0 + loss[0]) * advantage
    return 0.0 if surrogate > clipped else -columns[_WEIGHT, b] * columns[_IMPORTANCE, b] * surrogate


@inlined
def _by_value(value, columns, b, loss):  # type: ignore[no-untyped-def]
    """Derivative of item b's loss with respect to its value: zero where the clipped value's error is larger.

    Computed in float64, because the two errors must be exactly equal where nothing is clipped.
    """
    error = np.float64(value) - np.float64(columns[_TARGET, b])
    old = np.float64(columns[_OLD_VALUE, b])
    held = min(max(np.float64(value), old - loss[1]), old + loss[1])
    smaller = abs(error) < abs(held - columns[_TARGET, b])
    return 0.0 if smaller else 2.0 * loss[2] * columns[_WEIGHT, b] * error


@kernel(
    "float64(float32[:, ::1], int64[:, ::1], int64[::1], float32[::1], float32[:, ::1], int64, UniTuple(float64, 4),"
    "float32[:, ::1], float32[::1], float64[:, ::1])"
)
def categorical_kernel(  # type: ignore[no-untyped-def]
    out, action, choices, value, columns, count, loss, grad_out, grad_value, work
):
    """Fill the gradients at logits `[B, sum(choices)]` and values `[B]`; return the k3 of the first `count` items.

    `action` is `[B, k]`; `work` `[k, 3]` holds the log-normaliser, the entropy and the normaliser of each choice, which
    belongs to the exponentials that `grad_out` holds first.
    """
    divergence = 0.0
    for b in range(out.shape[0]):
        log_ratio = -np.float64(columns[_OLD_LOG_PROB, b])
        start = 0
        for c in range(choices.shape[0]):
            stop = start + choices[c]
            top = np.float64(out[b, start])
            for j in range(start + 1, stop):
                top = max(top, np.float64(out[b, j]))
            mass = 0.0
            mean = 0.0
            for j in range(start, stop):
                e = math.exp(out[b, j] - top)
                grad_out[b, j] = e
                mass += e
                mean += e * out[b, j]
            work[c, 0] = top + math.log(mass)
            work[c, 1] = work[c, 0] - mean / mass
            work[c, 2] = mass
            log_ratio += out[b, start + action[b, c]] - work[c, 0]
            start = stop
        if b < count:
            divergence += math.expm1(log_ratio) - log_ratio
        by_log_prob = _by_log_prob(log_ratio, columns, b, loss)
        by_entropy = -loss[3] * columns[_WEIGHT, b]
        start = 0
        for c in range(choices.shape[0]):
            for j in range(start, start + choices[c]):
                log_p = out[b, j] - work[c, 0]
                p = grad_out[b, j] / work[c, 2]
                grad_out[b, j] = -p * (by_log_prob + by_entropy * (log_p + work[c, 1]))
            grad_out[b, start + action[b, c]] += by_log_prob
            start += choices[c]
        grad_value[b] = _by_value(value[b], columns, b, loss)
    return divergence / max(count, 1)


@kernel(
    "float64(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1], float32[::1], float32[:, ::1], int64,"
    "UniTuple(float64, 4), float32[:, ::1], float32[::1], float32[::1], float64[:, ::1])",
    cold=True,
)
def gaussian_kernel(  # type: ignore[no-untyped-def]
    out, action, log_std, bounds, value, columns, count, loss, grad_out, grad_value, grad_log_std, work
):
    """Fill the gradients at means `[B, d]`, values `[B]` and log standard deviations `[d]`; see `categorical_kernel`.

    `action` is `[B, d]`; `bounds` are those of `LossKernel`; `work` `[2, d]` holds the inverse standard deviations and
    the sums for `grad_log_std`.
    """
    size = out.shape[1]
    volume = size * _HALF_LOG_TWO_PI
    for j in range(size):
        volume += log_std[j]
        work[0, j] = math.exp(-log_std[j])
        work[1, j] = 0.0
    divergence = 0.0
    for b in range(out.shape[0]):
        squares = 0.0
        for j in range(size):
            z = (action[b, j] - out[b, j]) * work[0, j]
            squares += z * z
        log_ratio = -0.5 * squares - volume - columns[_OLD_LOG_PROB, b]
        if b < count:
            divergence += math.expm1(log_ratio) - log_ratio
        by_log_prob = _by_log_prob(log_ratio, columns, b, loss)
        by_entropy = -loss[3] * columns[_WEIGHT, b]
        for j in range(size):
            z = (action[b, j] - out[b, j]) * work[0, j]
            by_mean = by_log_prob * z * work[0, j]
            if bounds[2, j] > 0.0:
                mean = out[b, j]
                beyond = mean - min(max(mean, bounds[0, j]), bounds[1, j])
                by_mean += bounds[2, j] * columns[_WEIGHT, b] * beyond
            grad_out[b, j] = by_mean
            work[1, j] += by_log_prob * (z * z - 1.0) + by_entropy
        grad_value[b] = _by_value(value[b], columns, b, loss)
    for j in range(size):
        grad_log_std[j] = work[1, j]
    return divergence / max(count, 1)


class LossKernel:
    """Kernel for a policy's distribution, with its output buffers. Returns the same tensors at every call.

    Args:
        action: `[B, ...]`, int64 choices or float32; this buffer is read at every call.
        choices: number of logits of each choice; empty for a Gaussian.
        outputs: number of logits, or d for a Gaussian.
        bounds: `[3, d]` float32, lower and upper bounds of the means and factors of the gradient beyond them; None for
            no penalty.
    """

    def __init__(
        self, action: Tensor, choices: tuple[int, ...], outputs: int, bounds: Tensor | None = None
    ) -> None:
        size, d = action.shape[0], 0 if choices else outputs
        self._action, self._choices = action.view(size, -1).numpy(), np.array(choices, np.int64)
        self._bounds = np.zeros((3, d), np.float32) if bounds is None else bounds.numpy()
        self._work = np.empty((len(choices), 3) if choices else (2, d))
        self._gradients = torch.zeros(size, outputs), torch.zeros(size), torch.zeros(d)
        self._filled = tuple(gradient.numpy() for gradient in self._gradients)

    def __call__(
        self, outputs: Outputs, columns: Tensor, count: int, loss: tuple[float, float, float, float]
    ) -> tuple[float, Outputs]:
        """Divergence from the old policy (k3 of the first `count` items), and gradients at the outputs.

        Args:
            outputs: `[B, outputs]`, values `[B]`, log standard deviations `[d]`.
            columns: `[C, B]`, see the module docstring.
            count: number of items that are not padding.
            loss: `(clip_range, value_clip_range, vf_coef, ent_coef)`; an infinite range does not clip.
        """
        out, value, log_std = outputs[0].numpy(), outputs[1].numpy(), outputs[2].numpy()
        items = value, columns.numpy(), count, loss
        by_out, by_value, by_log_std = self._filled
        if self._choices.size:
            kl = categorical_kernel(out, self._action, self._choices, *items, by_out, by_value, self._work)
        else:
            drawn = out, self._action, log_std, self._bounds
            kl = gaussian_kernel(*drawn, *items, by_out, by_value, by_log_std, self._work)
        return kl, self._gradients
