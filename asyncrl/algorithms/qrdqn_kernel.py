"""Gradient of `qrdqn.quantile_loss` in one pass over the host's memory, for the CPU."""

from __future__ import annotations

import numpy as np
from numba import njit

_ZERO = np.float32(0.0)


@njit(
    "void(float32[::1], int64, int64, boolean, float32, float32[::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "contract"},
)
def of_action(out, row, atoms, dueling, share, into):  # type: ignore[no-untyped-def]
    """Fill `into` `[N]` with the combined outputs of the action that stands at `row` of `out`."""
    for n in range(atoms):
        into[n] = out[row * atoms + n]
    if not dueling:
        return
    for n in range(atoms):
        into[n] += out[n]
    for a in range(1, out.shape[0] // atoms):
        for n in range(atoms):
            into[n] -= share * out[a * atoms + n]


@njit(
    "void(int64, boolean, float64, boolean, float32[:, ::1], float32[:, ::1], int64[:, ::1], float32[:, ::1], "
    "float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1], float32[:, ::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
    fastmath={"reassoc", "contract"},
)
def quantile_kernel(  # type: ignore[no-untyped-def]
    quantiles,
    dueling,
    kappa,
    bound_targets,
    out,
    next_out,
    action,
    reward,
    discount,
    weight,
    limits,
    grad,
    priorities,
):
    """Fill the loss's gradient and the priorities. NaN propagates.

    Args:
        quantiles: N.
        dueling: whether the outputs are N of the value and then those of the advantages.
        kappa: 0 for plain quantile regression.
        bound_targets: clip bootstrapped quantiles to `limits`.
        out: the online network's outputs `[B, outputs]`, or `[2 B, outputs]` where those for next_obs choose the action.
        next_out: the target network's `[B, outputs]` for next_obs.
        action, reward, discount, weight: `[B, 1]`.
        limits: `[2]`.
        grad: `[B, outputs]`, filled.
        priorities: `[B, 1]`, filled with the error of the mean.
    """
    size, first = next_out.shape[0], 1 if dueling else 0
    rows = next_out.shape[1] // quantiles
    share = np.float32(1.0) / np.float32(rows - first)
    inverse, limit = np.float32(1.0) / np.float32(quantiles), np.float32(kappa)
    theta, target = np.empty(quantiles, np.float32), np.empty(quantiles, np.float32)
    for i in range(size):
        chooser = out[size + i] if out.shape[0] > size else next_out[i]
        best, most = first, _ZERO
        for a in range(first, rows):  # the value stream is the same for all
            total = _ZERO
            for n in range(quantiles):
                total += chooser[a * quantiles + n]
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
            target[n] = reward[i, 0] + discount[i, 0] * value
            error += theta[n] - target[n]
        priorities[i, 0] = error * inverse
        grad[i, :] = _ZERO
        taken, scale = (first + action[i, 0]) * quantiles, -weight[i, 0] * inverse
        for n in range(quantiles):
            both, above = _ZERO, _ZERO  # sums of L'(u) over all targets, and over those above theta
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
                    above += np.float32(1.0) if u > _ZERO else _ZERO
                    both += np.float32(1.0) if u > _ZERO else (np.float32(-1.0) if u < _ZERO else u)
            tau = (np.float32(n) + np.float32(0.5)) * inverse
            slope = scale * (tau * above + (np.float32(1.0) - tau) * (both - above))
            if dueling:
                grad[i, n] = slope
                for a in range(1, rows):
                    grad[i, a * quantiles + n] = -slope * share
            grad[i, taken + n] += slope
