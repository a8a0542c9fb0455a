"""Gradient of PPO's loss at the networks' outputs, in one pass over the items of a minibatch, on the CPU.

The loss is `ppo.ppo_loss`, where it stands with its sources; `tests/algorithms/test_on_policy_kernels.py` holds this to
it. Why twice: see `benchmarks/ppo_step.py`. B items; rows of `columns` `[6, B]` are those of `PPO.rollout_columns`.
Items of weight zero are padding. Sums are carried in float64, and NaN propagates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, float64, int64, njit, types
from numpy.typing import NDArray

_OLD_LOG_PROB, _IMPORTANCE, _ADVANTAGE, _TARGET, _OLD_VALUE, _WEIGHT = range(6)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOSS = types.UniTuple(float64, 4)
"""`(clip_range, value_clip_range, vf_coef, ent_coef)`; an infinite range does not clip."""


@njit(inline="always")
def _by_log_prob(log_ratio, columns, b, loss):  # type: ignore[no-untyped-def]
    """Derivative of item b's loss for its log-probability: zero where the clipped term is the smaller one."""
    ratio = math.exp(log_ratio)
    advantage = np.float64(columns[_ADVANTAGE, b])
    surrogate = ratio * advantage
    clipped = min(max(ratio, 1.0 - loss[0]), 1.0 + loss[0]) * advantage
    return 0.0 if surrogate > clipped else -columns[_WEIGHT, b] * columns[_IMPORTANCE, b] * surrogate


@njit(inline="always")
def _by_value(value, columns, b, loss):  # type: ignore[no-untyped-def]
    """Derivative of item b's loss for its value: zero where the clipped value's error is the larger one.

    All in float64: where nothing is clipped the two errors must be equal to the last digit.
    """
    error = np.float64(value) - np.float64(columns[_TARGET, b])
    old = np.float64(columns[_OLD_VALUE, b])
    held = min(max(np.float64(value), old - loss[1]), old + loss[1])
    smaller = abs(error) < abs(held - columns[_TARGET, b])
    return 0.0 if smaller else loss[2] * columns[_WEIGHT, b] * error


@njit(
    float64(
        *(float32[:, ::1], int64[:, ::1], int64[::1], float32[::1], float32[:, ::1], int64, _LOSS),
        *(float32[:, ::1], float32[::1], float64[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def categorical_kernel(  # type: ignore[no-untyped-def]
    out, action, choices, value, columns, count, loss, grad_out, grad_value, work
):
    """Fill gradients at logits `[B, sum(choices)]` and values `[B]`; return k3 over the first `count` items.

    `action` is `[B, k]`; `work` `[k, 2]` holds the logarithm of each choice's normaliser and its entropy.
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
                mass += e
                mean += e * out[b, j]
            work[c, 0] = top + math.log(mass)
            work[c, 1] = work[c, 0] - mean / mass
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
                grad_out[b, j] = -math.exp(log_p) * (by_log_prob + by_entropy * (log_p + work[c, 1]))
            grad_out[b, start + action[b, c]] += by_log_prob
            start += choices[c]
        grad_value[b] = _by_value(value[b], columns, b, loss)
    return divergence / max(count, 1)


@njit(
    float64(
        *(float32[:, ::1], float32[:, ::1], float32[::1], float32[::1], float32[:, ::1], int64, _LOSS),
        *(float32[:, ::1], float32[::1], float32[::1], float64[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def gaussian_kernel(  # type: ignore[no-untyped-def]
    out, action, log_std, value, columns, count, loss, grad_out, grad_value, grad_log_std, work
):
    """Fill gradients at means `[B, d]`, values `[B]` and log standard deviations `[d]`; see `categorical_kernel`.

    `action` is `[B, d]`; `work` `[2, d]` holds one over each standard deviation and the sums for `grad_log_std`.
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
            grad_out[b, j] = by_log_prob * z * work[0, j]
            work[1, j] += by_log_prob * (z * z - 1.0) + by_entropy
        grad_value[b] = _by_value(value[b], columns, b, loss)
    for j in range(size):
        grad_log_std[j] = work[1, j]
    return divergence / max(count, 1)


Outputs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


def ppo_gradients(
    outputs: Outputs,
    action: NDArray[Any],
    choices: tuple[int, ...],
    columns: NDArray[np.float32],
    count: int,
    loss: tuple[float, float, float, float],
) -> tuple[float, Outputs]:
    """Divergence from the old policy (k3, over the first `count` items), and gradients in the order of `outputs`.

    Args:
        outputs: logits or means `[B, outputs]`, values `[B]`, log standard deviations `[d]`.
        action: `[B, ...]`, int64 choices or float32.
        choices: how many logits each choice has; empty for a Gaussian.
        columns: `[6, B]`.
        count: items that are not padding.
        loss: `(clip_range, value_clip_range, vf_coef, ent_coef)`; an infinite range does not clip.
    """
    out, value, log_std = outputs
    grad_out, grad_value, grad_log_std = np.empty_like(out), np.empty_like(value), np.empty_like(log_std)
    rows = action.reshape(out.shape[0], -1)
    if choices:
        work = np.empty((len(choices), 2))
        sizes = np.array(choices, np.int64)
        kl = categorical_kernel(out, rows, sizes, value, columns, count, loss, grad_out, grad_value, work)
    else:
        work = np.empty((2, out.shape[1]))
        kl = gaussian_kernel(
            out, rows, log_std, value, columns, count, loss, grad_out, grad_value, grad_log_std, work
        )
    return kl, (grad_out, grad_value, grad_log_std)
