"""Kernel for the gradient of `c51.c51_loss` on the CPU; arrays as in `dqn_kernel`."""

from __future__ import annotations

import math

import numpy as np

from asyncrl.algorithms.dqn_kernel import ARRAYS
from asyncrl.algorithms.qrdqn_kernel import of_action
from asyncrl.shm.kernel import kernel

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# exp(x) = 2^k exp(r), |r| <= ln(2) / 2, with the polynomial of Cephes' `expf`: without branches and calls, so that the
# compiler vectorises a loop over it.
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_C0, _C1, _C2, _C3, _C4, _C5 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
_LEAST = np.float32(-87.0)


@kernel("float32(float32[::1], float32[::1])", fastmath={"reassoc", "contract"})
def softmax(logits, p):  # type: ignore[no-untyped-def]
    """Fill `p` `[N]` with the probabilities of `logits` `[N]`; return the logarithm of the sum of exponentials."""
    top = logits[0]
    for n in range(1, logits.shape[0]):
        top = logits[n] if logits[n] > top else top
    total = _ZERO
    for n in range(logits.shape[0]):
        x = logits[n] - top
        x = _LEAST if x < _LEAST else x
        k = np.floor(x * _LOG2_E + np.float32(0.5))
        r = x - k * _LN_2_HIGH - k * _LN_2_LOW
        y = _C5 + r * (_C4 + r * (_C3 + r * (_C2 + r * (_C1 + r * _C0))))
        p[n] = (_ONE + r + r * r * y) * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(
            np.float32
        )
        total += p[n]
    for n in range(logits.shape[0]):
        p[n] /= total
    return top + np.float32(math.log(total))


@kernel(f"void(float32[::1], float32[:, ::1], boolean, {ARRAYS})", fastmath={"reassoc", "contract"})
def c51_kernel(  # type: ignore[no-untyped-def]
    support, scratch, dueling, out, next_out, action, columns, limits, grad, priorities
):
    """Gradient of `c51_loss`; priorities are the divergences. `limits` is unused: the support bounds the targets.

    `support` is `[N]`, `scratch` `[3, N]`.
    """
    size, first, atoms = next_out.shape[0], 1 if dueling else 0, support.shape[0]
    rows, last = next_out.shape[1] // atoms, atoms - 1
    share = _ONE / np.float32(rows - first)
    per_unit = np.float32(last) / (support[last] - support[0])
    logits, p, m = scratch[0], scratch[1], scratch[2]
    for i in range(size):
        selector = out[size + i] if out.shape[0] > size else next_out[i]
        best, most = first, _ZERO
        for a in range(first, rows):
            of_action(selector, a, atoms, dueling, share, logits)
            softmax(logits, p)
            mean = _ZERO
            for n in range(atoms):
                mean += p[n] * support[n]
            if a == first or mean > most:
                best, most = a, mean
        of_action(next_out[i], best, atoms, dueling, share, logits)
        softmax(logits, p)
        m[:] = _ZERO
        for n in range(atoms):
            b = (columns[0, i, 0] + columns[1, i, 0] * support[n] - support[0]) * per_unit
            b = _ZERO if b < _ZERO else (np.float32(last) if b > np.float32(last) else b)
            lower = min(max(int(b), 0), last - 1)  # a valid index for a NaN, too
            upper_share = (b - np.float32(lower)) * p[n]
            m[lower] += p[n] - upper_share
            m[lower + 1] += upper_share
        taken = first + action[i, 0]
        of_action(out[i], taken, atoms, dueling, share, logits)
        log_total = softmax(logits, p)
        divergence = _ZERO
        for n in range(atoms):
            if m[n] != _ZERO:
                divergence += m[n] * (np.float32(math.log(m[n])) - logits[n] + log_total)
        priorities[i, 0] = divergence
        grad[i, :] = _ZERO
        for n in range(atoms):
            slope = columns[2, i, 0] * (p[n] - m[n])
            if dueling:
                grad[i, n] = slope
                for a in range(1, rows):
                    grad[i, a * atoms + n] = -slope * share
            grad[i, taken * atoms + n] += slope
