"""Base update of all actor-critic algorithms on replay: networks, targets, optimisers, metrics and state.

Actor, temperature and critics are consecutive parts of one flat vector, so that one call of Adam suffices unless the
options differ between parts. All gradients of an update are computed with the weights before the update, whereas the
papers' code updates the critics first and uses the new critics for the actor. The difference is one step of Adam, and
it allows one pass of the critics for both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import scaling
from asyncrl.algorithms.continuous import ContinuousControl
from asyncrl.algorithms.continuous_buffers import Buffers, Learned, Shape
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.saved_state import require_like
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import Batch, EnvSpec, UpdateResult
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy

_ALIGNED = 16
"""Float32 values in a cache line; the critics' part begins at a multiple of it."""

BuffersT = TypeVar("BuffersT", bound=Buffers)


class ContinuousUpdate(ABC, Generic[BuffersT]):
    """Actor, critics and optimisers of a learner of continuous actions. Implements `ReplayUpdater`.

    Learner thread only. The arrays of a batch are copied first. Everything after that runs on `device` without reading
    a value back; the only wait is for the new priorities, the means over critics of |TD error|. Importance weights
    apply to the critics' loss only.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights, which are the same on every device, and of the noise, which is not.
        shape: description of the networks.

    Attributes:
        config, device: as given.
        spec: the environment with stacked observations.
        layout: shape of the acting network.
        weight_count: number of float32 values that `write_weights` fills.
        precision: context that sets the precision of matrix products.
        policy, critics: the networks, on one flat vector.
        policy_gradient, critics_gradient: their flat gradients.
        target_policy: target network of `policy`, or None.
        target_critics: target networks of `critics`; `critics` itself without targets.
        log_alpha, log_alpha_gradient: logarithm of the temperature and its gradient, scalars.
        movable: `[d]`, 0 for action values of an empty range, which are staged as 0, else 1. The policy's own actions
            are multiplied by it.
        bounds: bounds of action values without an entropy bonus.
        vector: parameters and gradient of policy, temperature and critics.
        statistics: observation statistics; None without normalisation.
        generator: random generator of the noise; must be registered with a CUDA graph that captures an update.
    """

    _gradient_mode: type[torch.no_grad] | type[torch.inference_mode] = torch.no_grad
    """Context of an update. Autograd cannot use tensors of inference mode, but with kernels in place of autograd an
    update of 64x64 networks on 128 items is a tenth faster in it."""

    def __init__(
        self,
        config: ContinuousControl,
        spec: EnvSpec,
        device: str,
        seed: int,
        shape: Shape,
    ) -> None:
        self.config, self.spec, self.device = config, config.seen(spec), torch.device(device)
        self.layout = layout = config.layout(spec)
        self.weight_count = layout.weight_count
        self.precision = MatmulPrecision(config.matmul_precision, self.device)
        self.bounds = ValueBounds()
        self.statistics = ObservationStatistics(layout) if config.normalize_observations else None
        half_range = torch.from_numpy(scaling(layout.action)[1])
        self.movable = (half_range > 0).to(self.device, torch.float32)
        policy_network, critic_network = shape.networks or (layout.network, layout.network)
        hidden = config.critic_hidden_sizes or config.hidden_sizes
        sizes = (layout.inputs + layout.action_values, *hidden, shape.critic_outputs)
        with torch.no_grad():
            self._make_networks(
                Architecture(layout.sizes, network=policy_network, seed=seed),
                Architecture(sizes, shape.num_critics, network=critic_network, seed=seed),
                torch.Generator().manual_seed(seed),
            )
            self._make_targets(shape)
        self._optimizers = self._make_optimizers()
        self.vector.moments = tuple(adam.moments for adam in self._optimizers.values())
        where = "cuda" if self.device.type == "cuda" else "cpu"
        (own,) = np.random.SeedSequence(seed).spawn(1)
        self.generator = torch.Generator(where).manual_seed(int(own.generate_state(1)[0]))
        self._updates, self._progress, self._acting = 0, 0.0, False
        self._actor_loss: Tensor | float = math.nan
        self._learned: Learned | None = None
        self._buffers: BuffersT | None = None

    def _make_networks(self, policy: Architecture, critics: Architecture, generator: torch.Generator) -> None:
        end = policy.size
        start = -(-(end + 1) // _ALIGNED) * _ALIGNED
        flat = torch.zeros(start + critics.size)
        flat[:end], flat[start:] = policy.initial(generator), critics.initial(generator)
        self._flat = flat.to(self.device, copy=True)
        self._gradient = torch.zeros_like(self._flat)
        self.policy, self.critics = policy.on(self._flat[:end]), critics.on(self._flat[start:])
        self.policy_gradient, self.critics_gradient = self._gradient[:end], self._gradient[start:]
        self.log_alpha, self.log_alpha_gradient = self._flat[end], self._gradient[end]
        self._parts = {"policy": slice(end), "temperature": slice(end, start), "critics": slice(start, None)}
        self._to_host = HostCopy(self.policy.flat)
        shared = self.statistics, self.bounds
        self.vector = FlatVector(self._flat, self._gradient, self._parts["critics"], shared)

    def _make_targets(self, shape: Shape) -> None:
        count = self.critics.flat.numel()
        self._followed = self._flat if shape.has_target_policy else self._flat[self._parts["critics"]]
        self._target = self._followed.clone() if shape.has_targets else None
        self.target_policy: Network | None = None
        self.target_critics = self.critics
        if self._target is not None:
            self.target_critics = self.critics.on(self._target[-count:])
        if self._target is not None and shape.has_target_policy:
            self.target_policy = self.policy.on(self._target[self._parts["policy"]])

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """Make one optimiser for all parts, or one each if learning rates differ or with policy delay or clipping."""
        config = self.config
        same_rate = config.actor_learning_rate in (None, config.learning_rate)
        together = same_rate and config.policy_delay == 1 and config.max_grad_norm is None
        parts = {"all": slice(None)} if together else self._parts
        eps, norm = config.adam_eps, config.max_grad_norm
        return {
            name: FlatAdam(self._flat[at], self._gradient[at], eps=eps, max_grad_norm=norm)
            for name, at in parts.items()
        }

    @abstractmethod
    def _make_buffers(self, batch: StagedBatch) -> BuffersT:
        """Make the buffers and passes of an update on B transitions; `batch` is not filled yet."""

    @abstractmethod
    def _learn(self, buffers: BuffersT, acting: bool) -> Learned:
        """Fill the gradient, the actor's only if `acting`. The operations are the same for every batch."""

    def update(self, batch: Batch) -> UpdateResult:
        """Make one gradient step of the critics and, at every `policy_delay`-th update, of the actor.

        No reference to `batch` is kept. A nonfinite loss is not detected here, but shows in the priorities and in
        `metrics`.
        """
        buffers = self._buffers
        if buffers is None or buffers.size != batch.size:
            options = scaling(self.layout.action), self.config.reward_scale, self.bounds, self.statistics
            buffers = self._make_buffers(StagedBatch(batch.size, self.spec, self.device, *options))
            self._buffers = buffers
        with self._gradient_mode():
            learned = self._learned = self._update(buffers, batch)
            self._updates += 1
            if not self.config.prioritized:
                return UpdateResult(None)
            return UpdateResult(buffers.batch.on_host(learned.critic.td.abs().mean(dim=0)))

    def _update(self, buffers: BuffersT, batch: Batch) -> Learned:
        acting = self._acting = (self._updates + 1) % self.config.policy_delay == 0
        buffers.stage(batch)
        self._progress = batch.progress
        self.vector.begin_update()
        learned = self._learn(buffers, acting)
        if learned.actor_loss is not None:
            self._actor_loss = learned.actor_loss.detach()
        self._step(acting)
        if self._target is not None and (acting or self.target_policy is None):
            self._target.lerp_(self._followed, self.config.tau)
        return learned

    def _step(self, acting: bool) -> None:
        config, updates, progress = self.config, self._updates, self._progress
        self.vector.begin_step()
        for name, adam in self._optimizers.items():
            if name in ("all", "critics"):
                adam.step(config.learning_rate_at(updates, progress))
            elif acting:
                adam.step(config.actor_learning_rate_at(updates, progress))

    def draw(self, noise: Tensor) -> Tensor:
        """Fill `noise` with standard normal values and return it."""
        return noise.normal_(generator=self.generator)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the actor into `out` `[weight_count]`, in the order of the acting network."""
        if self.statistics is not None:
            self.statistics.write(out)
        self._to_host(out[: self.layout.network_count])

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """Losses, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value and `train/q_max` the largest absolute one, over all critics. The
        actor's loss is that of its last update; the norm includes its gradient only if the last update moved it. Waits
        for the device. Before the first update, only the learning rate.
        """
        values = {
            "train/learning_rate": self.config.learning_rate_at(max(self._updates - 1, 0), self._progress)
        }
        learned = self._learned
        if learned is None:
            return values
        if not math.isnan(actor_loss := float(self._actor_loss)):
            values["train/actor_loss"] = actor_loss
        moved = ("all", "critics", *(("policy", "temperature") if self._acting else ()))
        norms = [adam.grad_norm for name, adam in self._optimizers.items() if name in moved]
        return values | {
            "train/loss": float(learned.critic.loss.detach()),
            "train/q_mean": float(learned.q.mean()),
            "train/q_max": float(learned.q.abs().max()),
            "train/grad_norm": math.hypot(*(float(norm) for norm in norms if norm is not None)),
            **self.bounds.metrics(),
        }

    def _networks(self) -> dict[str, Network]:
        """Networks to save, by name."""
        networks = {"policy": self.policy, "critics": self.critics}
        if self.target_policy is not None:
            networks["target_policy"] = self.target_policy
        if self._target is not None:
            networks["target_critics"] = self.target_critics
        return networks

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Networks by name, temperature, optimisers, bounds, statistics, noise generator and counter, on the host."""
        running: dict[str, Any] = {"value_bounds": torch.from_numpy(self.bounds.values.copy())}
        if self.statistics is not None:
            running["observations"] = self.statistics.state_dict()
        return {
            **{name: network.named() for name, network in self._networks().items()},
            **running,
            "log_alpha": self.log_alpha.cpu().clone(),
            "optimizer": {name: adam.state_dict() for name, adam in self._optimizers.items()},
            "generator": self.generator.get_state(),
            "updates": self._updates,
            "actor_loss": float(self._actor_loss),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; training continues with the same numbers on the same kind of device.

        On another kind of device the noise continues from this learner's own seed: generators of CPU and GPU differ.

        Raises:
            ValueError: a part is missing or has another shape; nothing is written in that case.
        """
        own = self.state_dict()
        if self.config.entropy_in_values:  # states of earlier versions have no bounds
            state = {"value_bounds": own["value_bounds"], **state}
        require_like(state, {**own, "generator": None}, "state")
        for name, network in self._networks().items():
            network.load(state[name])
        self.bounds.values[:] = state["value_bounds"].numpy()
        if self.statistics is not None:
            self.statistics.load_state_dict(state["observations"])
        self.log_alpha.copy_(state["log_alpha"])
        for name, adam in self._optimizers.items():
            adam.load_state_dict(state["optimizer"][name])
        if state["generator"].shape == own["generator"].shape:
            self.generator.set_state(state["generator"])
        self._updates = int(state["updates"])
        self._actor_loss = float(state["actor_loss"])
