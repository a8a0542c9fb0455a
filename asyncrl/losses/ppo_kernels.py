"""The loss of a PPO minibatch and its gradient at the networks' outputs, in one pass over the items, on the CPU.

The mathematics is that of `policy_gradient.py` and `networks/distributions.py`, where it stands with its sources and is
tested; these kernels are tested against it. Why twice: between forward and backward pass stand some thirty small tensor
operations; a gradient step over 64 items in 64x64 networks takes 159 microseconds with them and 114 with the kernel,
one over 256 items 354 and 291 (`python benchmarks/ppo_step.py`). On a GPU the tensor operations run.

B items. Columns of `numbers` `[7, B]` are what `Rollout.numbers` holds: the old log-probability, advantage, target, old
value, and the weights of the policy's, the value's and the entropy's term. Items from `count` on are padding with
weights of zero. Sums are carried in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, float64, int64, njit

_OLD, _ADVANTAGE, _TARGET, _OLD_VALUE, _POLICY_WEIGHT, _VALUE_WEIGHT, _ENTROPY_WEIGHT = range(7)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)


@njit(inline="always")
def _surrogate_gradient(ratio, advantage, weight, clip):  # type: ignore[no-untyped-def]
    """What `clipped_surrogate_gradient` says of one item."""
    surrogate = ratio * advantage
    clipped = min(max(ratio, 1.0 - clip), 1.0 + clip) * advantage
    return -weight * surrogate if surrogate <= clipped else 0.0


@njit(inline="always")
def _value_gradient(value, target, old, weight, clip):  # type: ignore[no-untyped-def]
    """What `value_loss_gradient` says of one item; an infinite `clip` is none.

    All in float64: where nothing is clipped the two errors must be equal to the last digit.
    """
    value, target, old = np.float64(value), np.float64(target), np.float64(old)
    error = value - target
    held = min(max(value, old - clip), old + clip)
    return weight * error if abs(error) >= abs(held - target) else 0.0


@njit(
    float64(
        *(float32[:, ::1], int64[:, ::1], int64[::1], float32[::1], float32[:, ::1], int64, float64, float64),
        *(float32[:, ::1], float32[::1], float32[::1], float32[::1], float64[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def categorical_head(  # type: ignore[no-untyped-def]
    out,
    action,
    choices,
    value,
    numbers,
    count,
    clip,
    value_clip,
    grad_out,
    grad_value,
    log_prob,
    entropy,
    work,
):
    """Fill gradients at logits `[B, sum(choices)]` and values `[B]`, log-probabilities and entropies `[B]`.

    Args:
        out: logits, one choice after another.
        action: int64 `[B, k]`.
        choices: int64 `[k]`, how many logits each choice has.
        value: `[B]`.
        numbers: `[7, B]`, see the module's text.
        count: items that are not padding.
        clip: range of the ratio.
        value_clip: range of the value around the old one; infinite does not clip.
        grad_out: filled.
        grad_value: filled.
        log_prob: filled.
        entropy: filled.
        work: float64 `[k, 2]`.

    Returns:
        The estimate k3 of the divergence from the old policy, mean over the first `count` items.
    """
    divergence = 0.0
    for b in range(out.shape[0]):
        total_log_prob = 0.0
        total_entropy = 0.0
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
            log_mass = top + math.log(mass)
            work[c, 0] = log_mass
            work[c, 1] = log_mass - mean / mass
            total_log_prob += out[b, start + action[b, c]] - log_mass
            total_entropy += work[c, 1]
            start = stop
        log_prob[b] = total_log_prob
        entropy[b] = total_entropy
        log_ratio = total_log_prob - numbers[_OLD, b]
        if b < count:
            divergence += math.expm1(log_ratio) - log_ratio
        by_log_prob = _surrogate_gradient(
            math.exp(log_ratio), numbers[_ADVANTAGE, b], numbers[_POLICY_WEIGHT, b], clip
        )
        by_entropy = numbers[_ENTROPY_WEIGHT, b]
        start = 0
        for c in range(choices.shape[0]):
            for j in range(start, start + choices[c]):
                log_p = out[b, j] - work[c, 0]
                grad_out[b, j] = -math.exp(log_p) * (by_log_prob + by_entropy * (log_p + work[c, 1]))
            grad_out[b, start + action[b, c]] += by_log_prob
            start += choices[c]
        grad_value[b] = _value_gradient(
            value[b], numbers[_TARGET, b], numbers[_OLD_VALUE, b], numbers[_VALUE_WEIGHT, b], value_clip
        )
    return divergence / max(count, 1)


@njit(
    float64(
        *(
            float32[:, ::1],
            float32[:, ::1],
            float32[::1],
            float32[::1],
            float32[:, ::1],
            int64,
            float64,
            float64,
        ),
        *(float32[:, ::1], float32[::1], float32[::1], float32[::1], float32[::1], float64[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def gaussian_head(  # type: ignore[no-untyped-def]
    out,
    action,
    log_std,
    value,
    numbers,
    count,
    clip,
    value_clip,
    grad_out,
    grad_log_std,
    grad_value,
    log_prob,
    entropy,
    work,
):
    """Fill gradients at means `[B, d]`, log standard deviations `[d]` and values `[B]`; see `categorical_head`.

    Args:
        out: means.
        action: float32 `[B, d]`.
        log_std: `[d]`.
        value: `[B]`.
        numbers: `[7, B]`, see the module's text.
        count: items that are not padding.
        clip: range of the ratio.
        value_clip: range of the value around the old one; infinite does not clip.
        grad_out: filled.
        grad_log_std: filled.
        grad_value: filled.
        log_prob: filled, with the Gaussian's: those of squashed actions differ by what `squash` says, which depends
            on no weight.
        entropy: filled.
        work: float64 `[2, d]`.

    Returns:
        As `categorical_head`.
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
        log_prob[b] = -0.5 * squares - volume
        entropy[b] = volume + 0.5 * size
        log_ratio = -0.5 * squares - volume - numbers[_OLD, b]
        if b < count:
            divergence += math.expm1(log_ratio) - log_ratio
        by_log_prob = _surrogate_gradient(
            math.exp(log_ratio), numbers[_ADVANTAGE, b], numbers[_POLICY_WEIGHT, b], clip
        )
        for j in range(size):
            z = (action[b, j] - out[b, j]) * work[0, j]
            grad_out[b, j] = by_log_prob * z * work[0, j]
            work[1, j] += by_log_prob * (z * z - 1.0) + numbers[_ENTROPY_WEIGHT, b]
        grad_value[b] = _value_gradient(
            value[b], numbers[_TARGET, b], numbers[_OLD_VALUE, b], numbers[_VALUE_WEIGHT, b], value_clip
        )
    for j in range(size):
        grad_log_std[j] = work[1, j]
    return divergence / max(count, 1)


@njit("void(float32[:, ::1], float32[:, ::1], float32[::1])", cache=True, nogil=True, error_model="numpy")
def squash(latent, numbers, old):  # type: ignore[no-untyped-def]
    """Fill `old` `[B]` with old log-probabilities of latents `[B, d]` themselves, before tanh squashed them.

    Adds sum log(1 - tanh(u)^2) = sum 2 (log 2 - u - softplus(-2 u)), see `networks/distributions.py`.
    """
    for b in range(latent.shape[0]):
        change = 0.0
        for j in range(latent.shape[1]):
            u = np.float64(latent[b, j])
            softplus = max(-2.0 * u, 0.0) + math.log1p(math.exp(-abs(2.0 * u)))
            change += 2.0 * (_LOG_TWO - u - softplus)
        old[b] = numbers[_OLD, b] + change
