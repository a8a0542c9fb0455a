"""Update of behavioural cloning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from asyncrl.acting.box import BoxLayout, scaling
from asyncrl.acting.stochastic import ActorLayout
from asyncrl.algorithms.offline import Offline
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import Batch, EnvSpec
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import HasLoss, output_gradients
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy


class CloningUpdate(ReplayUpdate):
    """Policy of behavioural cloning. See `ReplayUpdate`.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device.
        layout: layout of the policy.
        loss: function from the network's outputs and the dataset's actions, as they are staged, to the loss; with
            action masks they are its third argument.

    Attributes:
        policy: the network.
        outputs: width of its head.
    """

    config: Offline
    STATE = (*ReplayUpdate.STATE, "policy", "_optimizer")

    def __init__(
        self,
        config: Offline,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        layout: BoxLayout | ActorLayout,
        loss: Callable[..., HasLoss],
    ) -> None:
        super().__init__(config, spec, device, layout)
        self._loss_of, self.outputs = loss, layout.sizes[-1]
        if isinstance(layout, BoxLayout):
            self._scaling = scaling(layout.action)
        architecture = Architecture(layout.sizes, network=layout.network, seed=seed)
        with torch.no_grad():
            flat = architecture.initial(torch.Generator().manual_seed(seed)).to(self.device, copy=True)
        self.policy, self._gradient = architecture.on(flat), torch.zeros_like(flat)
        self._optimizer = FlatAdam(
            flat, self._gradient, eps=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        self._to_host = HostCopy(flat)
        self._loss: Tensor | None = None
        self.vector = FlatVector(flat, self._gradient, buffers=self.policy.buffers())
        self.vector.moments = (self._optimizer.moments,)

    def _make_buffers(self, batch: StagedBatch) -> CloningBuffers:
        return CloningBuffers(batch, self)

    def _update(self, buffers: CloningBuffers) -> None:
        self._optimizer.set_learning_rate(self.config.learning_rate_at(self._updates, self._progress))
        self._run(partial(self._compute, buffers))

    def _compute(self, buffers: CloningBuffers) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        masks = () if buffers.mask is None else (buffers.mask,)
        out = buffers.policy.forward()
        result, (grad,) = output_gradients(self._loss_of, (out,), buffers.batch.action, *masks)
        self._loss = result.loss.detach()
        buffers.policy.backward(grad)
        self.vector.begin_step()
        self._optimizer.step(self._optimizer.learning_rate)

    def _begin_network(self, flat: Tensor) -> None:
        self.policy.flat.copy_(flat)

    def _last_update(self) -> tuple[float, Tensor | None, float] | None:
        norm = self._optimizer.grad_norm
        return None if self._loss is None or norm is None else (float(self._loss), None, float(norm))


class CloningBuffers:
    """The batch on the device, and the pass over its observations.

    Attributes:
        mask: `[B, A]` bool, choices of all parts of an action that are allowed at obs; None without action masks.
    """

    def __init__(self, batch: StagedBatch, update: CloningUpdate) -> None:
        self.batch, self._mask = batch, mask_reader(update.spec)
        self.mask: Tensor | None = None
        if self._mask is not None:
            self.mask = torch.ones(batch.size, update.outputs, dtype=torch.bool, device=batch.rows.device)
        rows = batch.rows[: batch.size]
        self.policy = update.policy.make_pass(
            rows, update._gradient, weight_rows=batch.size, precision=update.precision
        )

    def stage(self, batch: Batch) -> None:
        """Copy the batch; no reference to it is kept."""
        self.batch.stage(batch)
        if self._mask is not None and self.mask is not None:
            self.mask.copy_(torch.from_numpy(self._mask(batch.obs)))
