"""Fused CPU kernels for the gradients of `tqc.critic_loss` and `tqc.actor_loss`; a test checks that they agree.

In shapes, B is the batch size, C the number of critics, M that of the atoms of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.continuous_kernel import arrays
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.networks.graph import Kept
from asyncrl.shm.kernel import kernel

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)


class TruncatedCriticKernel:
    """Kernel for `output_gradients` of `tqc.critic_loss`.

    Each call uses the present rewards, discounts and weights of `batch`.

    Args:
        batch: batch that is trained on.
        critics, atoms: C and M.
        dropped: number of the largest of the C M pooled atoms that are dropped.
    """

    def __init__(self, batch: StagedBatch, critics: int, atoms: int, dropped: int) -> None:
        td, grad = torch.empty(critics, batch.size, 1), torch.empty(critics, batch.size, atoms)
        loss = torch.empty(1)
        self._result = CriticLoss(loss, td), (grad,)
        kept = batch.reward, batch.discount, batch.weight, td, grad, loss
        self._arrays = [tensor.numpy() for tensor in kept]
        self._pooled = np.empty((batch.size, critics, atoms), np.float32)
        self._sorted = self._pooled.reshape(batch.size, critics * atoms)
        self._read, self._dropped = Kept(arrays), dropped

    def __call__(
        self, outputs: tuple[Tensor], next_theta: Tensor, next_log_prob: Tensor, alpha: Tensor, _: Any
    ) -> tuple[CriticLoss, tuple[Tensor]]:
        """Loss and gradient at `theta`, in the same buffers at every call; arguments as of the formula."""
        theta, atoms, log_prob = self._read(outputs[0], next_theta, next_log_prob)
        np.copyto(self._pooled, atoms.swapaxes(0, 1))
        self._sorted.sort(axis=1)
        truncated_kernel(*(theta, self._sorted, log_prob, *self._arrays, float(alpha), self._dropped))
        return self._result


class MeanActorKernel:
    """Kernel for `output_gradients` of `tqc.actor_loss`, for B `size`, C `critics` and M `atoms`."""

    def __init__(self, size: int, critics: int, atoms: int) -> None:
        grad = torch.full((critics, size, atoms), -1.0 / (critics * size * atoms))
        grad_log_prob, loss = torch.empty(size, 1), torch.empty(1)
        self._result = ActorLoss(loss), (grad, grad_log_prob)
        self._arrays = [tensor.numpy() for tensor in (grad_log_prob, loss)]
        self._read = Kept(arrays)

    def __call__(
        self, outputs: tuple[Tensor, Tensor], alpha: Tensor
    ) -> tuple[ActorLoss, tuple[Tensor, Tensor]]:
        """Loss and gradients at `theta`, which are constant, and `log_prob`, in the same buffers at every call."""
        mean_actor_kernel(*(*self._read(*outputs), *self._arrays, float(alpha)))
        return self._result


@kernel(
    "void(float32[:, :, :], float32[:, ::1], float32[:, ::1], float32[::1], float32)",
)
def mean_actor_kernel(theta, log_prob, grad_log_prob, loss, alpha):  # type: ignore[no-untyped-def]
    """Fill the gradient `[B, 1]` at `log_prob` `[B, 1]`, and the loss `[1]` of the atoms `theta` `[C, B, M]`."""
    critics, size, atoms = theta.shape
    entropy, value = 0.0, 0.0
    for b in range(size):
        grad_log_prob[b, 0] = alpha / np.float32(size)
        entropy += log_prob[b, 0]
        for c in range(critics):
            for m in range(atoms):
                value += theta[c, b, m]
    loss[0] = alpha * entropy / size - value / (critics * size * atoms)


@kernel(
    "void(float32[:, :, :], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, :, ::1], float32[:, :, ::1], float32[::1], float32, int64)",
    fastmath={"reassoc", "contract"},
)
def truncated_kernel(  # type: ignore[no-untyped-def]
    theta, pooled, next_log_prob, reward, discount, weight, td, grad, loss, alpha, dropped
):
    """Fill errors of the means `td` `[C, B, 1]`, the gradient `grad` `[C, B, M]` at `theta`, and the loss `[1]`.

    `pooled` `[B, C M]` are the sorted atoms of the target critics and becomes the targets; the columns are `[B, 1]`.
    With c = clip(u, -1, 1), the Huber loss is c (u - c / 2) and its slope is c.
    """
    critics, size, atoms = grad.shape
    kept = critics * atoms - dropped
    inverse, share, total = _ONE / np.float32(atoms), _ONE / np.float32(kept), 0.0
    for b in range(size):
        target = pooled[b, :kept]
        bonus, mean = alpha * next_log_prob[b, 0], _ZERO
        for k in range(kept):
            target[k] = reward[b, 0] + discount[b, 0] * (target[k] - bonus)
            mean += target[k]
        scale = weight[b, 0] * share * inverse
        for c in range(critics):
            own = _ZERO
            for m in range(atoms):
                at = theta[c, b, m]
                own += at
                # Sums of slope and loss over all targets, and over targets above `at`.
                slope, slope_above, height, height_above = _ZERO, _ZERO, _ZERO, _ZERO
                for k in range(kept):
                    u = target[k] - at
                    clipped = _ONE if u > _ONE else u
                    clipped = -_ONE if clipped < -_ONE else clipped
                    huber = clipped * (u - _HALF * clipped)
                    slope += clipped
                    height += huber
                    slope_above += clipped if u > _ZERO else _ZERO
                    height_above += huber if u > _ZERO else _ZERO
                tau = (np.float32(m) + _HALF) * inverse
                below = _ONE - tau
                grad[c, b, m] = -scale * (tau * slope_above + below * (slope - slope_above))
                total += scale * (tau * height_above + below * (height - height_above))
            td[c, b, 0] = own * inverse - mean * share
    loss[0] = total
