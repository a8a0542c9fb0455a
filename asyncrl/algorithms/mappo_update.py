"""Update of MAPPO: a rollout of joint rows, and a policy and a central critic that pass over them.

The rows of every pass are in groups of N, the agents of an environment at a step. So the policy's input `[G N, inputs]`
is the critic's input `[G, N inputs]` as well, in the same memory, unless the critic sees the environment's state: a
rollout holds the states as they are, and normalises those of a pass by the statistics of its iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.acting.stochastic import ActorLayout
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.central_state import state_values
from asyncrl.algorithms.normalization import NormalisingMoments, RunningMoments
from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.algorithms.on_policy_update import OnPolicyUpdate
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.returns import team_rewards
from asyncrl.algorithms.rollout import Minibatch, PolicyRollout, Rollout, fill_inputs
from asyncrl.interfaces import EnvSpec, Segment
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.flat_vector import FlatVector


class CentralCritic(ActorCritic):
    """Policy of an agent's observation, and value of the state or of the observations of all agents. See `ActorCritic`.

    Attributes:
        num_agents: N.
        state_values: values of the state; 0 if the critic sees the observations.
    """

    STATE = (*ActorCritic.STATE, "_seen_states", "_noted_states")

    def __init__(self, config: OnPolicy, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        self.num_agents, self.state_values = spec.num_agents, state_values(config, spec)
        self._seen_states = self._noted_states = None
        if self.state_values and config.normalize_observations:
            self._seen_states = NormalisingMoments(self.state_values)
            self._noted_states = RunningMoments(self.state_values)
        super().__init__(config, spec, device, seed)

    def _make_vector(self, buffers: Sequence[Tensor]) -> FlatVector:
        vector = super()._make_vector(buffers)
        if self._noted_states is not None:
            vector.shared += (self._noted_states,)
        return vector

    def observe_states(self, states: NDArray[np.float32]) -> None:
        """Collect the states `[..., state_values]`; no effect without normalisation. See `SegmentNetworks.observe`."""
        if self._noted_states is not None:
            self._noted_states.add(states.reshape(-1, self.state_values))

    def move_statistics(self) -> None:
        """See `SegmentNetworks`."""
        super().move_statistics()
        if self._seen_states is not None and self._noted_states is not None:
            self._seen_states.absorb(self._noted_states)

    def seen_states(self, states: Tensor) -> Tensor:
        """States `[G, state_values]` on the device as the critic sees them."""
        if self._seen_states is None:
            return states
        mean, scale = (torch.from_numpy(part).to(states.device) for part in self._seen_states.normalisation)
        return ((states - mean) * scale).clamp_(-OBSERVATION_CLIP, OBSERVATION_CLIP)

    def _architectures(
        self, layout: ActorLayout, value_hidden: tuple[int, ...] | None, seed: int
    ) -> tuple[Architecture, Architecture]:
        hidden = layout.hidden if value_hidden is None else value_hidden
        make = partial(Architecture, activation=layout.activation, network=layout.network)
        seen = self.state_values or self.num_agents * layout.inputs
        return make(layout.sizes, seed=seed), make((seen, *hidden, 1), seed=seed + 1)

    def make_pass(self, rows: int, gradient: bool) -> CentralPass:
        """See `ActorCritic.make_pass`; `rows` is rounded up to groups of N."""
        parts = self.gradient.split(self._sizes) if gradient else None
        groups = -(-rows // self.num_agents)
        shape = groups, self.num_agents, self.layout.inputs
        return CentralPass(*self._networks(gradient), shape, self.state_values, parts)


class CentralPass:
    """Pass of the policy over R = G N rows and of the critic over their G groups. Implements `NetworksPass`.

    Args:
        policy, value: the networks.
        shape: G, N and values of one observation.
        state_values: values of the state; 0 if the critic sees the observations.
        gradient: see `ActorCriticPass`.

    Attributes:
        x: `[R, inputs]`, written by the caller.
        state: `[G, state_values]`, written by the caller; or `[G, N inputs]`, a view of `x`.
    """

    def __init__(
        self,
        policy: Network,
        value: Network,
        shape: tuple[int, int, int],
        state_values: int,
        gradient: tuple[Tensor, ...] | None,
    ) -> None:
        groups, num_agents, inputs = shape
        self.x = torch.zeros(groups * num_agents, inputs, device=policy.flat.device)
        self.state = self.x.new_zeros(groups, state_values) if state_values else self.x.view(groups, -1)
        into_policy = into_value = self._log_std_gradient = None
        if gradient is not None:
            into_policy, self._log_std_gradient, into_value = gradient
        seen = 0 if gradient is None else groups
        self._policy = policy.make_pass(self.x, into_policy, weight_rows=seen * num_agents)
        self._value = value.make_pass(self.state, into_value, weight_rows=seen)
        self._values, self._grad_value = self.x.new_empty(groups, num_agents), self.x.new_empty(groups, 1)

    def forward(self) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[R, outputs]` and the values `[R]` of the groups; valid until the next call."""
        return self._policy.forward(), self.values()

    def values(self) -> Tensor:
        """The values `[R]` alone, equal within a group."""
        self._values.copy_(self._value.forward())
        return self._values.view(-1)

    def backward(self, grad_out: Tensor, grad_value: Tensor, grad_log_std: Tensor) -> None:
        """Fill the whole gradient, given the loss's gradient at the outputs of the last `forward`."""
        self._policy.backward(grad_out)
        torch.sum(grad_value.view_as(self._values), dim=1, keepdim=True, out=self._grad_value)
        self._value.backward(self._grad_value)
        if self._log_std_gradient is not None and grad_log_std.numel():
            self._log_std_gradient.copy_(grad_log_std)


class JointRollout(PolicyRollout):
    """Rollout whose rows are read in groups: all agents of an environment at a step.

    Attributes:
        num_agents: N.
        items: `[S T / N, N]` int64, rows of each group.
        states: `[S T / N + S / N, state_values]` on the device, states of the groups, environment by environment, then
            those after the segments' last rows; None if the critic sees the observations.
    """

    STATE = (*PolicyRollout.STATE, "states")

    def __init__(self, nets: CentralCritic, streams: int, length: int, columns: Sequence[str]) -> None:
        super().__init__(nets, streams, length, columns)
        self._central, self.states = nets, None
        agents = self.num_agents = nets.num_agents
        if nets.state_values:
            groups = streams // agents * (length + 1)
            self.states = torch.zeros(groups, nets.state_values, device=nets.device)
        rows = np.arange(streams * length).reshape(-1, agents, length)
        self.items: NDArray[np.int64] = rows.swapaxes(1, 2).reshape(-1, agents)
        self._order = np.concatenate((self.items.reshape(-1), streams * length + np.arange(streams)))

    def stage(self, segments: Sequence[Segment]) -> None:
        """See `Rollout.stage`."""
        super().stage(segments)
        if self.states is not None:
            count = self.states.shape[1]
            parts = [np.concatenate([_state(s).reshape(-1, count) for s in segments])]
            parts.append(np.concatenate([s.last_state for s in segments if s.last_state is not None]))
            self.states.copy_(torch.from_numpy(np.concatenate(parts)))

    def place(self, work: Any, rows: NDArray[np.int64]) -> None:
        """See `Rollout.place`: the states of the groups of `rows`."""
        if self.states is None:
            return
        streams, length = self.shape
        first, count = rows[:: self.num_agents], streams * length
        within = first // length // self.num_agents * length + first % length
        own = np.where(first < count, within, first // self.num_agents)
        groups = torch.from_numpy(own).to(self.states.device)
        work.state[: len(groups)] = self._central.seen_states(self.states[groups])

    @property
    def trained_items(self) -> NDArray[np.int64]:
        """Indices of the groups in which an agent acts."""
        return np.flatnonzero(self.trained.reshape(-1)[self.items].any(axis=1))

    def _chunks(self) -> Iterator[NDArray[np.int64]]:
        size = self._pass.x.shape[0]
        return (self._order[start : start + size] for start in range(0, len(self._order), size))

    def _prepared(self, rows: Any) -> Any:
        taken = self.x[torch.from_numpy(rows).to(self.x.device)]
        fill_inputs(self._pass.x[: len(rows)], taken, self._nets.byte_factor)
        self.place(self._pass, rows)
        return self._pass


def _state(segment: Segment) -> NDArray[np.float32]:
    assert segment.state is not None, "the rings hold the state that the critic reads"
    return segment.state


class MAPPOUpdate(OnPolicyUpdate):
    """Updater of MAPPO: PPO's, whose rewards are the team's. See `OnPolicyUpdate`."""

    config: PPO
    nets: CentralCritic

    def _make_nets(self, config: Any, spec: EnvSpec, device: str, seed: int) -> CentralCritic:
        return CentralCritic(config, spec, device, seed)

    def _make_rollout(self, streams: int, length: int) -> JointRollout:
        return JointRollout(self.nets, streams, length, self.config.rollout_columns)

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """See `OnPolicyUpdate.begin`."""
        agents = self.nets.num_agents
        paid = [dataclasses.replace(s, reward=team_rewards(s.reward, agents)) for s in segments]
        if self.nets.state_values:
            for segment in (s for s in segments if s.fresh):
                self.nets.observe_states(_state(segment))
        super().begin(paid, progress)

    def critic_weights(self) -> None:
        """None: see `MAPPO.critic_layout`."""

    def _batch_of(self, rollout: Rollout, size: int) -> Minibatch:
        batch = super()._batch_of(rollout, size)
        assert isinstance(batch, Minibatch)
        if self.config.target_kl is not None:
            batch.kernel = (
                None  # its divergence is that of the first rows, and agents that wait are among them
            )
        return batch
