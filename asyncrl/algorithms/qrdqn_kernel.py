"""Kernel for the gradient of `qrdqn.quantile_loss` on the CPU; arrays as in `dqn_kernel`."""

from __future__ import annotations

import numpy as np

from asyncrl.algorithms.dqn_kernel import ARRAYS
from asyncrl.shm.kernel import kernel

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@kernel("void(float32[::1], int64, int64, boolean, float32, float32[::1])", fastmath={"reassoc", "contract"})
def of_action(out, row, atoms, dueling, share, into):  # type: ignore[no-untyped-def]
    """Fill `into` `[N]` with the (dueling) outputs of the action at position `row` of `out`."""
    for n in range(atoms):
        into[n] = out[row * atoms + n]
    if not dueling:
        return
    for n in range(atoms):
        into[n] += out[n]
    for a in range(1, out.shape[0] // atoms):
        for n in range(atoms):
            into[n] -= share * out[a * atoms + n]


@kernel(f"void(float32[:, ::1], boolean, float64, boolean, {ARRAYS})", fastmath={"reassoc", "contract"})
def quantile_kernel(  # type: ignore[no-untyped-def]
    scratch, dueling, kappa, bound_targets, out, next_out, action, columns, limits, grad, priorities
):
    """Gradient of `quantile_loss`; `kappa` 0 is plain quantile regression. Priorities are the errors of the mean.

    `scratch` is `[2, N]`.
    """
    theta, target, quantiles = scratch[0], scratch[1], scratch.shape[1]
    size, first, rows = next_out.shape[0], 1 if dueling else 0, next_out.shape[1] // quantiles
    share = _ONE / np.float32(rows - first)
    inverse, limit = _ONE / np.float32(quantiles), np.float32(kappa)
    for i in range(size):
        selector = out[size + i] if out.shape[0] > size else next_out[i]
        best, most = first, _ZERO
        for a in range(first, rows):  # the value stream is equal for all actions
            total = _ZERO
            for n in range(quantiles):
                total += selector[a * quantiles + n]
            if a == first or total > most:
                best, most = a, total
        of_action(out[i], first + action[i, 0], quantiles, dueling, share, theta)
        of_action(next_out[i], best, quantiles, dueling, share, target)
        error = _ZERO
        for n in range(quantiles):
            value = target[n]
            if bound_targets:
                value = limits[0] if value < limits[0] else value
                value = limits[1] if value > limits[1] else value
            target[n] = columns[0, i, 0] + columns[1, i, 0] * value
            error += theta[n] - target[n]
        priorities[i, 0] = error * inverse
        grad[i, :] = _ZERO
        taken, scale = (first + action[i, 0]) * quantiles, -columns[2, i, 0] * inverse
        for n in range(quantiles):
            both, above = _ZERO, _ZERO  # sums of L'(u) over all targets, and over targets above theta
            if limit > _ZERO:
                for j in range(quantiles):
                    u = target[j] - theta[n]
                    u = limit if u > limit else u
                    u = -limit if u < -limit else u
                    both += u
                    above += u if u > _ZERO else _ZERO
            else:
                for j in range(quantiles):
                    u = target[j] - theta[n]
                    above += _ONE if u > _ZERO else _ZERO
                    both += _ONE if u > _ZERO else (-_ONE if u < _ZERO else u)
            tau = (np.float32(n) + np.float32(0.5)) * inverse
            slope = scale * (tau * above + (_ONE - tau) * (both - above))
            if dueling:
                grad[i, n] = slope
                for a in range(1, rows):
                    grad[i, a * quantiles + n] = -slope * share
            grad[i, taken + n] += slope
