"""Update of MADDPG: the agents' policy and the central critic, their targets, and an optimiser of each.

Policy and critic are consecutive parts of one flat vector. Each has its own bound on the norm of its gradient, so that
large errors of the critic do not shorten the policy's steps. Both gradients are computed with the weights before the
update, as in `continuous_update.py`. An action of an agent has d values in the critic's input: a real-valued one in
units of half its range, a discrete one as a one-hot vector. Those of agents that wait are zeros. Each agent is paid for
itself: one that is truncated while others go on bootstraps its own value, for which it still acts in the next state.
The others' values there see that action too, though it waits: one pass has one joint action for the values of all
agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.acting.box import scaling
from asyncrl.algorithms.joint_staging import AgentsStage, of_state
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy

PARTS = ("policy", "critic")
"""Consecutive parts of the parameters, each with an optimiser."""


def gumbel_softmax(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """One-hot actions `[R, d]`, with the derivative of softmax((logits + noise) / temperature) (Jang et al. 2017).

    Args:
        logits: `[R, d]`; those of forbidden actions are very low.
        noise: `[R, d]`, draws of the standard Gumbel distribution, which make the actions draws of softmax(logits).
        temperature: of the softmax.
    """
    soft = ((logits + noise) / temperature).softmax(dim=1)
    hard = torch.zeros_like(soft).scatter(1, soft.argmax(dim=1, keepdim=True), 1.0)
    return hard + soft - soft.detach()


class MADDPGUpdate(ReplayUpdate):
    """Learner of a policy and of all agents' action values. See `ReplayUpdate`.

    Args:
        config: hyper-parameters, a `MADDPG`, which is not imported because it imports this module.
        spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device, and of the noise, which is not.
        loss: function of `(q, next_q, batch)`, `[B, N]` each.

    Attributes:
        movable: `[d]`, 0 for action values of an empty range, which are staged as 0, else 1; None for discrete actions.
    """

    config: Any
    STATE = (
        *ReplayUpdate.STATE,
        "state_statistics",
        "policy",
        "critic",
        "target_policy",
        "target_critic",
        "_optimizers",
        "generator",
    )

    def __init__(
        self, config: Any, spec: EnvSpec, device: str = "cpu", seed: int = 0, *, loss: Callable[..., Any]
    ) -> None:
        self.layout = layout = config.layout(spec)
        super().__init__(config, spec, device, layout)
        self._loss, self.discrete = loss, not isinstance(spec.action, BoxAction)
        self.state_values, self.state_statistics = of_state(config, spec)
        self.scaling = scaling(spec.action) if isinstance(spec.action, BoxAction) else None
        self.movable: Tensor | None = None
        if self.scaling is not None:
            self.movable = torch.from_numpy(self.scaling[1] > 0).to(self.device, torch.float32)
        with torch.no_grad():
            self._make_networks(seed)
        (own,) = np.random.SeedSequence(seed).spawn(1)
        where = "cuda" if self.device.type == "cuda" else "cpu"
        self.generator = torch.Generator(where).manual_seed(int(own.generate_state(1)[0]))

    def _make_networks(self, seed: int) -> None:
        config, layout, agents = self.config, self.layout, self.spec.num_agents
        hidden = config.critic_hidden_sizes or config.hidden_sizes
        inputs = (self.state_values or agents * layout.inputs) + agents * layout.sizes[-1]
        parts = [
            Architecture(layout.sizes, network=layout.network, seed=seed),
            Architecture((inputs, *hidden, agents), network=layout.network, seed=seed + 1),
        ]
        generator = torch.Generator().manual_seed(seed)
        flat = torch.cat([part.initial(generator) for part in parts]).to(self.device)
        gradient, target, sizes = torch.zeros_like(flat), flat.clone(), [part.size for part in parts]
        self._flat, self._target = flat, target
        self.policy, self.critic = (p.on(own) for p, own in zip(parts, flat.split(sizes), strict=True))
        self.target_policy, self.target_critic = (
            p.on(own) for p, own in zip(parts, target.split(sizes), strict=True)
        )
        self.policy_gradient, self.critic_gradient = gradient.split(sizes)
        self._optimizers = {
            name: FlatAdam(own, its, eps=config.adam_eps, max_grad_norm=config.max_grad_norm)
            for name, own, its in zip(PARTS, flat.split(sizes), gradient.split(sizes), strict=True)
        }
        self._to_host = HostCopy(self.policy.flat)
        buffers = *self.policy.buffers(), *self.critic.buffers()
        weighted = slice(sizes[0], None)
        shared = self.statistics, self.state_statistics, self.bounds
        self.vector = FlatVector(flat, gradient, weighted, shared, buffers)
        self.vector.moments = tuple(adam.moments for adam in self._optimizers.values())

    def _staged(self, size: int) -> AgentsStage:
        return AgentsStage(
            size,
            self.spec,
            self.device,
            self.reward_scale,
            self.bounds,
            self.statistics,
            scaling=self.scaling,
            state_values=self.state_values,
            state_statistics=self.state_statistics,
        )

    def _make_buffers(self, batch: AgentsStage) -> MADDPGBuffers:
        return MADDPGBuffers(batch, self)

    def draw(self, noise: Tensor) -> Tensor:
        """Fill `noise` with draws of the standard Gumbel distribution and return it."""
        return noise.uniform_(generator=self.generator).clamp_(min=1e-30).log_().neg_().log_().neg_()

    def _update(self, buffers: MADDPGBuffers) -> Tensor | None:
        batch = buffers.batch
        buffers.fill(buffers.taken, batch.state, self._as_values(batch) * batch.acts.unsqueeze(2))
        next_action = self._actions(buffers.target_policy.forward(), batch.next_mask, buffers.noise)
        next_action = next_action.view(buffers.actions) * batch.goes_on.unsqueeze(2)
        buffers.fill(buffers.following, batch.next_state, next_action)
        next_q, q = buffers.target_critic.forward(), buffers.critic.forward()
        with torch.enable_grad():
            leaf = q.detach().requires_grad_()
            critic = self._loss(leaf, next_q, batch)
            (grad,) = torch.autograd.grad(critic.loss, leaf)
        buffers.critic.backward(grad)
        actor_loss = self._follow_critic(buffers)
        buffers.losses = critic.loss.detach(), actor_loss, q
        self.vector.begin_step()
        for adam in self._optimizers.values():
            adam.step(self.config.learning_rate_at(self._updates, self._progress))
        self._target.lerp_(self._flat, self.config.tau)
        if not self.config.prioritized:
            return None
        errors: Tensor = critic.td.abs().sum(dim=1, keepdim=True)
        return errors / batch.acts.sum(dim=1, keepdim=True)

    def _follow_critic(self, buffers: MADDPGBuffers) -> Tensor:
        """Fill the policy's gradient (Lowe et al. 2017, eq. 5); return its loss.

        J = mean over agents a that act of Q_a(x, u_1, ..., mu(o_a), ..., u_N), with the batch's actions of the others.
        """
        batch, config, (size, agents, width) = buffers.batch, self.config, buffers.actions
        out = buffers.policy.forward()
        with torch.enable_grad():
            leaf = out.detach().requires_grad_()
            own = self._actions(leaf, batch.mask, buffers.noise)
            penalty = config.logit_penalty * leaf.square().mean() if self.discrete else leaf.new_zeros(())
        replaced = buffers.own.view(size, agents, -1)
        replaced[:, :, : -agents * width] = batch.state.unsqueeze(1)
        joint = replaced[:, :, -agents * width :].unflatten(2, (agents, width))
        joint.copy_((self._as_values(batch) * batch.acts.unsqueeze(2)).unsqueeze(1).expand_as(joint))
        joint.diagonal(dim1=1, dim2=2).copy_(own.detach().view(buffers.actions).transpose(1, 2))
        q = buffers.own_critic.forward().view(size, agents, agents)
        share = batch.acts / batch.acts.sum()
        buffers.grad_q.zero_()
        buffers.grad_q.view(size, agents, agents).diagonal(dim1=1, dim2=2).copy_(-share)
        grad = buffers.own_critic.backward(buffers.grad_q).view(size, agents, agents, width)
        grad_own = grad.diagonal(dim1=1, dim2=2).transpose(1, 2).reshape(size * agents, width)
        with torch.enable_grad():
            (by_out,) = torch.autograd.grad((own * grad_own).sum() + penalty, leaf)
        buffers.policy.backward(by_out)
        return penalty.detach() - (share * q.diagonal(dim1=1, dim2=2)).sum()

    def _as_values(self, batch: AgentsStage) -> Tensor:
        """The batch's actions `[B, N, d]`."""
        action = batch.action
        if self.discrete:
            action = self._flat.new_zeros(len(action), self.layout.sizes[-1]).scatter(1, action, 1.0)
        return action.view(batch.size, self.spec.num_agents, -1)

    def _actions(self, out: Tensor, mask: Tensor | None, noise: Tensor) -> Tensor:
        """Actions `[B N, d]` of the policy's outputs; of discrete ones a draw."""
        if self.movable is not None:
            return out.tanh() * self.movable
        logits = out if mask is None else out.masked_fill(~mask, -1e9)
        return gumbel_softmax(logits, self.draw(noise), self.config.temperature)

    def _begin_network(self, flat: Tensor) -> None:
        self.policy.flat.copy_(flat)
        self.target_policy.flat.copy_(flat)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Stateful`; in a state from before there were two optimisers one had the moments of both parts."""
        if isinstance(both := state.get("optimizer"), Mapping):
            sizes = [self.policy_gradient.numel(), self.critic_gradient.numel()]
            moments = {name: both[name].split(sizes) for name in ("exp_avg", "exp_avg_sq")}
            own = {
                part: {"step": both["step"], **{name: values[n] for name, values in moments.items()}}
                for n, part in enumerate(PARTS)
            }
            kept = {name: value for name, value in state.items() if name != "optimizer"}
            state = {**kept, "optimizers": own}
        super().load_state_dict(state)

    def metrics(self) -> Mapping[str, float]:
        """`ReplayUpdate.metrics`, and the policy's loss at the last update."""
        values = super().metrics()
        if self._buffers is None:
            return values
        return {**values, "train/actor_loss": float(self._buffers.losses[1])}

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        if self._buffers is None:
            return None
        loss, _, q = self._buffers.losses
        norms = [adam.grad_norm for adam in self._optimizers.values()]
        return float(loss), q, math.hypot(*(float(norm) for norm in norms if norm is not None))


class MADDPGBuffers:
    """Inputs and passes of an update for one number of joint transitions.

    Attributes:
        batch: the batch on the device; `stage` fills it.
        actions: shape (B, N, d) of the joint actions.
        taken, following: `[B, x + N d]`, inputs of the critic and of its target: the batch's states and actions; the
            next states and the target policy's actions. x is N inputs where the state is the observations.
        own: `[B N, x + N d]`: for each agent the batch's joint action with its own one replaced.
        noise: `[B N, d]`.
        grad_q: `[B N, N]`.
        losses: critic's and policy's loss and the values `[B, N]` of the last update.
    """

    losses: tuple[Tensor, Tensor, Tensor]

    def __init__(self, batch: AgentsStage, update: MADDPGUpdate) -> None:
        self.batch, self.stage = batch, batch.stage
        obs, next_obs = batch.rows.chunk(2)
        rows, agents, width = obs.shape[0], update.spec.num_agents, update.layout.sizes[-1]
        self.actions = batch.size, agents, width
        make = batch.rows.new_zeros
        columns, critic, precision = agents * width, update.critic, update.precision
        inputs = batch.state.shape[1] + columns
        self.taken, self.following = make(batch.size, inputs), make(batch.size, inputs)
        self.own, self.noise, self.grad_q = make(rows, inputs), make(rows, width), make(rows, agents)
        self.policy = update.policy.make_pass(
            obs, update.policy_gradient, weight_rows=rows, precision=precision
        )
        self.target_policy = update.target_policy.make_pass(next_obs, precision=precision)
        self.critic = critic.make_pass(
            self.taken, update.critic_gradient, weight_rows=batch.size, precision=precision
        )
        self.target_critic = update.target_critic.make_pass(self.following, precision=precision)
        self.own_critic = critic.make_pass(
            self.own, input_rows=rows, input_columns=columns, precision=precision
        )

    def fill(self, into: Tensor, state: Tensor, action: Tensor) -> None:
        """Write states `[B, N inputs]` and actions `[B, N, d]` into an input of the critic."""
        inputs = state.shape[1]
        into[:, :inputs], into[:, inputs:] = state, action.reshape(len(action), -1)
