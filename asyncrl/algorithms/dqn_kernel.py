"""Gradient of `dqn.dqn_loss` in one pass over the host's memory, for the CPU."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(
    "void(boolean, float64, boolean, float32[:, ::1], float32[:, ::1], int64[:, ::1], float32[:, ::1], "
    "float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1], float32[:, ::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def dqn_kernel(  # type: ignore[no-untyped-def]
    dueling,
    huber_delta,
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
        dueling: whether the outputs are a value and then advantages, else action values.
        huber_delta: infinite for the squared loss.
        bound_targets: clip bootstrapped values to `limits`.
        out: the online network's outputs `[B, outputs]`, or `[2 B, outputs]` where those for next_obs choose the action.
        next_out: the target network's `[B, outputs]` for next_obs.
        action, reward, discount, weight: `[B, 1]`.
        limits: `[2]`.
        grad: `[B, outputs]`, filled.
        priorities: `[B, 1]`, filled with the temporal-difference errors.
    """
    size, outputs = next_out.shape
    first = 1 if dueling else 0
    delta, share = np.float32(huber_delta), np.float32(1.0) / np.float32(outputs - first)
    for i in range(size):
        chooser = out[size + i] if out.shape[0] > size else next_out[i]
        best = first
        for a in range(first + 1, outputs):
            if chooser[a] > chooser[best]:
                best = a
        taken = first + action[i, 0]
        q, next_q = out[i, taken], next_out[i, best]
        if dueling:
            mean, next_mean = np.float32(0.0), np.float32(0.0)
            for a in range(1, outputs):
                mean += out[i, a]
                next_mean += next_out[i, a]
            q += out[i, 0] - mean * share
            next_q += next_out[i, 0] - next_mean * share
        if bound_targets and next_q < limits[0]:
            next_q = limits[0]
        elif bound_targets and next_q > limits[1]:
            next_q = limits[1]
        error = q - (reward[i, 0] + discount[i, 0] * next_q)
        priorities[i, 0] = error
        slope = delta if error > delta else (-delta if error < -delta else error)
        slope *= weight[i, 0]
        for a in range(outputs):
            grad[i, a] = -slope * share if dueling else np.float32(0.0)
        if dueling:
            grad[i, 0] = slope
        grad[i, taken] += slope
