"""Kernel for the gradient of `dqn.dqn_loss` on the CPU, and the array arguments shared by the kernels of the family.

After its own options, each kernel takes the following arrays from `q_learning_update` and fills the last two. NaN
propagates.

    out         [B, outputs] online network for obs; [2 B, outputs] if its outputs for next_obs select the action
    next_out    [B, outputs] target network for next_obs
    action      [B, 1] int64
    columns     [3, B, 1] reward, discount, weight
    limits      [2] of bootstrapped values, read with `bound_targets`
    grad        [B, outputs] gradient of the loss at `out`
    priorities  [B, 1] as returned by the loss
"""

from __future__ import annotations

import numpy as np

from asyncrl.shm.kernel import kernel

ARRAYS = (
    "float32[:, ::1], float32[:, ::1], int64[:, ::1], "
    "float32[:, :, ::1], float32[::1], float32[:, ::1], float32[:, ::1]"
)
"""Types of these arrays in a kernel's signature."""


@kernel(f"void(boolean, float64, boolean, {ARRAYS})")
def dqn_kernel(  # type: ignore[no-untyped-def]
    dueling, huber_delta, bound_targets, out, next_out, action, columns, limits, grad, priorities
):
    """Gradient of `dqn_loss`; an infinite `huber_delta` is the squared loss. Priorities are the errors."""
    size, outputs = next_out.shape
    first = 1 if dueling else 0
    delta, share = np.float32(huber_delta), np.float32(1.0) / np.float32(outputs - first)
    for i in range(size):
        selector = out[size + i] if out.shape[0] > size else next_out[i]
        best = first
        for a in range(first + 1, outputs):
            if selector[a] > selector[best]:
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
        error = q - (columns[0, i, 0] + columns[1, i, 0] * next_q)
        priorities[i, 0] = error
        slope = delta if error > delta else (-delta if error < -delta else error)
        slope *= columns[2, i, 0]
        for a in range(outputs):
            grad[i, a] = -slope * share if dueling else np.float32(0.0)
        if dueling:
            grad[i, 0] = slope
        grad[i, taken] += slope
