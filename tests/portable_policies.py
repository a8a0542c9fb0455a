"""Policies of every algorithm with the weights of a new learner, or random ones, as if from a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import asyncrl
from asyncrl.algorithms import ALGORITHMS
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import Agent, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.options import option_values
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.storage.checkpoint_meta import CheckpointMeta

BOX = BoxAction((-1.0, -2.0), (3.0, 2.0), (2,))


def portable(algorithm: Any, spec: EnvSpec, env: Any = "CartPole-v1", seed: int = 0) -> PortablePolicy:
    """Policy with the weights that a new learner publishes, and statistics that differ from the initial ones.

    The environment gets agents if the algorithm needs several.
    """
    if getattr(algorithm, "needs_agents", False):
        spec = replace(spec, agents=(Agent("a"), Agent("b")))
    core = algorithm.make_updater(spec, "cpu", seed)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    layout = getattr(algorithm, "acting_layout", algorithm.layout)(spec)
    if getattr(layout, "normalized", False):
        weights[layout.obs_mean], weights[layout.obs_scale] = 0.5, 2.0
    source = EnvSource.from_user(env)
    meta = CheckpointMeta(
        env=source.name, algo=algorithm.name, spec=spec, options=option_values(algorithm), env_steps=12
    )
    return PortablePolicy(algorithm, weights, meta, source)


def random_policy(algorithm: Any, env: Any) -> PortablePolicy:
    """Policy with random weights for an environment, which is built for its spaces."""
    source = EnvSource.from_user(env)
    spec = describe(source)
    meta = CheckpointMeta(env=source.name, algo=algorithm.name, spec=spec, options=option_values(algorithm))
    count = algorithm.make_policy(spec).weight_count
    weights = np.random.default_rng(0).normal(0, 0.3, count).astype(np.float32)
    return PortablePolicy(algorithm, weights, meta, source)


def small(env: Any = "CartPole-v1") -> PortablePolicy:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    return portable(asyncrl.DQN(hidden_sizes=(8,)), spec, env)


CASES = {
    **{
        name: (record(), BOX if record.needs_bounds else DiscreteAction(3, 1))
        for name, record in ALGORITHMS.items()
        if not record.needs_agents  # their policies are those of DQN, PPO and DDPG
    },
    "ppo normalised": (asyncrl.PPO(normalize_observations=True), DiscreteAction(3)),
    "ppo multidiscrete": (asyncrl.PPO(), MultiDiscreteAction((2, 3))),
    "ppo multidiscrete, moved": (asyncrl.PPO(), MultiDiscreteAction((2, 3, 4, 2), (0, -2, 5, 0), (2, 2))),
    "ppo squashed": (asyncrl.PPO(normalize_observations=True, squashed=True), BOX),
    "dqn dueling, noisy": (asyncrl.DQN(dueling=True, noisy=True, hidden_sizes=(8, 8)), DiscreteAction(3)),
}


def make_network(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(inputs, 5), torch.nn.ELU(), torch.nn.Linear(5, outputs))
