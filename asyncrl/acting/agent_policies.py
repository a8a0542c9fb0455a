"""Several policies of the agents of one environment: how they act, and where their parts of a run are.

Parameter sharing, one policy for all agents, is the default and knows nothing of this. The option `policies` names
several, each with a pattern of its agents' names. An algorithm's record stays as it is; it makes a policy and an
updater for the spec of each (`EnvSpec.policies`), and a few objects stand for all of them, so that actors, update
loops, publication and checkpoints are those of one policy:

    actor      `AgentPolicies`, a `Policy`: each policy acts for the streams of its own agents. One ring as ever: stream
               e N + n is agent n of environment e, and a row has room for any agent's observation and action
    mailbox    one block of weights, those of the policies one after the other; so one version, one publication
    replay     `PolicyReplays` (`replay/policy_replays.py`): a replay per policy, over views of the rings with its
               streams alone, retired together; one cursor of grants
    segments   the queue as ever; `AgentSegmentUpdater` divides a segment's streams among the policies
    learner    `AgentUpdater` (`algorithms/agent_policies.py`): an updater per policy, with its own optimiser

*An update is a gradient step of one policy.* On replay the policies take turns in proportion to their agents, so that
each policy's rows are trained on `samples_per_insert` times; on segments every policy makes its own epochs over its
rows. All policies have one discipline, one pace and one staleness bound. In lockstep the turns depend on counts alone.

An actor's death cuts the rows of all its streams, whatever their policies. Rejected: a ring for each policy, whose rows
would have to be granted, restored and cut in step; and a loop for each policy, whose paces would each hold the actors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.network_policy import take_exploration
from asyncrl.acting.recurrent import memory_of
from asyncrl.interfaces import AgentPolicy, EnvSpec
from asyncrl.protocols import Algorithm, Memory, Policy


def make_policy(algorithm: Algorithm, spec: EnvSpec) -> Policy:
    """Make the policy that acts for all agents, with uninitialised weights. Raises as `Algorithm.make_policy` does."""
    if not spec.policies:
        return algorithm.make_policy(spec)
    return AgentPolicies(spec, [own_record(algorithm, own).make_policy(own.spec) for own in spec.policies])


def own_record(algorithm: Any, policy: AgentPolicy) -> Any:
    """The algorithm's record of one of several policies; see `algorithms/policy_options.py`."""
    return dataclasses.replace(algorithm, **policy.options) if policy.options else algorithm


class AgentPolicies:
    """Several policies, each of which acts for its own agents. Implements `Policy`.

    Streams are those of whole environments: N neighbouring ones are the agents of one.

    Args:
        spec: the environment.
        parts: a policy for each of `spec.policies`, in their order.

    Attributes:
        parts: as given.
        weights: the weights of all parts one after the other.
        memory: recurrent states of all streams; None if the policies are not recurrent.
        layout: shapes of the parts' networks.
    """

    def __init__(self, spec: EnvSpec, parts: Sequence[Policy]) -> None:
        self._policies, self.parts, self.num_agents = spec.policies, list(parts), spec.num_agents
        self._action_shape, self._action_dtype = spec.action.shape, spec.action.dtype
        self.frame_stack = parts[0].frame_stack
        self.weight_count = sum(part.weight_count for part in parts)
        self.weights: NDArray[np.float32] = np.zeros(self.weight_count, np.float32)
        self.memory: Memory | None = None if memory_of(parts[0]) is None else AgentMemories(self)
        self.layout = tuple(getattr(part, "layout", None) for part in parts)

    def streams(self, rows: int) -> list[tuple[Any, Policy, NDArray[np.int64]]]:
        """Each `AgentPolicy`, its policy, and its streams among `rows` streams."""
        return [
            (policy, part, policy.streams(rows, self.num_agents))
            for policy, part in zip(self._policies, self.parts, strict=True)
        ]

    def weights_of(self, weights: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Views of each part's weights in a block of all."""
        return np.split(weights, np.cumsum([part.weight_count for part in self.parts])[:-1])

    def weights_changed(self) -> None:
        """See `Policy`."""
        for part, weights in zip(self.parts, self.weights_of(self.weights), strict=True):
            part.load_weights(weights)

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """See `Policy`. Raises ValueError if the length is wrong."""
        if weights.shape != self.weights.shape:
            raise ValueError(f"weights must have shape {self.weights.shape}, got {weights.shape}")
        self.weights[:] = weights
        self.weights_changed()

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """See `Policy`; the streams of a policy explore as if there were no others."""
        each = [max(1, number // self.num_agents) for number in (count, total)]
        for policy, part in zip(self._policies, self.parts, strict=True):
            agents = len(policy.members)
            part.assign_streams(first // self.num_agents * agents, each[0] * agents, each[1] * agents)

    def take_exploration(self, other: AgentPolicies) -> None:
        """See `NetworkPolicy`."""
        for own, theirs in zip(self.parts, other.parts, strict=True):
            take_exploration(own, theirs)

    @property
    def exploration_rate(self) -> float:
        """Mean over the agents."""
        rates = (
            len(p.members) * part.exploration_rate for p, part in zip(self._policies, self.parts, strict=True)
        )
        return sum(rates) / self.num_agents

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        """See `Policy`; the policies draw from `rng` one after the other."""
        rows = obs.shape[0]
        actions = np.zeros((rows, *self._action_shape), self._action_dtype)
        extras: dict[str, NDArray[Any]] = {}
        for policy, part, streams in self.streams(rows):
            own, theirs = part.act(policy.own_observations(obs)[streams], rng, total_steps)
            policy.own_actions(actions)[streams] = own
            for name, values in theirs.items():
                if name not in extras:
                    extras[name] = np.zeros((rows, *values.shape[1:]), values.dtype)
                extras[name][streams] = values
        return actions, extras

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        """See `Policy`."""
        actions = np.zeros((obs.shape[0], *self._action_shape), self._action_dtype)
        for policy, part, streams in self.streams(obs.shape[0]):
            policy.own_actions(actions)[streams] = part.greedy(policy.own_observations(obs)[streams])
        return actions


class AgentMemories:
    """Recurrent states of several policies as those of one. Implements `Memory`."""

    def __init__(self, policies: AgentPolicies) -> None:
        self._policies = policies

    def _each(self) -> list[tuple[Memory, NDArray[np.int64]]]:
        """The memory of each policy, and its streams."""
        memories = [memory_of(part) for part in self._policies.parts]
        rows = sum(memory.state.shape[0] for memory in memories if memory is not None)
        found = zip(memories, self._policies.streams(rows), strict=True)
        return [(memory, streams) for memory, (_, _, streams) in found if memory is not None]

    @property
    def state(self) -> NDArray[np.float32]:
        """`[E, state_size]`, a copy."""
        each = self._each()
        rows = sum(streams.size for _, streams in each)
        state = np.zeros((rows, each[0][0].state.shape[1]), np.float32)
        for memory, streams in each:
            state[streams] = memory.state
        return state

    @state.setter
    def state(self, state: NDArray[np.float32]) -> None:
        for policy, part, streams in self._policies.streams(state.shape[0]):
            memory = memory_of(part)
            assert memory is not None, f"policy {policy.name} is recurrent"
            memory.state = state[streams]

    def begin(self, streams: Any) -> None:
        """See `Memory`."""
        each = self._each()
        begun = np.zeros(sum(own.size for _, own in each), np.bool_)
        begun[streams] = True
        for memory, own in each:
            if (beginning := np.flatnonzero(begun[own])).size:
                memory.begin(beginning)

    def forget(self, rows: int) -> None:
        """See `Memory`."""
        for (memory, _), (_, _, streams) in zip(self._each(), self._policies.streams(rows), strict=True):
            memory.forget(streams.size)
