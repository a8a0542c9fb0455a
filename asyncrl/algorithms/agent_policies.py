"""Updaters of several policies of an environment's agents; `acting/agent_policies.py` has the design."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import own_record
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import UNTRAINED, AgentPolicy, EnvSpec, FieldSpec, Segment, UpdateResult, ValuePairs
from asyncrl.protocols import Algorithm, ReplayUpdater, SegmentUpdater, SequenceUpdater, Updater
from asyncrl.replay.policy_replays import PolicyBatch


def check_agents(algorithm: Algorithm, spec: EnvSpec) -> None:
    """Check that the algorithm can learn what each policy sees and does. Raises what `Algorithm.check` does."""
    if not spec.policies:
        algorithm.check(spec)
    for policy in spec.policies:
        own_record(algorithm, policy).check(policy.spec)
    row_fields(algorithm, spec)


class _Fields(Protocol):
    """What `row_fields` needs of an algorithm's record."""

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]: ...


def row_fields(algorithm: _Fields, spec: EnvSpec) -> tuple[FieldSpec, ...]:
    """Extra fields of a row, which are those of every policy.

    Raises:
        SpacesDoNotFit: the policies' fields differ (ASYNC005).
    """
    if not spec.policies:
        return algorithm.extra_fields(spec)
    fields: dict[str, tuple[FieldSpec, ...]] = {
        own.name: own_record(algorithm, own).extra_fields(own.spec) for own in spec.policies
    }
    first = spec.policies[0].name
    for name, own in fields.items():
        if own != fields[first]:
            raise SpacesDoNotFit(
                f"The policies {first} and {name} of {spec.name} keep different fields in a row.",
                facts={f"policy {first}": fields[first], f"policy {name}": own},
                fix="train them in runs of their own, or make their spaces equal by a wrapper",
            )
    return fields[first]


def make_updater(algorithm: Algorithm, spec: EnvSpec, device: str, seed: int) -> Updater:
    """Make the updater of all agents. Raises what `Algorithm.make_updater` does.

    Each policy's initial weights and draws have a seed of their own.
    """
    if not spec.policies:
        return algorithm.make_updater(spec, device, seed)
    seeds = np.random.SeedSequence(seed).generate_state(len(spec.policies)).tolist()
    each = zip(spec.policies, seeds, strict=True)
    cores: list[Any] = [
        own_record(algorithm, policy).make_updater(policy.spec, device, own) for policy, own in each
    ]
    kind = AgentSegmentUpdater if algorithm.update_loop == "segments" else AgentReplayUpdater
    return kind(spec.policies, cores)


class AgentUpdater:
    """Updaters of several policies as one; learner thread only. Implements `Updater`.

    Args:
        policies: the policies.
        cores: an updater for each.

    Attributes:
        cores: as given.
    """

    def __init__(self, policies: Sequence[AgentPolicy], cores: Sequence[Any]) -> None:
        self.policies, self.cores = tuple(policies), list(cores)
        ends = np.cumsum([0, *(core.weight_count for core in cores)]).tolist()
        self.weight_count: int = ends[-1]
        self._parts = [slice(*ends_of_one) for ends_of_one in pairwise(ends)]

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """See `Updater`; those of the policies one after the other."""
        for core, part in zip(self.cores, self._parts, strict=True):
            core.write_weights(out[part])

    def begin_with(self, weights: NDArray[np.float32], env_steps: int) -> None:
        """Begin with trained policies' `weights`; see `ReplayUpdate.begin_with`."""
        for core, part in zip(self.cores, self._parts, strict=True):
            core.begin_with(weights[part], env_steps)

    def metrics(self) -> Mapping[str, float]:
        """Scalars of each policy, with its name appended, and their means over the policies that have them."""
        by_policy: dict[str, float] = {}
        found: dict[str, list[float]] = {}
        for policy, core in zip(self.policies, self.cores, strict=True):
            for name, value in core.metrics().items():
                public = name if "/" in name else f"train/{name}"
                by_policy[f"{public}/{policy.name}"] = float(value)
                found.setdefault(public, []).append(float(value))
        return {name: float(np.mean(values)) for name, values in found.items()} | by_policy

    def state_dict(self) -> dict[str, Any]:
        """See `Updater`."""
        each = zip(self.policies, self.cores, strict=True)
        return {"policies": {policy.name: core.state_dict() for policy, core in each}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Updater`."""
        if not isinstance(state.get("policies"), Mapping) or set(state["policies"]) != {
            policy.name for policy in self.policies
        }:
            raise ValueError(f"policies must be {', '.join(policy.name for policy in self.policies)}")
        for policy, core in zip(self.policies, self.cores, strict=True):
            core.load_state_dict(state["policies"][policy.name])


class AgentReplayUpdater(AgentUpdater):
    """Updaters of several policies that learn from replay, one of which makes each update."""

    cores: list[ReplayUpdater | SequenceUpdater]

    def update(self, batch: PolicyBatch) -> UpdateResult:
        """Make a gradient step of the policy whose rows `batch` has."""
        core: Any = self.cores[batch.policy]
        result: UpdateResult = core.update(batch.own)
        return result


class AgentSegmentUpdater(AgentUpdater):
    """Updaters of several policies that learn from segments, one iteration of each after the other.

    A policy none of whose agents takes part in the segments makes no step on them.
    """

    cores: list[SegmentUpdater]

    def __init__(self, policies: Sequence[AgentPolicy], cores: Sequence[SegmentUpdater]) -> None:
        super().__init__(policies, cores)
        self._unfinished: list[int] = []

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """See `SegmentUpdater`."""
        self._unfinished = []
        for index, (policy, core) in enumerate(zip(self.policies, self.cores, strict=True)):
            own = [segment_of(segment, policy) for segment in segments]
            if any(((segment.flags & UNTRAINED) == 0).any() for segment in own):
                core.begin(own, progress)
                self._unfinished.append(index)

    def step(self) -> bool:
        """See `SegmentUpdater`; of the first policy whose iteration has another step."""
        if self._unfinished and not self.cores[self._unfinished[0]].step():
            del self._unfinished[0]
        return bool(self._unfinished)

    @property
    def samples(self) -> int:
        """See `SegmentUpdater`; over all policies."""
        return sum(core.samples for core in self.cores)

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """See `SegmentUpdater`; names are followed by the policy's."""
        each = zip(self.policies, self.cores, strict=True)
        return {f"{name}_{policy.name}": rows for policy, core in each for name, rows in core.batch().items()}

    def reuse(self) -> bool:
        """See `SegmentUpdater`."""
        self._unfinished = [index for index, core in enumerate(self.cores) if core.reuse()]
        return bool(self._unfinished)

    def value_pairs(self) -> ValuePairs | None:
        """Values and returns of some rows of all policies, None if no policy has them."""
        each = [getattr(core, "value_pairs", lambda: None)() for core in self.cores]
        found = [pairs for pairs in each if pairs is not None]
        if not found:
            return None
        return ValuePairs(
            tuple(value for pairs in found for value in pairs.predicted),
            tuple(value for pairs in found for value in pairs.realised),
        )

    def state_dict(self) -> dict[str, Any]:
        """See `Updater`."""
        return {**super().state_dict(), "unfinished": np.array(self._unfinished, np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Updater`."""
        super().load_state_dict(state)
        self._unfinished = [int(index) for index in state["unfinished"]]


def segment_of(segment: Segment, policy: AgentPolicy) -> Segment:
    """Streams of the policy's agents in a segment, as copies; version, weight and staleness are the segment's."""
    streams = policy.streams(segment.num_envs, segment.num_agents)
    return dataclasses.replace(
        segment,
        obs=policy.own_observations(segment.obs)[streams],
        last_obs=policy.own_observations(segment.last_obs)[streams],
        action=policy.own_actions(segment.action)[streams],
        reward=segment.reward[streams],
        flags=segment.flags[streams],
        extras={name: values[streams] for name, values in segment.extras.items()},
        num_agents=len(policy.members),
    )
