"""Several policies that act as one: each for its own agents, by its own part of the weights."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl import DQN, PPO, R2D2, SAC
from asyncrl.acting.agent_policies import AgentPolicies, make_policy
from asyncrl.acting.policies import has_epsilon
from asyncrl.interfaces import Agent, AgentPolicy, BoxAction, DiscreteAction, EnvSpec

AGENTS = (Agent("a"), Agent("b"), Agent("c"))
STREAMS = {"outer": [0, 2, 3, 5], "inner": [1, 4]}
"""Streams of the policies' agents, of two environments."""


def spec_of(outer: Any, inner: Any, outer_values: int = 4, inner_values: int = 2) -> EnvSpec:
    """Three agents: `a` and `c` have the policy `outer`, `b` has `inner`, which sees fewer values."""
    of = EnvSpec("three", (outer_values,), "float32", outer, agents=(AGENTS[0], AGENTS[2]))
    other = EnvSpec("three", (inner_values,), "float32", inner, agents=(AGENTS[1],))
    longest = max(outer, inner, key=lambda action: action.shape)
    policies = AgentPolicy("outer", "a|c", (0, 2), of), AgentPolicy("inner", "b", (1,), other)
    return EnvSpec("three", (4,), "float32", longest, agents=AGENTS, policies=policies)


def box(size: int) -> BoxAction:
    return BoxAction((-1.0,) * size, (1.0,) * size, (size,))


CASES = {
    "ppo": (PPO(hidden_sizes=(8,)), spec_of(DiscreteAction(3), DiscreteAction(5))),
    "dqn": (DQN(hidden_sizes=(8,)), spec_of(DiscreteAction(3), DiscreteAction(2))),
    "sac": (SAC(hidden_sizes=(8,)), spec_of(box(1), box(3))),
    "r2d2": (R2D2(hidden_sizes=(8,), recurrent_size=4), spec_of(DiscreteAction(3), DiscreteAction(5))),
}


def loaded(name: str) -> tuple[Any, list[Any], EnvSpec]:
    """The policies as one, and each by itself with the same weights."""
    algorithm, spec = CASES[name]
    policy: Any = make_policy(algorithm, spec)
    policy.load_weights(np.random.default_rng(1).normal(size=policy.weight_count).astype(np.float32))
    alone, start = [], 0
    for own in spec.policies:
        part = algorithm.make_policy(own.spec)
        part.load_weights(policy.weights[start : start + part.weight_count])
        start += part.weight_count
        alone.append(part)
    assert start == policy.weight_count
    return policy, alone, spec


@pytest.mark.parametrize("name", CASES)
def test_each_agent_acts_by_its_own_policy(name: str) -> None:
    policy, alone, spec = loaded(name)
    policy.assign_streams(0, 6, 12)
    for part, agents in zip(alone, (2, 1), strict=True):
        part.assign_streams(0, 2 * agents, 4 * agents)
    rngs = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(4):
        obs = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
        actions, extras = policy.act(obs, rngs[0], 10)
        assert actions.shape == (6, *spec.action.shape) and actions.dtype == spec.action.dtype
        for own, part in zip(spec.policies, alone, strict=True):
            streams = STREAMS[own.name]
            seen = obs[streams][:, : own.spec.observation_shape[0]]
            action, drawn = part.act(seen, rngs[1], 10)
            size = own.spec.action.shape[0] if own.spec.action.shape else 0
            mine = actions[streams] if not size else actions[streams][:, :size]
            np.testing.assert_array_equal(mine, action)
            assert not size or (actions[streams][:, size:] == 0).all(), "the rest of a row is zero"
            for field, values in drawn.items():
                np.testing.assert_array_equal(extras[field][streams], values)
    assert has_epsilon(policy) == has_epsilon(alone[0])
    assert policy.exploration_rate == pytest.approx(
        (2 * alone[0].exploration_rate + alone[1].exploration_rate) / 3
    )


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_greedy_actions_are_those_of_each_policy(name: str) -> None:
    policy, alone, spec = loaded(name)
    obs = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
    actions = policy.greedy(obs)
    for own, part, streams in zip(spec.policies, alone, ([0, 2, 3, 5, 6, 8], [1, 4, 7]), strict=True):
        expected = part.greedy(obs[streams][:, : own.spec.observation_shape[0]])
        np.testing.assert_array_equal(own.own_actions(actions)[streams], expected)


def test_the_states_of_recurrent_policies_are_those_of_their_streams() -> None:
    policy, alone, spec = loaded("r2d2")
    policy.assign_streams(0, 6, 6)
    for part, agents in zip(alone, (2, 1), strict=True):
        part.assign_streams(0, 2 * agents, 2 * agents)
    rng = np.random.default_rng(4)
    for _ in range(3):
        obs = rng.normal(size=(6, 4)).astype(np.float32)
        policy.greedy(obs)
        for own, part in zip(spec.policies, alone, strict=True):
            part.greedy(obs[STREAMS[own.name]][:, : own.spec.observation_shape[0]])
    state = policy.memory.state
    for own, part in zip(spec.policies, alone, strict=True):
        np.testing.assert_array_equal(state[STREAMS[own.name]], part.memory.state)
    policy.memory.begin(np.array([1, 2]))
    begun = policy.memory.state
    assert (begun[[1, 2]] == 0).all()
    np.testing.assert_array_equal(begun[[0, 3, 4, 5]], state[[0, 3, 4, 5]])
    policy.memory.state = state[:3]
    np.testing.assert_array_equal(policy.memory.state, state[:3])
    policy.memory.forget(9)
    assert policy.memory.state.shape == (9, state.shape[1]) and not policy.memory.state.any()


def test_weights_are_one_block_and_a_pickle_keeps_them() -> None:
    policy, _, _ = loaded("ppo")
    obs = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    again = pickle.loads(pickle.dumps(policy))
    assert isinstance(again, AgentPolicies)
    np.testing.assert_array_equal(again.greedy(obs), policy.greedy(obs))
    before = policy.greedy(np.tile(obs, (40, 1)))
    policy.weights[:] = np.random.default_rng(9).normal(size=policy.weight_count)
    np.testing.assert_array_equal(policy.greedy(np.tile(obs, (40, 1))), before)  # until it is told
    policy.weights_changed()
    assert (policy.parts[1].weights == policy.weights[-policy.parts[1].weight_count :]).all()
    with pytest.raises(ValueError, match="weights must have shape"):
        policy.load_weights(np.zeros(3, np.float32))


def test_without_policies_it_is_the_algorithms_own() -> None:
    algorithm, spec = CASES["dqn"]
    assert type(make_policy(algorithm, replace(spec, policies=()))) is type(algorithm.make_policy(spec))


@pytest.mark.parametrize("greedy", ["outer", "inner"])
def test_policies_explore_if_one_of_them_does(greedy: str) -> None:
    algorithm, spec = CASES["dqn"]
    still = {"exploration_initial": 0.0, "exploration_final": 0.0}
    own = tuple(replace(p, options=still if p.name == greedy else {}) for p in spec.policies)
    assert has_epsilon(make_policy(algorithm, replace(spec, policies=own)))
    none = tuple(replace(p, options=still) for p in spec.policies)
    assert not has_epsilon(make_policy(algorithm, replace(spec, policies=none)))
