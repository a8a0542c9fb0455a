"""Update shared by all algorithms with an actor and critics: networks, targets, optimisers, metrics and state.

Actor, temperature and critics lie one after the other in one flat vector, so that Adam is one call where nothing asks
for two. All gradients of an update are taken from the same weights, those before it; the papers' code updates the
critics first and shows the actor the new ones. The difference is one step of Adam, and one pass of the critics then
does for both.
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
"""Float32 values in a cache line; critics begin at a multiple."""

BuffersT = TypeVar("BuffersT", bound=Buffers)


class ContinuousUpdate(ABC, Generic[BuffersT]):
    """Networks of one learner of continuous actions. Implements `ReplayUpdater`.

    Used from one thread, the learner's. The arrays of a batch are copied out of it first; everything after that runs on
    `device` without reading a value back, and the only wait is for the new priorities: means over critics of
    |TD error|. Importance weights count for the critics; the actor learns from what was drawn.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights, which are the same on every device, and of the noise, which is not.
        shape: of the networks.

    Attributes:
        config, spec, device: as given.
        layout: shape of the acting network.
        weight_count: how many float32 values `write_weights` fills.
        precision: context for wide products.
        policy, critics: the networks, on one flat vector.
        policy_gradient, critics_gradient: their flat gradients.
        target_policy: follows `policy`; None without.
        target_critics: follow `critics`; these themselves without targets.
        log_alpha, log_alpha_gradient: logarithm of the temperature and its gradient, scalars.
        movable: `[d]`, 1, or 0 for values of an empty range. They are staged as 0; own actions are multiplied by it.
        bounds: of action values, or None where an entropy bonus has none.
        vector: parameters and gradient of policy, temperature and critics.
        statistics: of observations, or None where they are not normalised.
        generator: of the noise; a CUDA graph that holds an update must have it registered.
    """

    _gradient_mode: type[torch.no_grad] | type[torch.inference_mode] = torch.no_grad
    """Context of an update. Tensors of inference mode cannot enter autograd, but where kernels take the place of
    autograd, an update of 64x64 over 128 items is a tenth faster in it."""

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
        self.bounds = None if config.entropy_in_values else ValueBounds()
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
        """One for everything, or, where rates, delays or maximum gradient norms differ, one for each part."""
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
        """Buffers and passes of an update of B transitions; `batch` is empty yet."""

    @abstractmethod
    def _learn(self, buffers: BuffersT, acting: bool) -> Learned:
        """Fill the gradient; the actor's only where `acting`. The same operations for every batch."""

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step of the critics, and at every `policy_delay`-th of the actor.

        Nothing of `batch` is kept. Whether a loss is finite is not checked here; it shows in the priorities and in
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
        """Fill `noise` with standard normal values."""
        return noise.normal_(generator=self.generator)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the actor into `out` `[weight_count]`, in the order of the acting network."""
        if self.statistics is not None:
            self.statistics.write(out)
        self._to_host(out[: self.layout.network_count])

    @torch.no_grad()
    def metrics(self) -> Mapping[str, float]:
        """Losses, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value, `train/q_max` the largest absolute one, over all critics. The actor's
        loss is that of its last update, and its gradient counts in the norm only where it moved. Waits for the device.
        Before the first update there is only the learning rate.
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
            **({} if self.bounds is None else self.bounds.metrics()),
        }

    def _networks(self) -> dict[str, Network]:
        """What is saved, by name."""
        networks = {"policy": self.policy, "critics": self.critics}
        if self.target_policy is not None:
            networks["target_policy"] = self.target_policy
        if self._target is not None:
            networks["target_critics"] = self.target_critics
        return networks

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Networks by name, temperature, optimisers, the noise's generator and the counter, as copies on the host."""
        bounds: dict[str, Any] = {}
        if self.bounds is not None:
            bounds["value_bounds"] = torch.from_numpy(self.bounds.values.copy())
        if self.statistics is not None:
            bounds["observations"] = self.statistics.state_dict()
        return {
            **{name: network.named() for name, network in self._networks().items()},
            **bounds,
            "log_alpha": self.log_alpha.cpu().clone(),
            "optimizer": {name: adam.state_dict() for name, adam in self._optimizers.items()},
            "generator": self.generator.get_state(),
            "updates": self._updates,
            "actor_loss": float(self._actor_loss),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same kind of device.

        On another kind of device the noise goes on from this learner's own seed: generators of CPU and GPU differ.

        Raises:
            ValueError: a part is missing or has another shape; nothing has been written then.
        """
        own = self.state_dict()
        require_like(state, {**own, "generator": None}, "state")
        for name, network in self._networks().items():
            network.load(state[name])
        if self.bounds is not None:
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
