"""From what critics say of a batch to the loss's gradient there: by tensors anywhere, by a kernel on the CPU.

Both do the same; a test holds them together.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncrl.algorithms.staging import StagedBatch
from asyncrl.losses.soft import clipped_target, smallest_gradient
from asyncrl.losses.soft_kernels import critic_gradient


class CriticHead(Protocol):
    """The losses of C critics, and of an actor that they judge, over B items.

    Attributes:
        td: `[C, B, 1]`, errors at the last `gradient`.
    """

    td: Tensor

    def gradient(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor | None, alpha: Tensor | None
    ) -> Tensor:
        """Gradient at `q`, the same buffer at every call.

        Of the critics' squared error in the first B rows of `q`; where it has 2 B, the rest are the actor's own
        actions, and the gradient is that of minus the mean of their smallest value.

        Args:
            q: `[C, B, 1]` or `[C, 2 B, 1]`.
            next_q: `[C, B, 1]`, of the target critics.
            next_log_prob: `[B, 1]`, of the actions of `next_q`, where entropy counts.
            alpha: scalar, weight of the entropy, with `next_log_prob`.
        """
        ...


def critic_head(staged: StagedBatch, critics: int, rows: int, kernels: bool | None = None) -> CriticHead:
    """The head for the batch's device, for `rows` rows of `q`; `kernels` says which one, None chooses."""
    on_host = staged.reward.device.type == "cpu" if kernels is None else kernels
    return (KernelCriticHead if on_host else TensorCriticHead)(staged, critics, rows)


class TensorCriticHead:
    """By tensor operations, on any device, without a wait. Implements `CriticHead`."""

    def __init__(self, staged: StagedBatch, critics: int, rows: int) -> None:
        self._staged = staged
        self.td = torch.zeros(critics, staged.size, 1, device=staged.reward.device)
        self._grad = torch.zeros(critics, rows, 1, device=staged.reward.device)

    def gradient(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor | None, alpha: Tensor | None
    ) -> Tensor:
        """See `CriticHead.gradient`."""
        staged, size = self._staged, self._staged.size
        target = clipped_target(staged.reward, staged.discount, next_q, alpha, next_log_prob)
        torch.sub(q[:, :size], target, out=self.td)
        torch.mul(self.td, staged.weight, out=self._grad[:, :size])
        if q.shape[1] > size:
            self._grad[:, size:] = smallest_gradient(q[:, size:], -1.0 / size)
        return self._grad


class KernelCriticHead:
    """By one kernel on the host's memory. Implements `CriticHead`."""

    def __init__(self, staged: StagedBatch, critics: int, rows: int) -> None:
        self.td = torch.zeros(critics, staged.size, 1)
        self._grad = torch.zeros(critics, rows, 1)
        self._slope = -1.0 / staged.size
        self._columns = [column.numpy() for column in (staged.reward, staged.discount, staged.weight)]
        self._filled = self.td.numpy(), self._grad.numpy()

    def gradient(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor | None, alpha: Tensor | None
    ) -> Tensor:
        """See `CriticHead.gradient`."""
        reward = self._columns[0]
        critic_gradient(
            q.numpy(),
            next_q.numpy(),
            reward if next_log_prob is None else next_log_prob.numpy(),
            *self._columns,
            0.0 if alpha is None else alpha.numpy()[()],
            self._slope,
            *self._filled,
        )
        return self._grad
