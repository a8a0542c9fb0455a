"""Update of the DQN family: online and target network, noise, optimiser.

An algorithm defines its loss and the mean return of an action; both are pure functions of the outputs by action (see
`q_learning.by_action`). Autograd is used only for these functions, and on the CPU a kernel can replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.policies import QLayout
from asyncrl.algorithms.q_learning import QLearning, QLoss, by_action
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.envs.observations import mask_of
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.architecture import Architecture, Network, Pass
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import output_gradients
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.noisy import NoiseSource, NoisyMLP, NoisyModule, noisy_size
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy

_NOISY = (NoisyMLP, NoisyModule)


class QLearningUpdate(ReplayUpdate):
    """Learner of action values. See `ReplayUpdate`.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights and of the noise in them, which are the same on every device.
        loss: function of `(outputs, next_outputs, next_action, batch)`, outputs by action `[B, A]` or `[B, A, N]`.
        values: function from outputs by action to action values `[R, A]`.
        kernel: fills the loss's gradient and the priorities on the CPU (see `dqn_kernel`); None uses autograd.
    """

    config: QLearning

    STATE = (*ReplayUpdate.STATE, "_online", "_target", "_optimizer", "_noise")

    def __init__(
        self,
        config: QLearning,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        loss: Callable[[Tensor, Tensor, Tensor, StagedBatch], QLoss],
        values: Callable[[Tensor], Tensor],
        kernel: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(config, spec, device, config.acting_layout(spec))
        self.layout, self._loss, self._values, self._kernel = config.layout(spec), loss, values, kernel
        masked = mask_of(self.spec) is not None  # kernels ignore action masks
        self.kernels = kernel is not None and self.device.type == "cpu" and not masked
        with torch.no_grad():
            self._make_networks(seed)

    def _make_networks(self, seed: int) -> None:
        config, layout, sizes = self.config, self.layout, self.layout.sizes
        stream = config.hidden_sizes[-1]  # inputs of one output of the head, dueling or not
        architecture = Architecture(sizes, network=layout.module, seed=seed)
        start = architecture.initial(torch.Generator().manual_seed(seed), head_inputs=stream)
        if layout.noisy and layout.network is None:
            start = torch.cat((start, torch.zeros(noisy_size(sizes) - start.numel())))
            NoisyMLP(sizes, start).initialise_sigma(config.noisy_sigma, stream)
        flat = start.to(self.device, copy=True)
        self._gradient = torch.zeros_like(flat)
        self._masked: list[Tensor] = []
        if layout.dueling and layout.module is None:
            self._mask = _dueling_mask(layout, stream).to(self.device)
            self._masked = _heads_of(layout, self._gradient)
            for head in _heads_of(layout, flat):
                head.mul_(self._mask)
        self._online = self._network(architecture, flat)
        self._target = self._network(architecture, flat.clone())
        self._noise: NoiseSource | None = None
        if isinstance(self._online, _NOISY) and isinstance(self._target, _NOISY):
            (own,) = np.random.SeedSequence(seed).spawn(1)  # independent of the initial weights
            self._noise = NoiseSource((self._online, self._target), int(own.generate_state(1)[0]))
        self._to_host = HostCopy(flat)
        self._optimizer = FlatAdam(
            flat, self._gradient, eps=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        shared, buffers = (self.statistics, self.bounds), self._online.buffers()
        self.vector = FlatVector(flat, self._gradient, shared=shared, buffers=buffers)
        self.vector.moments = (self._optimizer.moments,)

    def _network(self, architecture: Architecture, flat: Tensor) -> Network:
        if not self.layout.noisy:
            return architecture.on(flat)
        if self.layout.network is None:
            return NoisyMLP(self.layout.sizes, flat)
        return NoisyModule(architecture.modules, flat)

    def _make_buffers(self, batch: Any) -> Any:
        size, rows = batch.size, batch.rows if self.config.double else batch.rows[: batch.size]
        return TransitionBuffers(
            batch,
            self._online.make_pass(rows, self._gradient, weight_rows=size, precision=self.precision),
            self._target.make_pass(batch.rows[size:], precision=self.precision),
            self.layout.sizes[-1],
        )

    def _update(self, buffers: Any) -> Tensor | None:
        config = self.config
        if self._noise is not None:
            self._noise.draw()
        self._optimizer.set_learning_rate(config.learning_rate_at(self._updates, self._progress))
        self._run(partial(self._compute, buffers))
        if config.target_update == "hard" and (self._updates + 1) % config.target_update_interval == 0:
            self._target.flat.copy_(self._online.flat)
        return buffers.priorities if config.prioritized else None

    def _compute(self, buffers: Any) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        buffers.online.forward()
        buffers.target.forward()
        if self.kernels and self._kernel is not None:
            out, next_out = buffers.online.output, buffers.target.output
            self._kernel(out.numpy(), next_out.numpy(), *buffers.arrays)
        else:
            out, *rest = buffers.loss_arguments()
            result, (buffers.grad,) = output_gradients(self._loss_of, (out,), *rest)
            buffers.priorities = result.priorities
        buffers.online.backward(buffers.grad)
        for head in self._masked:
            head.mul_(self._mask)
        self.vector.begin_step()
        self._optimizer.step(self._optimizer.learning_rate)
        if self.config.target_update == "soft":
            self._target.flat.lerp_(self._online.flat, self.config.tau)

    def _loss_of(self, out: Tensor, next_out: Tensor, selector: Tensor, batch: StagedBatch) -> QLoss:
        """Loss of the online network's outputs for obs; `selector` are the outputs that select the next action."""
        values = self._values(self._by_action(selector))
        if batch.next_mask is not None:
            values = values.masked_fill(~batch.next_mask, -torch.inf)
        best = values.argmax(dim=1, keepdim=True)
        return self._loss(self._by_action(out), self._by_action(next_out), best, batch)

    def _by_action(self, outputs: Tensor) -> Tensor:
        return by_action(outputs, self.config.atoms(), self.config.dueling)

    def _write_network(self, out: NDArray[np.float32]) -> None:
        """Copy the online network; if actors need only the mean output of an action, with the mean of its atoms."""
        if self._published == self.layout:
            self._to_host(out)
            return
        with torch.no_grad():
            (body, acting_body), heads = self._shared(torch.from_numpy(out))
            acting_body.copy_(body)
            for own, acting, atoms in heads:
                acting.copy_(own.mean(dim=atoms, keepdim=True))

    def _begin_network(self, flat: Tensor) -> None:
        """Copy `flat`; if the policy holds only an action's mean output, every atom is set to it."""
        if self._published == self.layout:
            self._online.flat.copy_(flat)
        else:
            (body, acting_body), heads = self._shared(flat)
            body.copy_(acting_body)
            for own, acting, _ in heads:
                own.copy_(acting)
        self._target.flat.copy_(self._online.flat)

    def _shared(self, acting: Tensor) -> tuple[tuple[Tensor, Tensor], list[tuple[Tensor, Tensor, int]]]:
        """Views of online and published network `acting`: all but the head, and weights and biases of the head.

        Those of the online head are unflattened by atom; the third item is the axis of the atoms.
        """
        own, small = FlatMLP(self.layout.sizes, self._online.flat), FlatMLP(self._published.sizes, acting)
        body = acting.numel() - small.head.numel() - small.head_bias.numel()
        by_atom = -1, self.layout.atoms
        return (own.flat[:body], acting[:body]), [
            (own.head.unflatten(1, by_atom), small.head.unsqueeze(2), 2),
            (own.head_bias.unflatten(2, by_atom), small.head_bias.unsqueeze(3), 3),
        ]

    @torch.no_grad()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of `obs` `[R, inputs]` without noise in the weights; for tests and diagnostics."""
        net = self._online.mean if isinstance(self._online, _NOISY) else self._online
        out = net.make_pass(torch.from_numpy(obs).to(self.device)).forward()
        values: NDArray[np.float32] = self._values(self._by_action(out)).cpu().numpy().copy()
        return values

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        buffers, norm = self._buffers, self._optimizer.grad_norm
        if buffers is None or norm is None:
            return None
        out, *rest = buffers.loss_arguments()
        return float(self._loss_of(out, *rest).loss), self._values(self._by_action(out)), float(norm)

    def _of_actions(self, q: Tensor, action: NDArray[Any]) -> Tensor | None:
        chosen = torch.from_numpy(action).to(q.device).reshape(-1, 1)
        return q.gather(1, chosen)[:, 0] if q.shape[0] == chosen.shape[0] else None

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """`ReplayUpdate.metrics`, and `train/noise`, the mean absolute standard deviation of noisy weights."""
        values = super().metrics()
        if len(values) > 1 and isinstance(self._online, _NOISY):
            return {**values, "train/noise": float(self._online.mean_sigma())}
        return values


class TransitionBuffers:
    """Buffers of an update for one batch size.

    Args:
        batch: batch on the device.
        online: pass over `[obs, next_obs]` (double Q-learning) or obs, with a gradient for obs.
        target: pass over next_obs.
        outputs: number of outputs of the networks.

    Attributes:
        grad: gradient of the loss at the first of `loss_arguments`.
        priorities: `[B, 1]`, as returned by the loss.
        arrays: on the CPU, a kernel's arguments after the outputs, see `dqn_kernel`.
    """

    def __init__(self, batch: StagedBatch, online: Pass, target: Pass, outputs: int) -> None:
        self.batch, self.stage, self.online, self.target = batch, batch.stage, online, target
        self.grad = batch.rows.new_empty(batch.size, outputs)
        self.priorities = batch.rows.new_empty(batch.size, 1)
        fields = batch.action, batch.columns, batch.limits, self.grad, self.priorities
        self.arrays = tuple(field.numpy() for field in fields) if self.grad.device.type == "cpu" else ()

    def loss_arguments(self) -> tuple[Any, ...]:
        """Outputs for obs, target outputs for next_obs, outputs that select the next action, and the batch."""
        out, next_out, size = self.online.output, self.target.output, self.batch.size
        return out[:size], next_out, out[size:] if out.shape[0] > size else next_out, self.batch


def _heads_of(layout: QLayout, vector: Tensor) -> list[Tensor]:
    """Views of the head's weights in a flat vector and, for a noisy network, of their standard deviations."""
    if not layout.noisy:
        return [FlatMLP(layout.sizes, vector).head]
    net = NoisyMLP(layout.sizes, vector)
    return [net.mean.head, net.sigma.head]


def _dueling_mask(layout: QLayout, stream: int) -> Tensor:
    """Mask `[outputs, inputs]` of a dueling head: value from the first stream, advantages from the second."""
    mask = torch.ones(layout.sizes[-1], layout.sizes[-2])
    mask[: layout.atoms, stream:] = 0.0
    mask[layout.atoms :, :stream] = 0.0
    return mask
