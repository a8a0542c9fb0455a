"""Update of SAC and of algorithms that differ from it in losses and critics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncrl.acting.box import LOG_STD_MAX, LOG_STD_MIN
from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.continuous_kernel import DrawKernel
from asyncrl.algorithms.continuous_update import Buffers, ContinuousUpdate, Learned
from asyncrl.algorithms.maximum_entropy import MaximumEntropy, temperature_gradient
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import entropy_margin
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.distributions import log_tanh_slope
from asyncrl.networks.gradients import output_gradients, vector_jacobian_product
from asyncrl.networks.graph import Kept
from asyncrl.networks.parameters import PassOptions


class SquashedDraw(NamedTuple):
    """Actions drawn from a squashed Gaussian.

    Attributes:
        action: tanh(u) `[R, d]`.
        log_prob: log-density of `action` `[R, 1]`, jointly over its d values.
    """

    action: Tensor
    log_prob: Tensor


def squashed_draw(out: Tensor, noise: Tensor) -> SquashedDraw:
    """Reparameterised draw a = tanh(u), u = mean + std * noise (Haarnoja et al. 2018a, appendix C).

    log pi(a|s) = log N(u; mean, std) - log(1 - tanh(u)^2)

    Args:
        out: `[R, 2 d]`, d means, then d log standard deviations.
        noise: `[R, d]`, standard normal.
    """
    assert out.dim() == 2 and out.shape == (noise.shape[0], 2 * noise.shape[1])
    mean, log_std = out.chunk(2, dim=1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return SquashedDraw(u.tanh(), (log_normal - log_tanh_slope(u)).sum(dim=1, keepdim=True))


class MaximumEntropyUpdate(ContinuousUpdate):
    """Actor, critics and temperature of soft actor-critic. See `ContinuousUpdate`.

    Args:
        config, spec, device, seed: see `ContinuousUpdate`.
        critic_loss: function of `(q, next_q, next_log_prob, alpha, batch)`.
        actor_loss: function of `(q, log_prob, alpha)`.
        critic_kernel: function that makes the kernel of `critic_loss` for a batch.
        actor_kernel: function that makes the kernel of `actor_loss` for B rows. Kernels compute the losses on the CPU
            if both are given.

    Attributes:
        kernels: whether the kernels compute the losses.
    """

    config: MaximumEntropy

    def __init__(
        self,
        config: MaximumEntropy,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        critic_loss: Callable[[Tensor, Tensor, Tensor, Tensor, StagedBatch], CriticLoss],
        actor_loss: Callable[[Tensor, Tensor, Tensor], ActorLoss],
        critic_kernel: Callable[[StagedBatch], Callable[..., Any]] | None = None,
        actor_kernel: Callable[[int], Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__(config, spec, device, seed)
        if config.reward_scale is None and config.ent_coef is not None:
            self.reward_scale = RewardFactor(config.given_reward_scale, replaceable=True)
        self.critic_loss, self.actor_loss = critic_loss, actor_loss
        self.critic_kernel, self.actor_kernel = critic_kernel, actor_kernel
        self.kernels = self.device.type == "cpu" and critic_kernel is not None and actor_kernel is not None
        self.log_alpha.fill_(math.log(config.ent_coef or config.ent_coef_initial))
        self.alpha = torch.zeros((), device=self.device)
        values = self.layout.action_values
        self.target_entropy = -float(values) if config.target_entropy is None else config.target_entropy

    def _make_buffers(self, batch: StagedBatch) -> MaximumEntropyBuffers:
        return MaximumEntropyBuffers(batch, self)

    def _draw_noise(self, buffers: MaximumEntropyBuffers) -> None:
        self.draw(buffers.noise)

    def _learn(self, buffers: MaximumEntropyBuffers, acting: bool) -> Learned:
        movable = self.movable
        policy, critics = buffers.acting if acting else buffers.learning
        alpha = torch.exp(self.log_alpha, out=self.alpha)
        *own_out, next_out = buffers.split_out(policy.forward())
        (next_action, next_log_prob), _ = buffers.draw_next(next_out, buffers.next_noise)
        torch.mul(next_action, movable, out=buffers.next_action)
        if acting:
            (own_action, log_prob), pull_back = buffers.draw_own(own_out[0], buffers.own_noise)
            torch.mul(own_action, movable, out=buffers.own_action)
        next_q = buffers.target_critics.forward()
        q, *own_q = buffers.split_q(critics.forward())
        critic, (grad_q,) = buffers.critic_gradients((q,), next_q, next_log_prob, alpha, buffers.batch)
        if not acting:
            critics.backward(grad_q)
            return Learned(critic, q)
        actor, (grad_own, grad_log_prob) = buffers.actor_gradients((own_q[0], log_prob), alpha)
        grad_action = critics.backward(torch.cat((grad_q, grad_own), dim=1, out=buffers.grad_q)).mul_(movable)
        policy.backward(pull_back(grad_action, grad_log_prob))
        if self.config.ent_coef is None:
            self.log_alpha_gradient.copy_(temperature_gradient(log_prob, self.target_entropy))
        return Learned(critic, q, actor.loss)

    def _restored(self) -> None:
        """Keep a temperature that is given, also where the state has one that was learned or another.

        It is in the unit of the rewards, so the factor that the first rewards had chosen before scales it too.
        """
        if self.config.ent_coef is None:
            return
        self.log_alpha.fill_(math.log(self.config.ent_coef * (self.reward_scale.chosen or 1.0)))
        for name, part in (("all", self._slices["temperature"]), ("temperature", slice(None))):
            if name in self._optimizers:  # the momentum of the last steps would still move it
                for moment in self._optimizers[name].moments:
                    moment[part].zero_()

    def begin_with_reward_scale(self, factor: float, env_steps: int) -> None:
        """See `ReplayUpdate`; a temperature that is given is scaled too."""
        super().begin_with_reward_scale(factor, env_steps)
        self._restored()

    def metrics(self) -> Mapping[str, float]:
        """`ContinuousUpdate.metrics` with bounds widened by the entropy, and the temperature of the last update."""
        values = super().metrics()
        return values if self._learned is None else {**values, "train/ent_coef": float(self.alpha)}

    @property
    def _bounds_margin(self) -> float:
        """See `entropy_margin`. The initial alpha counts too: values forget its bonus slowly."""
        config = self.config
        alpha = max(float(self.alpha), config.ent_coef or config.ent_coef_initial)
        return entropy_margin(alpha, self.target_entropy, self.layout.action_values, config.discount)


class MaximumEntropyBuffers(Buffers):
    """Passes of the update. See `Buffers`.

    Attributes:
        noise: `[2 B, d]`, standard normal noise of the last draws: `own_noise` for obs, `next_noise` for next_obs.
        acting: passes of an update that includes the actor. Policy: over obs, with a gradient, and next_obs. Critics:
            over the batch's actions, with a gradient, and the policy's own in obs, with a gradient at these actions.
            For small networks one pass of 2 B rows instead of two saves a tenth of an update.
        learning: passes of an update without the actor: over next_obs, and over the batch's actions.
        split_out, split_q: split the outputs of `acting` or `learning` into parts of B rows.
        grad_q: `[C, 2 B, outputs]`, gradient at the critics' outputs in `acting`; empty before the first update.
        target_critics: pass over the policy's actions in next_obs.
        draw_own, draw_next: `vector_jacobian_product` of `squashed_draw`, or kernels.
        critic_gradients, actor_gradients: `output_gradients` of the losses, or kernels.
    """

    def __init__(self, batch: StagedBatch, update: MaximumEntropyUpdate) -> None:
        super().__init__(batch, update.layout)
        size = batch.size
        values = update.layout.action_values
        self.noise = torch.zeros(2 * size, values, device=update.device)
        self.own_noise, self.next_noise = self.noise.split(size)
        self.split_out, self.split_q = (
            Kept(partial(torch.split, split_size_or_sections=size, dim=dim)) for dim in (0, 1)
        )
        self.grad_q = torch.empty(0, device=update.device)
        policy, critics, precision = update.policy, update.critics, update.precision
        into_policy, into_critics = update.policy_gradient, update.critics_gradient
        seen: PassOptions = {"weight_rows": size, "precision": precision}
        judged: PassOptions = {**seen, "input_rows": size, "input_columns": values}
        self.acting = (
            policy.make_pass(batch.rows, into_policy, **seen),
            critics.make_pass(self.x[: 2 * size], into_critics, **judged),
        )
        self.learning = (
            policy.make_pass(self.next_obs, precision=precision),
            critics.make_pass(self.x[:size], into_critics, **seen),
        )
        self.target_critics = update.target_critics.make_pass(self.x[2 * size :], precision=precision)
        draw: Callable[..., Any] = partial(vector_jacobian_product, squashed_draw)
        on_cpu = update.device.type == "cpu"
        self.draw_own = DrawKernel(size, values) if on_cpu else draw
        self.draw_next = DrawKernel(size, values) if on_cpu else draw
        self.critic_gradients: Callable[..., Any] = partial(output_gradients, update.critic_loss)
        self.actor_gradients: Callable[..., Any] = partial(output_gradients, update.actor_loss)
        if update.kernels:
            assert update.critic_kernel is not None and update.actor_kernel is not None
            self.critic_gradients = update.critic_kernel(self.batch)
            self.actor_gradients = update.actor_kernel(size)
