"""Segments for tests of on-policy algorithms: with actions of their own policy, from arrays or tiny environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import (
    RESET,
    TERMINATED,
    TRUNCATED,
    Agent,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
    Segment,
)
from asyncrl.options import option_help

SPECS = {
    "discrete": EnvSpec("discrete", (4,), "float32", DiscreteAction(3)),
    "shifted": EnvSpec("shifted", (2,), "float32", DiscreteAction(2, start=5)),
    "image": EnvSpec("image", (3, 4), "uint8", DiscreteAction(4)),
    "cells": EnvSpec("cells", (3, 4), "uint8", DiscreteAction(4), observation_kind="values"),
    "multi": EnvSpec("multi", (3,), "float32", MultiDiscreteAction((2, 4))),
    "box": EnvSpec("box", (5,), "float32", BoxAction((-1.0, -2.0), (1.0, 2.0), (2,))),
    "wide": EnvSpec("wide", (2,), "float32", BoxAction((-np.inf,) * 2, (np.inf,) * 2, (1, 2))),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "box": {"squashed": True, "normalize_observations": True},
    "wide": {"normalize_observations": True, "normalize_rewards": True},
}
"""Options with which an environment of that kind is tried, so that every path of acting is."""

Observe = Callable[[tuple[int, ...], np.random.Generator], np.ndarray]


def record(name: str, kind: str = "discrete", **overrides: Any) -> Any:
    """A small algorithm for environments of that kind, with several gradient steps per pass if it supports them.

    It has two epochs where it has more by default: a third one does what the second does.
    """
    several = {"minibatch_size": 40, "minibatches": 2, "epochs": min(2, ALGORITHMS[name].epochs)}
    known = option_help(ALGORITHMS[name])
    sizes: dict[str, Any] = {"hidden_sizes": (16, 16), "segment_length": 24, "learning_rate": 3e-3}
    sizes |= {option: value for option, value in several.items() if option in known}
    return ALGORITHMS[name](**{**sizes, **OPTIONS.get(kind, {}), **overrides})


def spec_of(name: str, spec: EnvSpec) -> EnvSpec:
    """`spec`, of two agents if the algorithm needs several."""
    return replace(spec, agents=(Agent("a"), Agent("b"))) if ALGORITHMS[name].needs_agents else spec


def weights_of(core: Any) -> np.ndarray:
    out = np.full(core.weight_count, np.nan, np.float32)
    core.write_weights(out)
    assert np.isfinite(out).all(), "every weight is written"
    return out


def observations(spec: EnvSpec, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    shape = (*shape, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return rng.integers(0, 11 if spec.byte_factor == 1 else 256, shape, dtype=np.uint8)
    return (3.0 + 2.0 * rng.normal(size=shape)).astype(spec.observation_dtype)


def flags_of(envs: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Random ends, each followed by a RESET row, and RESET rows without an end, as after an actor's death."""
    flags = np.zeros((envs, rows), np.uint8)
    for e in range(envs):
        for t in range(rows):
            if t and flags[e, t - 1] & (TERMINATED | TRUNCATED):
                flags[e, t] = RESET
            else:
                flags[e, t] = rng.choice([0, TERMINATED, TRUNCATED, RESET], p=[0.85, 0.06, 0.06, 0.03])
    return flags


def acted(
    algorithm: Any, spec: EnvSpec, weights: np.ndarray, *, seed: int = 0, envs: int = 3, ring: int = 0
) -> Segment:
    """Segment of random observations, rewards and flags, with actions and extras of the policy."""
    rng, envs = np.random.default_rng(seed), envs * spec.num_agents
    rows = algorithm.segment_length
    policy = algorithm.make_policy(spec)
    policy.load_weights(weights)
    policy.assign_streams(0, envs * rows, envs * rows)
    obs = observations(spec, (envs, rows), rng)
    policy.assign_streams(0, envs * rows, envs * rows)
    action, extras = policy.act(obs.reshape(-1, *spec.observation_shape), rng, 0)
    return Segment(
        ring=ring,
        first=0,
        obs=obs,
        last_obs=observations(spec, (envs,), rng),
        action=action.reshape(envs, rows, *spec.action.shape),
        reward=rng.normal(size=(envs, rows)).astype(np.float32),
        flags=np.repeat(flags_of(envs // spec.num_agents, rows, rng), spec.num_agents, axis=0),
        version=np.zeros(rows, np.int64),
        policy_updates=np.zeros(rows, np.int64),
        extras={name: value.reshape(envs, rows, *value.shape[1:]) for name, value in extras.items()},
        weight=np.ones(rows, np.float32),
        staleness=np.zeros(rows, np.int64),
    )


def batch_of(algorithm: Any, spec: EnvSpec, core: Any, seed: int = 0, count: int = 2) -> list[Segment]:
    """`count` segments of as many rings, with actions of the core's weights."""
    weights = weights_of(core)
    return [acted(algorithm, spec, weights, seed=100 * seed + ring, ring=ring) for ring in range(count)]


def iterate(core: Any, segments: list[Segment], progress: float = 0.0) -> int:
    """Run a whole iteration; returns its number of steps."""
    core.begin(segments, progress)
    steps = 1
    while core.step():
        steps += 1
    return steps


class Guessing:
    """E environments with episodes of `length` steps in which each step's reward depends only on that step.

    Args:
        spec: of the environments; observations are random, and the correct actions follow from them.
        reward: function of observations `[E, ...]` and actions `[E, ...]` in storage form.
    """

    def __init__(
        self,
        spec: EnvSpec,
        reward: Callable[[np.ndarray, np.ndarray], np.ndarray],
        observe: Observe,
        *,
        envs: int = 16,
        length: int = 10,
    ) -> None:
        self.spec, self.envs, self._length = spec, envs, length
        self._reward, self._observe = reward, observe
        self._rng = np.random.default_rng(7)
        self._age = np.arange(envs) % length
        self._obs = observe((envs,), self._rng)
        self._position = 0

    def segment(self, policy: Any, rows: int, rng: np.random.Generator) -> Segment:
        """Next `rows` rows with actions of `policy`."""
        envs, spec = self.envs, self.spec
        policy.assign_streams(0, envs, envs)
        obs = np.empty((envs, rows, *spec.observation_shape), spec.observation_dtype)
        action = np.empty((envs, rows, *spec.action.shape), spec.action.dtype)
        reward, flags = np.zeros((envs, rows), np.float32), np.zeros((envs, rows), np.uint8)
        extras: dict[str, np.ndarray] = {}
        for t in range(rows):
            obs[:, t] = self._obs
            action[:, t], drawn = policy.act(self._obs, rng, 0)
            for name, value in drawn.items():
                extras.setdefault(name, np.empty((envs, rows, *value.shape[1:]), value.dtype))[:, t] = value
            reset = self._age == self._length
            reward[:, t] = np.where(reset, 0.0, self._reward(self._obs, action[:, t]))
            flags[:, t] = np.where(reset, RESET, np.where(self._age == self._length - 1, TERMINATED, 0))
            self._age = np.where(reset, 0, self._age + 1)
            self._obs = self._observe((envs,), self._rng)
        self._position += rows
        ones, zeros = np.ones(rows, np.float32), np.zeros(rows, np.int64)
        first = self._position - rows
        last = self._obs.copy()
        return Segment(0, first, obs, last, action, reward, flags, zeros, zeros, extras, ones, zeros)

    def greedy_reward(self, policy: Any, count: int = 500) -> float:
        """Mean reward of the greedy action."""
        obs = self._observe((count,), np.random.default_rng(11))
        return float(self._reward(obs, policy.greedy(obs)).mean())
