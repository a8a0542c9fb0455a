"""Update of R2D2: passes of online and target network over the sequences of a batch, by autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.algorithms.q_learning import QLearning, QLoss
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.algorithms.sequence_staging import StagedSequences
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.architecture import Network
from asyncrl.networks.module import ModuleGradient, ModuleNetwork
from asyncrl.networks.recurrent import state_behind, unroll
from asyncrl.sequences import SequenceShape


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
        options = self.config.reward_scale, self.bounds, self.statistics
        return StagedSequences(size, self._shape, self.spec, self.device, *options)

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
        chooser = online.index_select(0, batch.bootstrap) if self._double else next_out
        return out, next_out, chooser, batch


def _module_of(network: Network) -> RecurrentModule:
    assert isinstance(network, ModuleNetwork)
    (module,) = network.modules
    assert isinstance(module, RecurrentModule)
    return module
