"""Update of R2D2: sequences on the learner's device, and passes of both networks over them, by autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import NetworkInputs
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.q_learning import QLearning, QLoss
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import EnvSpec, SequenceBatch, SequenceShape
from asyncrl.networks.architecture import Network
from asyncrl.networks.module import ModuleGradient, ModuleNetwork
from asyncrl.networks.recurrent import cut_pieces, state_behind, unroll


class R2D2Update(QLearningUpdate):
    """Learner of recurrent action values. Implements `SequenceUpdater`. See `QLearningUpdate`.

    Args:
        config, spec, device, seed, loss, values: see `QLearningUpdate`.
        shape: shape of the sequences.
    """

    def __init__(
        self,
        config: QLearning,
        spec: EnvSpec,
        device: str,
        seed: int,
        *,
        shape: SequenceShape,
        loss: Callable[..., QLoss],
        values: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(config, spec, device, seed, loss=loss, values=values)
        self._shape = shape

    def _staged(self, size: int) -> StagedSequences:
        return StagedSequences(
            size,
            self._shape,
            self.spec,
            self.device,
            reward_scale=self.config.reward_scale,
            bounds=self.bounds,
            statistics=self.statistics,
        )

    def _make_buffers(self, batch: Any) -> Any:
        online = SequencePass(_module_of(self._online), batch, self._gradient, self.precision)
        target = SequencePass(_module_of(self._target), batch, None, self.precision)
        return SequenceBuffers(batch, online, target, self.config.double)

    @torch.no_grad()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of `obs` `[R, inputs]`, with zero recurrent state; for tests and diagnostics."""
        cell, rows = self.layout.cell, torch.from_numpy(obs).to(self.device)
        assert cell is not None
        out, _ = _module_of(self._online)(rows, rows.new_zeros(rows.shape[0], cell.state_size))
        values: NDArray[np.float32] = self._values(self._by_action(out)).cpu().numpy()
        return values


class StagedSequences:
    """Arrays of a `SequenceBatch` as tensors for B sequences; rows are ordered sequence by sequence.

    Args:
        size: B.
        shape: shape of the sequences.
        spec: the environment. Observations in bytes are scaled to 0..1.
        device: device of the tensors.
        reward_scale: factor on the rewards.
        bounds: bounds of bootstrapped values, extended by every batch.
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
        reward, discount, weight, trained: `[B T, 1]` float32; weight is 0 in rows that are not trained on, and divided
            by B T elsewhere.
        low, high: scalars, the bounds, including this batch.
        next_mask: `[B T, A]` bool, actions that are allowed in the bootstrap rows; None without action masks.
    """

    def __init__(
        self,
        size: int,
        shape: SequenceShape,
        spec: EnvSpec,
        device: torch.device,
        reward_scale: float,
        bounds: ValueBounds,
        statistics: ObservationStatistics | None,
    ) -> None:
        self.size, self._shape, self._device = size, shape, device
        self._reward_scale, self._bounds, self._statistics = np.float32(reward_scale), bounds, statistics
        self._inputs, self._mask = NetworkInputs(spec), mask_reader(spec)
        self._rows = np.empty((size * shape.rows, spec.observation_values), np.float32)
        self._first = np.arange(size)[:, None] * (shape.rows - shape.burn_in) - shape.burn_in
        self._returned = np.empty(size, np.float32)
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
        reward = (batch.reward * self._reward_scale).reshape(-1)
        self._bounds.extend(reward, batch.discount.reshape(-1))
        self.low, self.high = self._on_device(self._bounds.values)
        self.reward, self.discount = self._column(reward), self._column(batch.discount)
        self.trained = self._column(batch.trained.astype(np.float32))
        self.weight = self._column(batch.trained * (batch.weight / np.float32(batch.trained.size))[:, None])

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _column(self, array: NDArray[Any]) -> Tensor:
        return self._on_device(array.reshape(-1, 1))

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        np.copyto(self._returned, values.view(-1).cpu().numpy())
        return self._returned


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
        batch: StagedSequences,
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


class SequenceBuffers:
    """Buffers of an update for one number of sequences, as `TransitionBuffers`."""

    def __init__(
        self, batch: StagedSequences, online: SequencePass, target: SequencePass, double: bool
    ) -> None:
        self.batch, self.stage, self.online, self.target = batch, batch.stage, online, target
        self._double = double
        self.grad = self.priorities = torch.empty(0)

    def loss_arguments(self) -> tuple[Any, ...]:
        """Outputs for the trained rows; target outputs and selecting outputs for the bootstrap rows; the batch."""
        batch, online = self.batch, self.online.output
        length = batch.action.shape[0] // batch.size
        out = online.unflatten(0, (batch.size, -1))[:, :length].flatten(0, 1)
        next_out = self.target.output.index_select(0, batch.bootstrap)
        selector = online.index_select(0, batch.bootstrap) if self._double else next_out
        return out, next_out, selector, batch


def _module_of(network: Network) -> RecurrentModule:
    assert isinstance(network, ModuleNetwork)
    (module,) = network.modules
    assert isinstance(module, RecurrentModule)
    return module
