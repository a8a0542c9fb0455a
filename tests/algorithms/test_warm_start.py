"""Initialization of a new updater with a policy's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from asyncrl import A2C, C51, DQN, IQL, PPO, QRDQN, R2D2, SAC, TD3, TQC, CrossQ
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec

DISCRETE = EnvSpec("discrete", (4,), "float32", DiscreteAction(3))
BOX = EnvSpec("box", (4,), "float32", BoxAction((-1.0, -1.0), (1.0, 1.0), (2,)))

IMAGES = EnvSpec("images", (21, 21), "uint8", DiscreteAction(3))


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """A network of the user's own."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def weights_of(core: Any) -> Any:
    weights = np.zeros(core.weight_count, np.float32)
    core.write_weights(weights)
    return weights


@pytest.mark.parametrize(
    ("record", "spec"),
    [
        (DQN(hidden_sizes=(8,)), DISCRETE),
        (DQN(hidden_sizes=(8, 8), dueling=True), DISCRETE),
        (C51(hidden_sizes=(8,)), DISCRETE),
        (QRDQN(hidden_sizes=(8,)), DISCRETE),
        (R2D2(hidden_sizes=(8,), normalize_observations=True), DISCRETE),
        (PPO(hidden_sizes=(8,)), DISCRETE),
        (PPO(hidden_sizes=(8,), normalize_observations=True), BOX),
        (A2C(hidden_sizes=(8,)), DISCRETE),
        (DQN(hidden_sizes=(8,), normalize_observations=True), DISCRETE),
        (QRDQN(hidden_sizes=(8,), normalize_observations=True), DISCRETE),
        (SAC(hidden_sizes=(8,), normalize_observations=True), BOX),
        (SAC(hidden_sizes=(8,)), BOX),
        (TD3(hidden_sizes=(8,)), BOX),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_it_acts_as_the_policy_did(record: Any, spec: EnvSpec) -> None:
    donor, core = (record.make_updater(spec, "cpu", seed) for seed in (1, 2))
    given = weights_of(donor)
    if getattr(record, "normalize_observations", False):
        obs = np.random.default_rng(0).normal(3.0, 2.0, (50, 4)).astype(np.float32)
        if hasattr(donor, "nets"):
            donor.nets.observe(obs, np.zeros(50, np.uint8))
            donor.nets.move_statistics()
        else:
            donor.statistics.observe(obs)
        given = weights_of(donor)
    assert not np.allclose(weights_of(core), given)
    core.begin_with(given, env_steps=1_000)
    assert np.allclose(weights_of(core), given, rtol=1e-6, atol=1e-6)


def test_targets_follow() -> None:
    donor, core = (DQN(hidden_sizes=(8,)).make_updater(DISCRETE, "cpu", seed) for seed in (1, 2))
    core.begin_with(weights_of(donor), 1)
    assert (core._target.flat == donor._online.flat).all()
    donor, core = (TD3(hidden_sizes=(8,)).make_updater(BOX, "cpu", seed) for seed in (1, 2))
    core.begin_with(weights_of(donor), 1)
    assert (core.target_policy.flat == donor.policy.flat).all()
    assert not (core.critics.flat == donor.critics.flat).all(), "critics begin fresh"


@pytest.mark.parametrize(
    ("record", "spec"),
    [
        (SAC(hidden_sizes=(8, 6)), BOX),
        (TD3(hidden_sizes=(8,)), BOX),
        (TQC(hidden_sizes=(8,)), BOX),
        (SAC(hidden_sizes=(8,), network=perceptron), BOX),
        (IQL(hidden_sizes=(8,)), BOX),
        (PPO(hidden_sizes=(8, 6)), DISCRETE),
        (PPO(network="small"), IMAGES),
        (PPO(hidden_sizes=(8,), recurrent="gru", recurrent_size=8), DISCRETE),
        (A2C(hidden_sizes=(8,), network=perceptron), DISCRETE),
    ],
    ids=["sac", "td3", "tqc", "own sac", "iql", "ppo", "shared trunk", "recurrent", "own a2c"],
)
def test_critics_and_their_targets_are_those_of_the_policy(record: Any, spec: EnvSpec) -> None:
    donor, core = (record.make_updater(spec, "cpu", seed) for seed in (1, 2))
    critics = donor.critic_weights()
    assert critics.shape == record.critic_layout(spec).shape
    assert not np.array_equal(core.critic_weights(), critics)
    core.begin_with(weights_of(donor), 1)
    core.begin_with_critics(critics)
    assert np.array_equal(core.critic_weights(), critics)
    assert np.array_equal(weights_of(core), weights_of(donor))
    if hasattr(core, "target_critics"):
        assert (core.target_critics.flat == core.critics.flat).all()
        assert (core.critics.flat == donor.critics.flat).all()


def test_what_cannot_be_taken_apart_is_refused() -> None:
    core = CrossQ(hidden_sizes=(8,)).make_updater(BOX, "cpu", 1)
    with pytest.raises(ValueError, match="crossq folds its batch normalisation"):
        core.begin_with(weights_of(core), 1)
