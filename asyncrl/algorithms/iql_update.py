"""Update of implicit Q-learning.

Actor, value network and critics are consecutive parts of one flat vector. All gradients of an update are computed with
the weights before it, as in `continuous_update.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import scaling
from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.offline_actor_critic import OfflineActorCritic
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import RESET, Batch, EnvSpec
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import HasLoss, output_gradients
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy

RETURN_SPAN = 1_000.0
"""Difference between the highest and the lowest return of the dataset, with normalised rewards."""


class Losses(NamedTuple):
    """Losses of an update, scalars, and the values of the batch's actions `[C, B, 1]`."""

    critic: Tensor
    value: Tensor
    actor: Tensor
    q: Tensor


class IQLUpdate(ReplayUpdate):
    """Actor, value network and critics of IQL. See `ReplayUpdate`.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device.
        value_loss: function of `(v, target_q)`.
        critic_loss: function of `(q, next_v, batch)`.
        policy_loss: function of `(out, log_std, taken, advantage)`.
        actor_rate: learning rate of the actor, a function of progress.
        normalize_rewards: whether rewards are scaled by `reward_scale` of the dataset.

    Attributes:
        layout, critic_layout: shapes of the acting network and of the critics.
        policy, value, critics: the networks, on one flat vector.
        log_std: `[d]`, log standard deviations of the actor.
        target_critics: targets of the critics.
    """

    config: OfflineActorCritic
    STATE = (
        *ReplayUpdate.STATE,
        *("policy", "log_std", "value", "critics", "target_critics", "_optimizers", "_factor_of_critics"),
    )
    _factor_of_critics: float | None = None
    """Factor on rewards of critics that were taken over, until they have that of the run."""

    def __init__(
        self,
        config: OfflineActorCritic,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        value_loss: Callable[[Tensor, Tensor], HasLoss],
        critic_loss: Callable[[Tensor, Tensor, StagedBatch], CriticLoss],
        policy_loss: Callable[[Tensor, Tensor, Tensor, Tensor], ActorLoss],
        actor_rate: Callable[[float], float],
        normalize_rewards: bool,
    ) -> None:
        layout = config.layout(spec)
        super().__init__(config, spec, device, layout)
        self._value_loss, self._critic_loss, self._policy_loss = value_loss, critic_loss, policy_loss
        self._actor_rate, self._normalize_rewards = actor_rate, normalize_rewards
        self.layout, self._scaling = layout, scaling(layout.action)
        self.critic_layout = critics = config.critic_layout(spec)
        with torch.no_grad():
            self._make_networks(
                Architecture(layout.sizes, network=layout.network, seed=seed),
                Architecture((layout.inputs, *critics.hidden, 1), network=layout.network, seed=seed + 1),
                Architecture(critics.sizes, critics.copies, network=layout.network, seed=seed),
                torch.Generator().manual_seed(seed),
            )
        self._losses: Losses | None = None

    def _make_networks(
        self, policy: Architecture, value: Architecture, critics: Architecture, generator: torch.Generator
    ) -> None:
        config, actions = self.config, self.layout.action_values
        sizes = [policy.size, actions, value.size, critics.size]
        parts = [made.initial(generator) for made in (policy, value, critics)]
        flat = torch.cat([parts[0], torch.zeros(actions), *parts[1:]]).to(self.device)
        gradient = torch.zeros_like(flat)
        own, self.log_std, of_value, of_critics = flat.split(sizes)
        self._gradients = gradient.split(sizes)
        self.policy, self.value, self.critics = policy.on(own), value.on(of_value), critics.on(of_critics)
        self.target_critics = critics.on(of_critics.clone())
        actor, rest = slice(policy.size + actions), slice(policy.size + actions, None)
        self._optimizers = {
            name: FlatAdam(flat[at], gradient[at], eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
            for name, at in (("actor", actor), ("critics", rest))
        }
        buffers = [view for network in (self.policy, self.value, self.critics) for view in network.buffers()]
        self.vector = FlatVector(flat, gradient, buffers=buffers)
        self.vector.moments = tuple(adam.moments for adam in self._optimizers.values())
        self._to_host = HostCopy(self.policy.flat)

    def observe_dataset(
        self, obs: NDArray[Any], reward: NDArray[np.float32], flags: NDArray[np.uint8]
    ) -> None:
        """See `ReplayUpdate.observe_dataset`; with `normalize_rewards` the rewards get their scale.

        Critics that were taken over get the unit of this factor. An own network whose outputs cannot be multiplied
        keeps its unit, and the run its factor.
        """
        super().observe_dataset(obs, reward, flags)
        if self._normalize_rewards:
            self.reward_scale.factor = reward_scale(reward, flags)
        if (before := self._factor_of_critics) is not None:
            ratio, inputs = self.reward_scale.factor / before, self.critic_layout.sizes[0]
            # Both have the same modules, so that both can be multiplied or none.
            if all(net.scale_outputs(ratio, inputs) for net in (self.critics, self.target_critics)):
                self._factor_of_critics = None
            else:
                self.reward_scale.factor = before

    def begin_with_reward_scale(self, factor: float, env_steps: int) -> None:
        """Keep the factor of the critics that were taken over until the dataset decides that of the run."""
        del env_steps  # of `OnPolicyUpdate`
        self._factor_of_critics = factor

    @property
    def learned_reward_scale(self) -> float:
        """See `ReplayUpdate`; that of critics that were taken over, until they are multiplied."""
        return self.reward_scale.factor if self._factor_of_critics is None else self._factor_of_critics

    def _make_buffers(self, batch: StagedBatch) -> IQLBuffers:
        return IQLBuffers(batch, self)

    def _update(self, buffers: IQLBuffers) -> None:
        self._optimizers["actor"].set_learning_rate(self._actor_rate(self._progress))
        rate = self.config.learning_rate_at(self._updates, self._progress)
        self._optimizers["critics"].set_learning_rate(rate)
        self._run(partial(self._compute, buffers))

    def _compute(self, buffers: IQLBuffers) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        self._losses = self._learn(buffers)
        self.vector.begin_step()
        for adam in self._optimizers.values():
            adam.step(adam.learning_rate)
        self.target_critics.flat.lerp_(self.critics.flat, self.config.tau)

    def _learn(self, buffers: IQLBuffers) -> Losses:
        """Fill the gradient."""
        batch, size = buffers.batch, buffers.batch.size
        target_q = buffers.target_critics.forward().amin(dim=0)
        v, next_v = buffers.value.forward().split(size)
        value, (grad_v,) = output_gradients(self._value_loss, (v,), target_q)
        q = buffers.critics.forward()
        critic, (grad_q,) = output_gradients(self._critic_loss, (q,), next_v, batch)
        out = buffers.policy.forward()
        actor, (grad_out, grad_log_std) = output_gradients(
            self._policy_loss, (out, self.log_std), batch.action, target_q - v
        )
        buffers.value.backward(grad_v)
        buffers.critics.backward(grad_q)
        buffers.policy.backward(grad_out)
        self._gradients[1].copy_(grad_log_std)
        return Losses(critic.loss.detach(), value.loss.detach(), actor.loss.detach(), q)

    @torch.no_grad()
    def critic_weights(self) -> NDArray[np.float32]:
        """Weights of the critics, a copy `[C, P]` in the order of `critic_layout`."""
        weights: NDArray[np.float32] = self.critics.by_copy().numpy()
        return weights

    @torch.no_grad()
    def begin_with_critics(self, weights: NDArray[np.float32]) -> None:
        """Begin with what `critic_weights` returned, in the critics and their targets."""
        for critics in (self.critics, self.target_critics):
            critics.load_copies(torch.from_numpy(weights))

    def _begin_network(self, flat: Tensor) -> None:
        self.policy.flat.copy_(flat)

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        if self._losses is None:
            return None
        norms = [adam.grad_norm for adam in self._optimizers.values()]
        norm = math.hypot(*(float(norm) for norm in norms if norm is not None))
        return float(self._losses.critic + self._losses.value), self._losses.q, norm

    def metrics(self) -> Mapping[str, float]:
        """`ReplayUpdate.metrics`, whose loss is that of critics and value network, and the actor's loss."""
        values = super().metrics()
        return values if self._losses is None else {**values, "train/actor_loss": float(self._losses.actor)}


class IQLBuffers:
    """Inputs and passes of an update.

    Attributes:
        batch: the batch on the device.
        x: `[B, inputs + d]`, inputs of the critics.
        policy: pass over obs, with a gradient.
        value: pass over obs, with a gradient, and next_obs.
        critics, target_critics: passes over the batch's actions, the first with a gradient.
    """

    def __init__(self, batch: StagedBatch, update: IQLUpdate) -> None:
        self.batch, size, precision = batch, batch.size, update.precision
        inputs = update.layout.inputs
        self.x = batch.rows.new_zeros(size, inputs + update.layout.action_values)
        into_policy, _, into_value, into_critics = update._gradients
        self.policy = update.policy.make_pass(
            batch.rows[:size], into_policy, weight_rows=size, precision=precision
        )
        self.value = update.value.make_pass(batch.rows, into_value, weight_rows=size, precision=precision)
        self.critics = update.critics.make_pass(self.x, into_critics, weight_rows=size, precision=precision)
        self.target_critics = update.target_critics.make_pass(self.x, precision=precision)
        self._copies = (
            (self.x[:, :inputs], batch.rows[:size]),
            (self.x[:, inputs:], batch.action),
        )

    def stage(self, batch: Batch) -> None:
        """Copy the batch; no reference to it is kept."""
        self.batch.stage(batch)
        for into, source in self._copies:
            into.copy_(source)


def reward_scale(reward: NDArray[np.float32], flags: NDArray[np.uint8]) -> float:
    """Factor on the rewards with which the returns of the episodes span `RETURN_SPAN`; 1 if all returns are equal.

    Args:
        reward: `[R]`, those of the episodes one after the other.
        flags: `[R]`; an episode ends with a RESET row.
    """
    starts = np.flatnonzero(np.concatenate(([True], (flags[:-1] & RESET) != 0)))
    returns = np.add.reduceat(reward.astype(np.float64), starts)[(flags[starts] & RESET) == 0]
    span = float(returns.max() - returns.min())
    return RETURN_SPAN / span if span > 0 else 1.0
