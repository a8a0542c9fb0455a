"""Update of the DQN family: online and target network, noise, optimiser, metrics and state.

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

from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.q_buffers import Buffers, TransitionBuffers
from asyncrl.algorithms.q_heads import dueling_mask, heads_of, write_mean_head
from asyncrl.algorithms.q_learning import QLearning, QLoss, by_action
from asyncrl.algorithms.saved_state import require_like
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_of
from asyncrl.interfaces import Batch, EnvSpec, UpdateResult
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import output_gradients
from asyncrl.networks.graph import GraphedFunction
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.noisy import NoiseSource, NoisyMLP, NoisyModule, noisy_size
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy
from asyncrl.sequences import SequenceBatch

_NOISY = (NoisyMLP, NoisyModule)


class QLearningUpdate:
    """Learner of action values. Implements `ReplayUpdater`.

    Learner thread only. The arrays of a batch are copied first. Everything after that runs on `device` without reading
    a value back; the only wait is for the new priorities.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights and of the noise in them, which are the same on every device.
        loss: function of `(outputs, next_outputs, next_action, batch)`, outputs by action `[B, A]` or `[B, A, N]`.
        values: function from outputs by action to action values `[R, A]`.
        kernel: fills the loss's gradient and the priorities on the CPU (see `dqn_kernel`); None uses autograd.

    Attributes:
        vector: parameters and gradient of the online network.
    """

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
        self.config, self.layout = config, config.layout(spec)
        self._spec, self._device = config.seen(spec), torch.device(device)
        self._loss, self._values = loss, values
        masked = mask_of(self._spec) is not None  # kernels ignore action masks
        self._kernel = kernel if self._device.type == "cpu" and not masked else None
        self._precision = MatmulPrecision(config.matmul_precision, self._device)
        self._acting = config.acting_layout(spec)
        self.weight_count = self._acting.weight_count
        self._bounds, self._updates, self._progress = ValueBounds(), 0, 0.0
        self._statistics = ObservationStatistics(self._acting) if config.normalize_observations else None
        self._buffers: Buffers | None = None
        self._graphed: Callable[[], None]
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
        flat = start.to(self._device, copy=True)
        self._gradient = torch.zeros_like(flat)
        self._masked: list[Tensor] = []
        if layout.dueling and layout.module is None:
            self._mask = dueling_mask(layout, stream).to(self._device)
            self._masked = heads_of(layout, self._gradient)
            for head in heads_of(layout, flat):
                head.mul_(self._mask)
        self._online = self._network(architecture, flat)
        self._target = self._network(architecture, flat.clone())
        self._noise: NoiseSource | None = None
        if isinstance(self._online, _NOISY) and isinstance(self._target, _NOISY):
            (own,) = np.random.SeedSequence(seed).spawn(1)  # independent of the initial weights
            self._noise = NoiseSource((self._online, self._target), int(own.generate_state(1)[0]))
        self._to_host = HostCopy(flat)
        self.vector = FlatVector(flat, self._gradient, shared=(self._statistics, self._bounds))
        self._adam = FlatAdam(flat, self._gradient, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
        self.vector.moments = (self._adam.moments,)

    def _network(self, architecture: Architecture, flat: Tensor) -> Network:
        if not self.layout.noisy:
            return architecture.on(flat)
        if self.layout.network is None:
            return NoisyMLP(self.layout.sizes, flat)
        return NoisyModule(architecture.modules, flat)

    def update(self, batch: Batch | SequenceBatch) -> UpdateResult:
        """Make one gradient step; the result holds the loss's priorities if `prioritized`, else None.

        No reference to `batch` is kept. A nonfinite loss is not detected here, but shows in the priorities and in
        `metrics`.
        """
        buffers = self._buffers
        if buffers is None or buffers.batch.size != batch.size:
            buffers = self._buffers = self._make_buffers(batch.size)
            self._graphed = GraphedFunction(partial(self._compute, buffers), self._device)
        buffers.batch.stage(batch)
        self._progress = batch.progress
        # Inference mode is faster, but its tensors cannot be used by autograd.
        with torch.no_grad() if self._kernel is None else torch.inference_mode():
            self.vector.begin_update()
            if self._noise is not None:
                self._noise.draw()
            self._adam.set_learning_rate(self.config.learning_rate_at(self._updates, self._progress))
            if self.config.cuda_graph and self.vector.on_step is None:
                self._graphed()
            else:
                self._compute(buffers)
            self._updates += 1
            if (
                self.config.target_update == "hard"
                and self._updates % self.config.target_update_interval == 0
            ):
                self._target.flat.copy_(self._online.flat)
            priorities = buffers.batch.on_host(buffers.priorities) if self.config.prioritized else None
        return UpdateResult(priorities)

    @torch.no_grad()
    def _make_buffers(self, size: int) -> Buffers:
        batch = StagedBatch(
            *(size, self._spec, self._device),
            reward_scale=self.config.reward_scale,
            bounds=self._bounds,
            statistics=self._statistics,
        )
        rows = batch.rows if self.config.double else batch.rows[:size]
        return TransitionBuffers(
            batch,
            self._online.make_pass(rows, self._gradient, weight_rows=size, precision=self._precision),
            self._target.make_pass(batch.rows[size:], precision=self._precision),
            self.layout.sizes[-1],
        )

    def _compute(self, buffers: Buffers) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        buffers.online.forward()
        buffers.target.forward()
        if self._kernel is not None:
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
        self._adam.step(self._adam.learning_rate)
        if self.config.target_update == "soft":
            self._target.flat.lerp_(self._online.flat, self.config.tau)

    def _loss_of(self, out: Tensor, next_out: Tensor, chooser: Tensor, batch: StagedBatch) -> QLoss:
        """Loss of the online network's outputs for obs; `chooser` are the outputs that select the next action."""
        values = self._values(self._by_action(chooser))
        if batch.next_mask is not None:
            values = values.masked_fill(~batch.next_mask, -torch.inf)
        best = values.argmax(dim=1, keepdim=True)
        return self._loss(self._by_action(out), self._by_action(next_out), best, batch)

    def _by_action(self, outputs: Tensor) -> Tensor:
        return by_action(outputs, self.config.atoms(), self.config.dueling)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the online network into `out` `[weight_count]`, in the order of the acting layout.

        If actors need only the mean output of an action, the head's weights are averaged over the outputs.
        """
        if self._statistics is not None:
            self._statistics.write(out)
        out = out[: self._acting.network_count]
        if self._acting == self.layout:
            self._to_host(out)
            return
        with torch.no_grad():
            write_mean_head(
                self.layout, self._online.flat, FlatMLP(self._acting.sizes, torch.from_numpy(out))
            )

    @torch.no_grad()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of `obs` `[R, inputs]` without noise in the weights; for tests and diagnostics."""
        net = self._online.mean if isinstance(self._online, _NOISY) else self._online
        out = net.make_pass(torch.from_numpy(obs).to(self._device)).forward()
        values: NDArray[np.float32] = self._values(self._by_action(out)).cpu().numpy().copy()
        return values

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """Loss, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value and `train/q_max` the largest absolute one. `train/value_low` and
        `train/value_high` are the bounds of `value_bounds`. With a noisy network, `train/noise` is the mean absolute
        standard deviation of its weights. Waits for the device. Before the first update, only the learning rate.
        """
        values = {
            "train/learning_rate": self.config.learning_rate_at(max(self._updates - 1, 0), self._progress)
        }
        buffers, norm = self._buffers, self._adam.grad_norm
        if buffers is None or norm is None:
            return values
        out, *rest = buffers.loss_arguments()
        q = self._values(self._by_action(out))
        values["train/loss"] = float(self._loss_of(out, *rest).loss)
        values["train/q_mean"] = float(q.mean())
        values["train/q_max"] = float(q.abs().max())
        values["train/grad_norm"] = float(norm)
        values |= self._bounds.metrics()
        if isinstance(self._online, _NOISY):
            values["train/noise"] = float(self._online.mean_sigma())
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Both networks by name, Adam's state, counters, bounds, statistics and noise state, as copies on the host."""
        state = {
            "online": self._online.named(),
            "target": self._target.named(),
            "optimizer": self._adam.state_dict(),
            "updates": self._updates,
            "value_bounds": torch.from_numpy(self._bounds.values.copy()),
        }
        if self._statistics is not None:
            state["observations"] = self._statistics.state_dict()
        return state if self._noise is None else state | {"noise": self._noise.state()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; training continues with the same numbers on the same device.

        The exception is C51 on a GPU, where rounding differs (see `c51.project`).

        Raises:
            ValueError: a part is missing or has another shape; nothing is written in that case.
        """
        require_like(state, self.state_dict(), "state")
        self._online.load(state["online"])
        self._target.load(state["target"])
        self._adam.load_state_dict(state["optimizer"])
        self._updates = int(state["updates"])
        self._bounds.values[:] = state["value_bounds"].numpy()
        if self._statistics is not None:
            self._statistics.load_state_dict(state["observations"])
        if self._noise is not None:
            self._noise.load(state["noise"])
