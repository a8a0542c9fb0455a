"""Minibatch of a rollout: the rows of one gradient step and the networks' outputs for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.on_policy_kernel import LossKernel, Outputs
from asyncrl.algorithms.rollout import Rollout, fill_inputs, forbid, rows_of_streams


class Part(NamedTuple):
    """Rows of one gradient step.

    Attributes:
        rows: `[R]` int64, indices of rows of a rollout.
        trained: those of the R rows that are trained on.
        samples: number of trained rows.
    """

    rows: NDArray[np.int64]
    trained: slice | NDArray[np.int64]
    samples: int


def parts_of_streams(rollout: Rollout, groups: Iterable[NDArray[np.int64]]) -> list[Part]:
    """Gradient steps over whole streams, one per group."""
    trained = rollout.trained
    found = []
    for streams in groups:
        own = np.flatnonzero(trained[streams])
        found.append(Part(rows_of_streams(streams, rollout.shape), own, own.size))
    return found


class Minibatch:
    """Buffers of a gradient step over R rows of a rollout.

    Attributes:
        part: rows of the last `forward`.
        choices: number of logits of each choice of an action; empty for a Gaussian.
        action: `[R, ...]`, actions of these rows.
        columns: `[C, R]` float32, per-row arguments of the loss; gathered from the rollout's columns, or set by an
            algorithm whose rollout has none.
        out, value, log_std: outputs of the networks at the last `forward`, `[R, outputs]`, `[R]` and `[d]`; `log_std`
            is a copy, which `apply` does not change.
    """

    part: Part
    out: Tensor
    value: Tensor

    def __init__(self, nets: ActorCritic, rollout: Rollout, size: int) -> None:
        self._nets, self.choices = nets, nets.layout.choices
        self._pass = nets.make_pass(size, gradient=True)
        self.action = rollout.action.new_zeros((size, *rollout.action.shape[1:]))
        self.columns = rollout.columns.new_zeros((len(rollout.names), size))
        self.log_std = nets.log_std.clone()
        self._kernel: LossKernel | None = None
        if nets.device.type == "cpu" and nets.layout.cell is None:  # the kernel assumes trained rows first
            self._kernel = LossKernel(self.action, self.choices, nets.layout.outputs)

    def forward(self, rollout: Rollout, part: Part, rows: Tensor) -> None:
        """Copy the rows of `part` (on the device: `rows`) and run both networks over them."""
        self.part = part
        rollout.place(self._pass, part.rows)
        if rollout.x.dtype == torch.uint8:
            fill_inputs(self._pass.x, rollout.x.index_select(0, rows), self._nets.byte_factor)
        else:
            torch.index_select(rollout.x, 0, rows, out=self._pass.x)
        torch.index_select(rollout.action, 0, rows, out=self.action)
        if rollout.names:
            torch.index_select(rollout.columns, 1, rows, out=self.columns)
        out, self.value = self._pass.forward()
        self.out = forbid(out, rollout.mask, rows)
        if not self.choices:
            self.log_std.copy_(self._nets.log_std)

    @property
    def outputs(self) -> Outputs:
        """`out`, `value` and `log_std`."""
        return self.out, self.value, self.log_std

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values` `[R]` over the trained rows, a scalar; 0 if all rows are RESET rows."""
        return values[self.part.trained].sum() / max(self.part.samples, 1)

    @property
    def has_kernel(self) -> bool:
        """Whether `kernel_gradients` can be used."""
        return self._kernel is not None

    def kernel_gradients(self, loss: tuple[float, float, float, float]) -> tuple[float, Outputs]:
        """Divergence and gradients of `LossKernel` at the outputs of the last `forward`."""
        assert self._kernel is not None
        return self._kernel(self.outputs, self.columns, self.part.samples, loss)

    def distribution(self, out: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the actions, `[R]` each, for these policy outputs."""
        return self._nets.distribution(out, self.action, log_std)

    def log_prob(self) -> Tensor:
        """Log-probabilities `[R]` of the actions at the last `forward`."""
        return self._nets.log_prob(self.out, self.action, self.log_std)

    def backward(self, gradients: Outputs) -> None:
        """Fill the networks' gradient from the gradients of the loss at `outputs`."""
        self._pass.backward(*gradients)
