"""The learner's half of the DQN family: network and optimiser, without autograd (see `networks/mlp.py` for why).

What an output means and how it is trained is a head's business (`q_heads.py`), and noise in the weights that of
`networks/noisy.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.q_heads import QHead
from asyncrl.algorithms.q_learning import QLearning
from asyncrl.algorithms.saved_state import require_like
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import Batch, EnvSpec, UpdateResult
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.mlp import FlatMLP, HostCopy, MLPPass, initial_weights
from asyncrl.networks.noisy import NoiseSource, NoisyMLP, initial_sigma
from asyncrl.networks.optimizer import FlatAdam


class DQNCore:
    """Online and target network of one learner of action values. Implements `asyncrl.interfaces.LearnerCore`.

    Used from one thread, the learner's. The arrays of a batch are copied out of it first; everything after
    that runs on `device` without a look at a value, and the only wait is for the new priorities.

    Args:
        config: hyper-parameters.
        head: what the outputs mean and how they are trained.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and of the noise in them, which are the same on every device.
    """

    def __init__(
        self, config: QLearning, head: QHead, spec: EnvSpec, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config = config
        self.layout = config.layout(spec)
        self._acting = config.acting_layout(spec)
        self.weight_count = self._acting.weight_count
        self._same_layout = self._acting == self.layout
        self._head, self._spec = head, spec
        self._device = torch.device(device)
        self._precision = MatmulPrecision(config.matmul_precision, self._device)
        with torch.inference_mode():
            self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        config, layout = self.config, self.layout
        stream = config.hidden_sizes[-1]  # inputs of one output of the head, dueling or not
        start = initial_weights(layout.blocks, torch.Generator().manual_seed(seed), stream)
        self._mask: Tensor | None = None
        if config.dueling:
            self._mask = _head_mask(layout.blocks[-1], stream, layout.atoms)
            FlatMLP(layout.blocks, start).head.mul_(self._mask)
        if layout.noisy:
            sigma = initial_sigma(layout.blocks, config.noisy_sigma, stream)
            if self._mask is not None:
                FlatMLP(layout.noisy_blocks, sigma).head.mul_(self._mask)
            start = torch.cat((start, sigma))
        flat = start.to(self._device, copy=True)
        if self._mask is not None:
            self._mask = self._mask.to(self._device)
        self._online, self._target = self._network(flat), self._network(flat.clone())
        self._to_host = HostCopy(flat)
        gradient = torch.zeros_like(flat)
        self._gradient = FlatMLP(layout.blocks, gradient[: sum(r * c for r, c in layout.blocks)])
        self._adam = FlatAdam(flat, gradient, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
        self._noise = self._noise_source(seed) if layout.noisy else None
        self._bounds = ValueBounds()
        self._updates = 0
        self._work: _Work | None = None

    def _network(self, flat: Tensor) -> FlatMLP | NoisyMLP:
        blocks = self.layout.blocks
        return NoisyMLP(blocks, flat) if self.layout.noisy else FlatMLP(blocks, flat)

    def _noise_source(self, seed: int) -> NoiseSource:
        """Noise for online and target network, independent of the initial weights."""
        (own,) = np.random.SeedSequence(seed).spawn(1)
        return NoiseSource(2, self.layout.blocks, self._device, int(own.generate_state(1)[0]))

    @torch.inference_mode()
    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step; priorities are the head's where `prioritized`, else None.

        Nothing of `batch` is kept. A loss that is not finite is not looked for here; it shows in the
        priorities and in `metrics`.
        """
        work = self._work
        if work is None or work.batch.size != batch.size:
            work = self._work = _Work(batch.size, self)
        work.batch.stage(batch)
        self._compute(work)
        self._updates += 1
        if self.config.target_update == "hard" and self._updates % self.config.target_update_interval == 0:
            self._target.flat.copy_(self._online.flat)
        if not self.config.prioritized:
            return UpdateResult(None)
        return UpdateResult(work.batch.on_host(self._head.priorities()))

    def _compute(self, work: _Work) -> None:
        """Everything of an update that happens on the device; the same operations for every batch.

        What a head multiplies stays exact: there actors choose their actions by the same numbers.
        """
        if self._noise is not None:
            self._draw(self._noise.draw())
        with self._precision:
            out, next_out = work.online.forward(), work.target.forward()
        gradient = self._head.gradient(out, next_out, work.batch)
        with self._precision:
            work.online.backward(gradient)
        if self._mask is not None:
            self._gradient.head.mul_(self._mask)
        if isinstance(self._online, NoisyMLP):
            self._online.spread_gradient(self._gradient.flat)
        self._adam.step(self.config.learning_rate_at(self._updates))
        if self.config.target_update == "soft":
            self._target.flat.lerp_(self._online.flat, self.config.tau)

    def _draw(self, factors: Tensor) -> None:
        """Noise of this update, the same for all rows, for obs and next_obs, apart for online and target.

        Fortunato et al. 2018, section 3.1; there the network that chooses the next action for double Q-learning has
        a third draw, for which another pass over the weights would be needed.
        """
        for network, own in zip((self._online, self._target), factors, strict=True):
            assert isinstance(network, NoisyMLP)
            network.draw(own)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the online network into `out` `[weight_count]`, in the order of the acting layout.

        Where actors need only the mean of the outputs of an action, the head goes out as that mean.
        """
        if self._same_layout:
            self._to_host(out)
        else:
            self._write_means(out)

    @torch.inference_mode()
    def _write_means(self, out: NDArray[np.float32]) -> None:
        online, acting = _weights(self._online), FlatMLP(self._acting.blocks, torch.from_numpy(out))
        count = online.flat.numel() - online.head.numel()
        acting.flat[:count].copy_(online.flat[:count])
        acting.head.copy_(online.head.unflatten(0, (-1, self.layout.atoms)).mean(dim=1))

    @torch.inference_mode()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of `obs` `[R, inputs]` without noise in the weights; for tests and diagnosis."""
        rows = torch.ones(obs.shape[0], self.layout.inputs + 1, device=self._device)
        rows[:, :-1] = torch.from_numpy(obs)
        out = MLPPass(_weights(self._online), rows).forward()
        values: NDArray[np.float32] = self._head.values(out).cpu().numpy().copy()
        return values

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Loss, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value, `train/q_max` the largest absolute one, `train/value_low` and
        `train/value_high` are what rewards and gamma allow. Where the network is noisy, `train/noise` is the mean size
        of its standard deviations. Waits for the device. Before the first update there is only the learning rate.
        """
        values = {"train/learning_rate": self.config.learning_rate_at(max(self._updates - 1, 0))}
        work, norm = self._work, self._adam.grad_norm
        if work is None or norm is None:
            return values
        values["train/loss"] = float(self._head.loss(work.batch.weight))
        values["train/q_mean"] = float(self._head.q_mean())
        values["train/q_max"] = float(self._head.q_max())
        values["train/grad_norm"] = float(norm)
        values |= self._bounds.metrics()
        if isinstance(self._online, NoisyMLP):
            values["train/noise"] = float(self._online.sigma_mean())
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Both networks by layer name, Adam's moments, updates and the noise's state, as copies on the host."""
        state = {
            "online": self._online.named(),
            "target": self._target.named(),
            "optimizer": self._adam.state_dict(),
            "updates": self._updates,
            "value_bounds": torch.from_numpy(self._bounds.values.copy()),
        }
        return state if self._noise is None else state | {"noise": self._noise.state()}

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        But for rounding where C51 runs on a GPU (see `losses.distributional.project`).

        Raises:
            ValueError: a part is missing or has another shape; nothing has been written then.
        """
        require_like(state, self.state_dict(), "state")
        self._online.load(state["online"])
        self._target.load(state["target"])
        self._adam.load_state_dict(state["optimizer"])
        self._updates = int(state["updates"])
        self._bounds.values[:] = state["value_bounds"].numpy()
        if self._noise is not None:
            self._noise.load(state["noise"])


class _Work:
    """Buffers of an update for one batch size: the batch on the device, and the passes over it.

    Attributes:
        batch: on the device.
        online: pass over `[obs, next_obs]` (only obs without double Q-learning), with gradient for obs.
        target: pass over next_obs.
    """

    def __init__(self, size: int, core: DQNCore) -> None:
        self.batch = StagedBatch(
            size, core._spec, core._device, reward_scale=core.config.reward_scale, bounds=core._bounds
        )
        online, target = (
            net.drawn if isinstance(net, NoisyMLP) else net for net in (core._online, core._target)
        )
        rows = self.batch.rows if core.config.double else self.batch.rows[:size]
        self.online = MLPPass(online, rows, core._gradient, size)
        self.target = MLPPass(target, self.batch.rows[size:])


def _weights(network: FlatMLP | NoisyMLP) -> FlatMLP:
    """The means of a noisy network, or all there is of another."""
    return network.mean if isinstance(network, NoisyMLP) else network


def _head_mask(shape: tuple[int, int], stream: int, atoms: int) -> Tensor:
    """Ones where a dueling head has weights: value by first stream, advantages by second, biases."""
    mask = torch.ones(shape)
    mask[:atoms, stream:-1] = 0.0
    mask[atoms:, :stream] = 0.0
    return mask
