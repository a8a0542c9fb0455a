"""Update of VDN and QMIX: the agents' network and the mixer, their target, and one optimiser.

The agents share one network. It and the mixer are consecutive parts of one flat vector, so that one call of Adam moves
both. Autograd runs from the loss through the mixer to the outputs of the agents' network, which continues by hand. A
recurrent network continues by autograd: an item is then a row of a joint sequence, and one backward pass goes through
all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.modules import MAKING, flat_size, tensors_of
from asyncrl.algorithms.joint_staging import JointSequenceStage, JointStage, of_state
from asyncrl.algorithms.q_learning import QLoss
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.sequence_pass import SequencePass, module_of, outputs_without_memory
from asyncrl.algorithms.value_decomposition import ValueDecomposition
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.module import ModuleNetwork
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy


class ValueDecompositionUpdate(ReplayUpdate):
    """Learner of joint action values. See `ReplayUpdate`.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device.
        loss: function of `(q_tot, next_q_tot, batch)`, both `[B, 1]`, of joint sequences `[B T, 1]`.
    """

    config: ValueDecomposition

    STATE = (
        *ReplayUpdate.STATE,
        "state_statistics",
        "_online",
        "_target",
        "_mixer",
        "_target_mixer",
        "_optimizer",
    )

    def __init__(
        self,
        config: ValueDecomposition,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        loss: Callable[[Tensor, Tensor, Any], QLoss],
    ) -> None:
        self.layout = config.layout(spec)
        super().__init__(config, spec, device, self.layout)
        self._loss = loss
        self.state_values, self.state_statistics = of_state(config, spec)
        with torch.no_grad():
            self._make_networks(seed)

    def _make_networks(self, seed: int) -> None:
        config, spec = self.config, self.spec
        architecture = Architecture(self.layout.sizes, network=self.layout.module, seed=seed)
        with MAKING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen = self.state_values or spec.num_agents * spec.observation_values
            mixer = config.make_mixer(spec.num_agents, seen)
        start = architecture.initial(torch.Generator().manual_seed(seed))
        parts = [start, *(tensor.detach().reshape(-1) for tensor in tensors_of([mixer]))]
        sizes = [start.numel(), flat_size([mixer])]
        self._flat = torch.cat(parts).to(self.device)
        self._target_flat, gradient = self._flat.clone(), torch.zeros_like(self._flat)
        (own, mixing), (target, target_mixing) = self._flat.split(sizes), self._target_flat.split(sizes)
        self._gradient, mixer_gradient = gradient.split(sizes)
        self._online, self._target = architecture.on(own), architecture.on(target)
        self._mixer = ModuleNetwork([mixer], mixing)
        self._target_mixer = self._mixer.on(target_mixing)
        self._mixer_parameters = [*self._mixer.modules[0].parameters()]
        counts = [parameter.numel() for parameter in self._mixer_parameters]
        self._mixer_gradients = mixer_gradient.split(counts) if counts else ()
        self._to_host = HostCopy(own)
        self._optimizer = FlatAdam(
            self._flat, gradient, eps=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        shared, buffers = (self.statistics, self.state_statistics, self.bounds), self._online.buffers()
        self.vector = FlatVector(self._flat, gradient, shared=shared, buffers=buffers)
        self.vector.moments = (self._optimizer.moments,)

    def _staged(self, size: int) -> JointStage | JointSequenceStage:
        shape = self.config.sequence_shape
        options: dict[str, Any] = {
            "spec": self.spec,
            "device": self.device,
            "reward_scale": self.reward_scale,
            "bounds": self.bounds,
            "statistics": self.statistics,
            "state_values": self.state_values,
            "state_statistics": self.state_statistics,
        }
        return JointStage(size, **options) if shape is None else JointSequenceStage(size, shape, **options)

    def _make_buffers(self, batch: JointStage | JointSequenceStage) -> JointBuffers | JointSequenceBuffers:
        if isinstance(batch, JointSequenceStage):
            return JointSequenceBuffers(batch, self)
        return JointBuffers(batch, self)

    def _update(self, buffers: JointBuffers | JointSequenceBuffers) -> Tensor | None:
        config = self.config
        buffers.online.forward()
        buffers.target.forward()
        next_q_tot = self._next_q_tot(buffers)
        with torch.enable_grad():
            out = buffers.out.detach().requires_grad_()
            q_tot = self._q_tot(out, buffers.batch)
            result = self._loss(q_tot, next_q_tot, buffers.batch)
            grad, *grads = torch.autograd.grad(result.loss, (out, *self._mixer_parameters))
        buffers.loss, buffers.q_tot = result.loss.detach(), q_tot.detach()
        buffers.online.backward(grad)
        for own, mixing in zip(self._mixer_gradients, grads, strict=True):
            own.view(mixing.shape).copy_(mixing)
        self.vector.begin_step()
        self._optimizer.step(config.learning_rate_at(self._updates, self._progress))
        if config.target_update == "soft":
            self._target_flat.lerp_(self._flat, config.tau)
        elif (self._updates + 1) % config.target_update_interval == 0:
            self._target_flat.copy_(self._flat)
        return result.priorities if config.prioritized else None

    def _q_tot(self, out: Tensor, batch: JointStage | JointSequenceStage) -> Tensor:
        """Q_tot(s, u; theta) of every item for the agents' outputs by row; an agent that waits has the value 0."""
        q = batch.by_item(out.gather(1, batch.action)) * batch.acts
        q_tot: Tensor = self._mixer.modules[0](q, batch.state)
        return q_tot

    def _next_q_tot(self, buffers: JointBuffers | JointSequenceBuffers) -> Tensor:
        """Q_tot(s', u'; theta-) of every item, u' of the online network for double Q-learning, else of the target."""
        batch, next_out = buffers.batch, buffers.target_out
        values = buffers.next_out if self.config.double else next_out
        if batch.next_mask is not None:
            values = values.masked_fill(~batch.next_mask, -torch.inf)
        best = values.argmax(dim=1, keepdim=True)
        q = batch.by_item(next_out.gather(1, best)) * batch.goes_on
        q_tot: Tensor = self._target_mixer.modules[0](q, batch.next_state)
        return q_tot

    def _begin_network(self, flat: Tensor) -> None:
        self._online.flat.copy_(flat)
        self._target.flat.copy_(flat)

    @torch.no_grad()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of an agent's `obs` `[R, inputs]`, with zero state; for tests and diagnostics."""
        cell = self.layout.cell
        if cell is not None:
            out = outputs_without_memory(self._online, obs, cell.state_size)
        else:
            out = self._online.make_pass(torch.from_numpy(obs).to(self.device)).forward()
        values: NDArray[np.float32] = out.cpu().numpy().copy()
        return values

    @torch.no_grad()
    def joint_values(
        self,
        obs: NDArray[np.float32],
        action: NDArray[np.int64],
        state: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Q_tot `[R]` of `action` `[R, N]` in `obs` `[R, N, inputs]`; for tests and diagnostics.

        `state` `[R, state_values]` is what the mixer sees, normalised; None are the observations.
        """
        values = self.action_values(obs.reshape(-1, obs.shape[2])).reshape(*action.shape, -1)
        q = np.take_along_axis(values, action[:, :, None], axis=2)[:, :, 0]
        seen = obs.reshape(len(obs), -1) if state is None else state
        mixed = self._mixer.modules[0](*(torch.from_numpy(x).to(self.device) for x in (q, seen)))
        found: NDArray[np.float32] = mixed[:, 0].cpu().numpy()
        return found

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        buffers, norm = self._buffers, self._optimizer.grad_norm
        if buffers is None or norm is None:
            return None
        return float(buffers.loss), buffers.q_tot, float(norm)


class JointBuffers:
    """Buffers of an update for one number of joint transitions.

    Attributes:
        batch: the batch on the device; `stage` fills it.
        online: pass over obs and next_obs (double Q-learning) or obs, with a gradient for obs.
        target: pass over next_obs.
        out, next_out: outputs `[B N, A]` of `online` for obs and next_obs.
        target_out: outputs `[B N, A]` of `target`.
        loss, q_tot: of the last update, a scalar and `[B, 1]`.
    """

    loss: Tensor
    q_tot: Tensor

    def __init__(self, batch: JointStage, update: ValueDecompositionUpdate) -> None:
        self.batch, self.stage = batch, batch.stage
        obs, next_obs = batch.rows.chunk(2)
        rows = batch.rows if update.config.double else obs
        self._count = obs.shape[0]
        self.online = update._online.make_pass(
            rows, update._gradient, weight_rows=self._count, precision=update.precision
        )
        self.target = update._target.make_pass(next_obs, precision=update.precision)

    @property
    def out(self) -> Tensor:
        """See the class docstring."""
        return self.online.output[: self._count]

    @property
    def next_out(self) -> Tensor:
        """See the class docstring."""
        return self.online.output[self._count :]

    @property
    def target_out(self) -> Tensor:
        """See the class docstring."""
        return self.target.output


class JointSequenceBuffers:
    """Buffers of an update for one number of joint sequences, as `JointBuffers`.

    Attributes:
        batch: the batch on the device; `stage` fills it.
        online: pass over the B N sequences, with a gradient for the trained rows.
        target: pass over the same rows.
        out: outputs `[B N T, A]` of `online` for the trained rows.
        next_out, target_out: outputs `[B N T, A]` of `online` and of `target` for the rows they bootstrap from.
        loss, q_tot: of the last update, a scalar and `[B T, 1]`.
    """

    loss: Tensor
    q_tot: Tensor

    def __init__(self, batch: JointSequenceStage, update: ValueDecompositionUpdate) -> None:
        self.batch, self.stage = batch, batch.stage
        online, target = module_of(update._online), module_of(update._target)
        self.online = SequencePass(online, batch.rows, update._gradient, update.precision)
        self.target = SequencePass(target, batch.rows, None, update.precision)

    @property
    def out(self) -> Tensor:
        """See the class docstring."""
        return self.online.trained

    @property
    def next_out(self) -> Tensor:
        """See the class docstring."""
        return self.online.output.index_select(0, self.batch.rows.bootstrap)

    @property
    def target_out(self) -> Tensor:
        """See the class docstring."""
        return self.target.output.index_select(0, self.batch.rows.bootstrap)
