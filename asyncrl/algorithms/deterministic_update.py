"""Update of DDPG and TD3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms.continuous import CriticLoss
from asyncrl.algorithms.continuous_kernel import ActorKernel, CriticKernel
from asyncrl.algorithms.continuous_update import Buffers, ContinuousUpdate, Learned, Shape
from asyncrl.algorithms.deterministic import DeterministicActor, actor_loss
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.gradients import output_gradients

_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class DeterministicUpdate(ContinuousUpdate):
    """Actor and critics of DDPG or TD3, and their targets. See `ContinuousUpdate`.

    Args:
        config, spec, device, seed: see `ContinuousUpdate`.
        critic_loss: function of `(q, next_q, batch)`, DDPG's or TD3's.
        smoothing: function from the target policy's action and standard normal noise to the smoothed action `[B, d]`;
            None disables smoothing.
        num_critics: C.
        kernels: whether kernels compute the losses; None uses them on the CPU.
    """

    config: DeterministicActor

    def __init__(
        self,
        config: DeterministicActor,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        critic_loss: Callable[[Tensor, Tensor, StagedBatch], CriticLoss],
        smoothing: Callable[[Tensor, Tensor], Tensor] | None = None,
        num_critics: int = 1,
        kernels: bool | None = None,
    ) -> None:
        super().__init__(config, spec, device, seed, Shape(num_critics, has_target_policy=True))
        self.critic_loss, self._smoothing = critic_loss, smoothing
        self.kernels = self.device.type == "cpu" if kernels is None else kernels

    def _make_buffers(self, batch: StagedBatch) -> DeterministicBuffers:
        return DeterministicBuffers(batch, self)

    def _learn(self, buffers: DeterministicBuffers, acting: bool) -> Learned:
        batch, movable = buffers.batch, self.movable
        next_action = buffers.target_policy.forward().tanh()
        if self._smoothing is not None:
            next_action = self._smoothing(next_action, self.draw(buffers.noise))
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
        actor, (grad_q, *_) = buffers.actor_gradients((buffers.first_critic.forward(),))
        grad_action = buffers.first_critic.backward(grad_q).mul_(movable)
        _tanh_backward(grad_action, own_action, grad_input=buffers.grad_policy)
        buffers.policy.backward(buffers.grad_policy)
        return Learned(critic, q, actor.loss)


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
        self.actor_gradients: Callable[..., Any] = partial(output_gradients, actor_loss)
        if update.kernels:
            self.critic_gradients = CriticKernel(self.batch, critics.copies)
            self.actor_gradients = ActorKernel(size, 1)
