"""Update of all actor-critic algorithms on replay: networks, targets, optimisers, buffers; and that of DDPG and TD3.

Actor, temperature and critics are consecutive parts of one flat vector, so that one call of Adam suffices unless the
options differ between parts. All gradients of an update are computed with the weights before the update, whereas the
papers' code updates the critics first and uses the new critics for the actor. The difference is one step of Adam, and
it allows one pass of the critics for both.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import BoxLayout, scaling
from asyncrl.acting.modules import NetworkFactory
from asyncrl.acting.schedules import value_at
from asyncrl.algorithms.continuous import CriticLoss, DeterministicActor, deterministic_actor_loss
from asyncrl.algorithms.continuous_kernel import ActorKernel, CriticKernel
from asyncrl.algorithms.maximum_entropy import MaximumEntropy
from asyncrl.algorithms.offline_actor_critic import OfflineActorCritic
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import Batch, EnvSpec
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import output_gradients
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy

_ALIGNED = 16
"""Float32 values in a cache line; the critics' part begins at a multiple of it."""
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Learned(NamedTuple):
    """Results of an update other than the gradient.

    Attributes:
        critic: loss and errors of the critics.
        q: values of the batch's actions, for the metrics.
        actor_loss: scalar; None if the actor was not updated.
    """

    critic: CriticLoss
    q: Tensor
    actor_loss: Tensor | None = None


def actor_learning_rate(
    config: DeterministicActor | MaximumEntropy | OfflineActorCritic, updates: int, progress: float
) -> float:
    """Learning rate of the actor at the update after `updates` others, at this progress of the run."""
    rate, own = config.learning_rate_at(updates, progress), config.actor_learning_rate
    if own is None:
        return rate
    if callable(own) or callable(config.learning_rate):
        return value_at(own, progress)
    return rate * own / config.learning_rate


class Buffers:
    """Inputs of an update for one batch size; an algorithm adds its passes.

    Args:
        batch: batch on the device.
        layout: layout of the actor.

    Attributes:
        batch, size: the batch and its size B.
        obs, next_obs: `[B, inputs]`, views of the batch.
        x: `[3 B, inputs + d]`, inputs of the critics: (obs, action), (obs, own action), (next_obs, own action).
        own_action, next_action: `[B, d]`, views of the last columns of `x`.
        learned: results of the last update with the actor and of the last one without it.
        priorities: `[B, 1]`, means over critics of |TD error|, if the replay is prioritized.
    """

    def __init__(self, batch: StagedBatch, layout: BoxLayout) -> None:
        self.batch, self.size, inputs = batch, batch.size, layout.inputs
        self.obs, self.next_obs = batch.rows.split(self.size)
        self.x = batch.rows.new_zeros(3 * self.size, inputs + layout.action_values)
        taken, self.own_action, self.next_action = self.x[:, inputs:].split(self.size)
        self.learned: dict[bool, Learned] = {}
        self.priorities = batch.rows.new_zeros(self.size, 1)
        self._copies = [
            (self.x[: self.size, :inputs], self.obs),
            (self.x[self.size :, :inputs], batch.rows),
            (taken, batch.action),
        ]

    def stage(self, batch: Batch) -> None:
        """Copy the batch; no reference to it is kept."""
        self.batch.stage(batch)
        for into, source in self._copies:
            into.copy_(source)


class ContinuousUpdate(ReplayUpdate):
    """Actor, critics and optimisers of a learner of continuous actions. See `ReplayUpdate`.

    The priorities are the means over critics of |TD error|. Importance weights apply to the critics' loss only.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device, and of the noise, which is not.

    Attributes:
        has_targets: whether there are target critics; of the class.
        has_target_policy: whether there is a target policy; of the class.
        layout, critic_layout: shapes of the acting network and of the critics.
        policy, critics: the networks, on one flat vector.
        policy_gradient, critics_gradient: their flat gradients.
        target_policy: target network of `policy`, or None.
        target_critics: target networks of `critics`; `critics` itself without targets.
        log_alpha, log_alpha_gradient: logarithm of the temperature and its gradient, scalars.
        movable: `[d]`, 0 for action values of an empty range, which are staged as 0, else 1. The policy's own actions
            are multiplied by it.
        generator: random generator of the noise.
    """

    config: DeterministicActor | MaximumEntropy | OfflineActorCritic
    has_targets = True
    has_target_policy = False
    STATE: tuple[str, ...] = (
        *ReplayUpdate.STATE,
        "policy",
        "critics",
        "log_alpha",
        "target_policy",
        "_optimizers",
        "generator",
        "last_actor_loss",
    )
    _beta1 = 0.9
    """Decay rate of Adam's first moment."""

    def __init__(
        self,
        config: DeterministicActor | MaximumEntropy | OfflineActorCritic,
        spec: EnvSpec,
        device: str,
        seed: int,
    ) -> None:
        self.layout = layout = config.layout(spec)
        super().__init__(config, spec, device, layout)
        self._scaling = scaling(layout.action)
        half_range = torch.from_numpy(self._scaling[1])
        self.movable = (half_range > 0).to(self.device, torch.float32)
        policy_network, critic_network = self._factories()
        self.critic_layout = critics = config.critic_layout(spec)
        with torch.no_grad():
            self._make_networks(
                Architecture(layout.sizes, network=policy_network, seed=seed),
                Architecture(critics.sizes, critics.copies, network=critic_network, seed=seed),
                torch.Generator().manual_seed(seed),
            )
            self._make_targets()
        self._optimizers = self._make_optimizers()
        self.vector.moments = tuple(adam.moments for adam in self._optimizers.values())
        (own,) = np.random.SeedSequence(seed).spawn(1)
        where = "cuda" if self.device.type == "cuda" else "cpu"
        self.generator = torch.Generator(where).manual_seed(int(own.generate_state(1)[0]))
        self._acting = False
        self._actor_loss: Tensor | float = math.nan
        self._learned: Learned | None = None

    def _factories(self) -> tuple[NetworkFactory | None, NetworkFactory | None]:
        """Factories of the policy and of a critic; None stands for a perceptron."""
        return self.layout.network, self.layout.network

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
        self._slices = {"policy": slice(end), "temperature": slice(end, start), "critics": slice(start, None)}
        self._to_host = HostCopy(self.policy.flat)
        shared = self.statistics, self.bounds
        buffers = *self.policy.buffers(), *self.critics.buffers()
        self.vector = FlatVector(self._flat, self._gradient, self._slices["critics"], shared, buffers)

    def _make_targets(self) -> None:
        count = self.critics.flat.numel()
        self._followed = self._flat if self.has_target_policy else self._flat[self._slices["critics"]]
        self._target = self._followed.clone() if self.has_targets else None
        self.target_policy: Network | None = None
        self.target_critics = self.critics
        if self._target is not None:
            self.target_critics = self.critics.on(self._target[-count:])
            self.STATE = (*self.STATE, "target_critics")
        if self._target is not None and self.has_target_policy:
            self.target_policy = self.policy.on(self._target[self._slices["policy"]])

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """Make one optimiser for all parts, or one each if learning rates differ or with policy delay or clipping."""
        config = self.config
        same_rate = config.actor_learning_rate in (None, config.learning_rate)
        together = same_rate and config.policy_delay == 1 and config.max_grad_norm is None
        parts = {"all": slice(None)} if together else self._slices
        eps, norm = config.adam_eps, config.max_grad_norm
        return {
            name: FlatAdam(self._flat[at], self._gradient[at], eps=eps, max_grad_norm=norm, beta1=self._beta1)
            for name, at in parts.items()
        }

    @abstractmethod
    def _draw_noise(self, buffers: Any) -> None:
        """Draw the noise of an update."""

    @abstractmethod
    def _learn(self, buffers: Any, acting: bool) -> Learned:
        """Fill the gradient, the actor's only if `acting`. The operations are the same for every batch."""

    def _variant(self, acting: bool) -> Hashable:
        """What decides the operations of `_learn`."""
        return acting

    def _update(self, buffers: Any) -> Tensor | None:
        """Make one gradient step of the critics and, at every `policy_delay`-th update, of the actor."""
        acting = self._acting = (self._updates + 1) % self.config.policy_delay == 0
        rate = self.config.learning_rate_at(self._updates, self._progress)
        for name, adam in self._optimizers.items():
            adam.set_learning_rate(rate if name in ("all", "critics") else self.actor_learning_rate)
        self._draw_noise(buffers)
        self._run(partial(self._compute, buffers, acting), self._variant(acting))
        learned = self._learned = buffers.learned[acting]
        if learned.actor_loss is not None:
            self._actor_loss = learned.actor_loss.detach()
        return buffers.priorities if self.config.prioritized else None

    def _compute(self, buffers: Any, acting: bool) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        learned = buffers.learned[acting] = self._learn(buffers, acting)
        self.vector.begin_step(part=slice(None) if acting else self._slices["critics"])
        for name, adam in self._optimizers.items():
            if acting or name == "critics":
                adam.step(adam.learning_rate)
        if self._target is not None and (acting or self.target_policy is None):
            self._target.lerp_(self._followed, self.config.tau)
        if self.config.prioritized:
            torch.mean(learned.critic.td.abs(), dim=0, out=buffers.priorities)

    @property
    def actor_learning_rate(self) -> float:
        """Learning rate of the actor at the next update."""
        return actor_learning_rate(self.config, self._updates, self._progress)

    @property
    def last_actor_loss(self) -> float:
        """Actor's loss at its last update, NaN before; waits for the device."""
        return float(self._actor_loss)

    @last_actor_loss.setter
    def last_actor_loss(self, loss: float) -> None:
        self._actor_loss = loss

    def draw(self, noise: Tensor) -> Tensor:
        """Fill `noise` with standard normal values and return it."""
        return noise.normal_(generator=self.generator)

    @torch.no_grad()
    def critic_weights(self) -> NDArray[np.float32]:
        """Weights of the critics, a copy `[C, P]` in the order of `critic_layout`."""
        weights: NDArray[np.float32] = self.critics.by_copy().numpy()
        return weights

    @torch.no_grad()
    def begin_with_critics(self, weights: NDArray[np.float32]) -> None:
        """Begin with what `critic_weights` returned, in the critics and their targets."""
        for critics in (self.critics, self.target_critics) if self.has_targets else (self.critics,):
            critics.load_copies(torch.from_numpy(weights))

    def _begin_network(self, flat: Tensor) -> None:
        self.policy.flat.copy_(flat)
        if self.target_policy is not None:
            self.target_policy.flat.copy_(flat)

    def metrics(self) -> Mapping[str, float]:
        """`ReplayUpdate.metrics`, and the actor's loss at its last update.

        The gradient norm includes the actor's gradient only if the last update moved it.
        """
        values = super().metrics()
        actor_loss = self.last_actor_loss
        if self._learned is None or math.isnan(actor_loss):
            return values
        return {**values, "train/actor_loss": actor_loss}

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        if self._learned is None:
            return None
        moved = ("all", "critics", *(("policy", "temperature") if self._acting else ()))
        norms = [adam.grad_norm for name, adam in self._optimizers.items() if name in moved]
        norm = math.hypot(*(float(norm) for norm in norms if norm is not None))
        return float(self._learned.critic.loss.detach()), self._learned.q, norm

    def _of_actions(self, q: Tensor, action: NDArray[Any]) -> Tensor | None:
        # Critics, rows, and quantiles if there are several.
        return q.flatten(2).mean(dim=(0, 2)) if q.shape[1] == len(action) else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Stateful`.

        On another kind of device the noise continues from this learner's own seed: generators of CPU and GPU differ.
        The optimisers may be one where they were several, or several where they were one: learning rates, policy delay
        and clipping may have changed.
        """
        own = self.generator.get_state()
        if "generator" in state and state["generator"].shape != own.shape:
            state = {**state, "generator": own}
        if isinstance(saved := state.get("optimizers"), Mapping) and saved.keys() != self._optimizers.keys():
            state = {**state, "optimizers": self._divided(saved)}
        super().load_state_dict(state)

    def _divided(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """State of the optimisers divided as they are here. Raises LookupError if a part is missing."""
        names = "exp_avg", "exp_avg_sq"
        if "all" in self._optimizers:
            # Its number of steps is that of the critics, which move in every update.
            whole = {name: torch.cat([saved[part][name] for part in self._slices]) for name in names}
            return {"all": whole | {"step": saved["critics"]["step"]}}
        step = {"step": saved["all"]["step"]}
        return {
            part: {name: saved["all"][name][at] for name in names} | step for part, at in self._slices.items()
        }


class DeterministicUpdate(ContinuousUpdate):
    """Actor and critics of TD3 or DDPG, and their targets. See `ContinuousUpdate`.

    Args:
        config, spec, device, seed: see `ContinuousUpdate`.
        critic_loss: function of `(q, next_q, batch)`, DDPG's or TD3's.
        smoothing: function from the target policy's action and standard normal noise to the smoothed action `[B, d]`;
            None disables smoothing.
        kernels: whether kernels compute the losses; None uses them on the CPU.
    """

    config: DeterministicActor | OfflineActorCritic
    has_target_policy = True

    def __init__(
        self,
        config: DeterministicActor | OfflineActorCritic,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        critic_loss: Callable[[Tensor, Tensor, StagedBatch], CriticLoss],
        smoothing: Callable[[Tensor, Tensor], Tensor] | None = None,
        kernels: bool | None = None,
    ) -> None:
        super().__init__(config, spec, device, seed)
        self.critic_loss, self._smoothing = critic_loss, smoothing
        self.kernels = self.device.type == "cpu" if kernels is None else kernels

    def _make_buffers(self, batch: StagedBatch) -> DeterministicBuffers:
        return DeterministicBuffers(batch, self)

    def _draw_noise(self, buffers: DeterministicBuffers) -> None:
        if self._smoothing is not None:
            self.draw(buffers.noise)

    def _learn(self, buffers: DeterministicBuffers, acting: bool) -> Learned:
        batch, movable = buffers.batch, self.movable
        next_action = buffers.target_policy.forward().tanh()
        if self._smoothing is not None:
            next_action = self._smoothing(next_action, buffers.noise)
        torch.mul(next_action, movable, out=buffers.next_action)
        next_q = buffers.target_critics.forward()
        if self.config.bound_targets:
            next_q = next_q.clamp(batch.low, batch.high)
        q = buffers.critics.forward()
        critic, (grad_q,) = buffers.critic_gradients((q,), next_q, batch)
        buffers.critics.backward(grad_q)
        if not acting:
            return Learned(critic, q)
        own_action = buffers.policy.forward().tanh()
        torch.mul(own_action, movable, out=buffers.own_action)
        loss, grad_action = self._actor_gradient(buffers)
        _tanh_backward(grad_action.mul_(movable), own_action, grad_input=buffers.grad_policy)
        buffers.policy.backward(buffers.grad_policy)
        return Learned(critic, q, loss)

    def _actor_gradient(self, buffers: DeterministicBuffers) -> tuple[Tensor, Tensor]:
        """The actor's loss, and its gradient at `own_action` `[B, d]`."""
        actor, (grad_q, *_) = buffers.actor_gradients((buffers.first_critic.forward(),))
        return actor.loss, buffers.first_critic.backward(grad_q)


class DeterministicBuffers(Buffers):
    """Passes of the update. See `Buffers`.

    Attributes:
        noise: `[B, d]`, standard normal noise of the last smoothing.
        grad_policy: `[B, d]`, gradient at the policy's outputs.
        policy, target_policy: passes over obs, with a gradient, and over next_obs.
        critics, target_critics: passes over the batch's actions, with a gradient, and over the target policy's.
        first_critic: pass over the policy's own actions, with a gradient at the actions. The actor's loss uses only
            this critic, as in the code of Fujimoto et al. 2018.
        critic_gradients, actor_gradients: `output_gradients` of the losses, or kernels.
    """

    def __init__(self, batch: StagedBatch, update: DeterministicUpdate) -> None:
        super().__init__(batch, update.layout)
        size = batch.size
        critics, precision = update.critics, update.precision
        self.noise = torch.zeros(size, update.layout.action_values, device=update.device)
        self.grad_policy = torch.zeros_like(self.noise)
        assert update.target_policy is not None
        self.policy = update.policy.make_pass(
            self.obs, update.policy_gradient, weight_rows=size, precision=precision
        )
        self.target_policy = update.target_policy.make_pass(self.next_obs, precision=precision)
        taken, own, following = self.x.split(size)
        self.critics = critics.make_pass(
            taken, update.critics_gradient, weight_rows=size, precision=precision
        )
        self.target_critics = update.target_critics.make_pass(following, precision=precision)
        columns = update.layout.action_values
        self.first_critic = critics.make_pass(
            own, input_rows=size, input_columns=columns, copies=1, precision=precision
        )
        self.critic_gradients: Callable[..., Any] = partial(output_gradients, update.critic_loss)
        self.actor_gradients: Callable[..., Any] = partial(output_gradients, deterministic_actor_loss)
        if update.kernels:
            self.critic_gradients = CriticKernel(self.batch, critics.copies)
            self.actor_gradients = ActorKernel(size, 1)
