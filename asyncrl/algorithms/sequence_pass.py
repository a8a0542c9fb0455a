"""Sequences on the learner's device, and passes of a recurrent network over them, by autograd."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import NetworkInputs
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import EnvSpec, SequenceBatch, SequenceShape
from asyncrl.networks.architecture import Network
from asyncrl.networks.module import ModuleGradient, ModuleNetwork
from asyncrl.networks.recurrent import cut_pieces, state_behind, unroll


class SequenceRows:
    """Observations, states and actions of a `SequenceBatch` as tensors for B sequences.

    Rows are ordered sequence by sequence.

    Args:
        size: B.
        shape: shape of the sequences.
        spec: the environment. Observations in bytes are scaled to 0..1.
        device: device of the tensors.
        statistics: observation statistics, updated by every batch; None without normalisation.

    Attributes:
        size: B.
        state: `[B, state_size]`, the stored state.
        burn_in: `[B, burn_in, inputs]`, observations before the trained rows.
        burn_in_begins: bool `[B, burn_in]` on the host, True where an episode begins.
        x: `[B (T + n), inputs]`, observations of the trained rows and of the n rows used only to bootstrap.
        pieces: pieces of `x`.
        bootstrap: `[B T]` int64, row of `x` from whose value each row bootstraps.
        action: `[B T, 1]` int64.
        next_mask: `[B T, A]` bool, actions that are allowed in the bootstrap rows; None without action masks.
    """

    def __init__(
        self,
        size: int,
        shape: SequenceShape,
        spec: EnvSpec,
        device: torch.device,
        statistics: ObservationStatistics | None,
    ) -> None:
        self.size, self._shape, self._device = size, shape, device
        self._statistics = statistics
        self._inputs, self._mask = NetworkInputs(spec), mask_reader(spec)
        self._rows = np.empty((size * shape.rows, spec.observation_values), np.float32)
        self._first = np.arange(size)[:, None] * (shape.rows - shape.burn_in) - shape.burn_in
        self.next_mask: Tensor | None = None

    def stage(self, batch: SequenceBatch) -> None:
        """Copy the batch; no reference to it is kept."""
        burn_in = self._shape.burn_in
        seen, normalisation = self._inputs.rows(batch.obs, self._rows), None
        if self._statistics is not None:
            self._statistics.observe(seen)
            normalisation = self._statistics.normalisation
        self._inputs.fill(seen, self._rows, normalisation)
        rows = self._rows.reshape(self.size, self._shape.rows, -1)
        self.burn_in, self.x = self._on_device(rows[:, :burn_in]), self._on_device(rows[:, burn_in:])
        self.x = self.x.flatten(0, 1)
        self.state = self._on_device(batch.extras["state"])
        self.burn_in_begins = batch.begins[:, :burn_in].copy()
        self.pieces = cut_pieces(batch.begins[:, burn_in:], device=self._device)
        bootstrap = (self._first + batch.bootstrap).reshape(-1)
        self.bootstrap = self._on_device(bootstrap)
        if self._mask is not None:
            obs = batch.obs[:, burn_in:].reshape(-1, *batch.obs.shape[2:])
            self.next_mask = self._on_device(self._mask(obs[bootstrap]))
        self.action = self._column(batch.action)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _column(self, array: NDArray[Any]) -> Tensor:
        return self._on_device(array.reshape(-1, 1))


class SequencePass:
    """Pass of a network over the sequences of a staged batch: burn-in without gradient, then the rows after it.

    Args:
        module: the network.
        batch: the sequences; must be staged before every `forward`.
        gradient: flat gradient, filled by `backward`; None without a backward pass.
        precision: context that sets the precision of matrix products.

    Attributes:
        output: `[B (T + n), outputs]`, a new tensor after every `forward`.
    """

    output: Tensor

    def __init__(
        self,
        module: RecurrentModule,
        batch: SequenceRows,
        gradient: Tensor | None,
        precision: AbstractContextManager[None],
    ) -> None:
        self._module, self._batch, self._precision = module, batch, precision
        self._gradient = None if gradient is None else ModuleGradient(([module], gradient))
        self._graph = torch.empty(0)

    def forward(self) -> Tensor:
        """Run the network; return `output`, without a graph."""
        batch, module, state = self._batch, self._module, self._batch.state
        with torch.set_grad_enabled(self._gradient is not None), self._precision:
            if batch.burn_in.shape[1]:
                state = state_behind(module, batch.burn_in, state, batch.burn_in_begins)
            # Under autocast they are bfloat16, in which the inverse of the value rescaling has two digits.
            self._graph = module.head(unroll(module, batch.x, state, batch.pieces)).float()
        self.output = self._graph.detach()
        return self.output

    def backward(self, grad_output: Tensor) -> None:
        """Fill the gradient from the gradient of the loss `[B T, outputs]` at the outputs of the trained rows."""
        assert self._gradient is not None
        grad, size = torch.zeros_like(self._graph), self._batch.size
        own = grad_output.unflatten(0, (size, -1))
        grad.unflatten(0, (size, -1))[:, : own.shape[1]] = own
        with torch.enable_grad(), self._precision:
            self._gradient.fill(self._graph, grad)

    @property
    def trained(self) -> Tensor:
        """Outputs `[B T, outputs]` of the trained rows."""
        size = self._batch.size
        length = self._batch.action.shape[0] // size
        own: Tensor = self.output.unflatten(0, (size, -1))[:, :length]
        return own.flatten(0, 1)


def module_of(network: Network) -> RecurrentModule:
    """The module of a recurrent network."""
    assert isinstance(network, ModuleNetwork)
    (module,) = network.modules
    assert isinstance(module, RecurrentModule)
    return module


@torch.no_grad()
def outputs_without_memory(network: Network, obs: NDArray[np.float32], state_size: int) -> Tensor:
    """Outputs `[R, outputs]` of a recurrent network for `obs` `[R, inputs]`, with zero state."""
    rows = torch.from_numpy(obs).to(network.flat.device)
    outputs: Tensor = module_of(network)(rows, rows.new_zeros(rows.shape[0], state_size))[0]
    return outputs
