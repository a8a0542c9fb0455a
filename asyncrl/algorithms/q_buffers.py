"""Buffers of an update of the DQN family for one batch size."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from asyncrl.algorithms.staging import StagedBatch
from asyncrl.networks.architecture import Pass


class Buffers(Protocol):
    """Buffers of an update.

    Attributes:
        batch: batch on the device; has `size`, `stage` and `on_host`.
        online, target: passes of both networks over the batch.
        grad: gradient of the loss at the first of `loss_arguments`.
        priorities: `[B, 1]`, as returned by the loss.
        arrays: on the CPU, a kernel's arguments after the outputs, see `dqn_kernel`.
    """

    batch: Any
    online: Any
    target: Any
    grad: Tensor
    priorities: Tensor
    arrays: tuple[Any, ...]

    def loss_arguments(self) -> tuple[Any, ...]:
        """Outputs for obs, target outputs for next_obs, outputs that select the next action, and the batch."""
        ...


class TransitionBuffers:
    """Buffers for transitions. Implements `Buffers`.

    Args:
        batch: batch on the device.
        online: pass over `[obs, next_obs]` (double Q-learning) or obs, with a gradient for obs.
        target: pass over next_obs.
        outputs: number of outputs of the networks.
    """

    def __init__(self, batch: StagedBatch, online: Pass, target: Pass, outputs: int) -> None:
        self.batch, self.online, self.target = batch, online, target
        self.grad = batch.rows.new_empty(batch.size, outputs)
        self.priorities = batch.rows.new_empty(batch.size, 1)
        fields = batch.action, batch.columns, batch.limits, self.grad, self.priorities
        self.arrays = tuple(field.numpy() for field in fields) if self.grad.device.type == "cpu" else ()

    def loss_arguments(self) -> tuple[Any, ...]:
        """See `Buffers.loss_arguments`."""
        out, next_out, size = self.online.output, self.target.output, self.batch.size
        return out[:size], next_out, out[size:] if out.shape[0] > size else next_out, self.batch
