"""Initialization of a new updater with a policy's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl import A2C, C51, DQN, PPO, QRDQN, R2D2, SAC, TD3, CrossQ
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec

DISCRETE = EnvSpec("discrete", (4,), "float32", DiscreteAction(3))
BOX = EnvSpec("box", (4,), "float32", BoxAction((-1.0, -1.0), (1.0, 1.0), (2,)))


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


def test_what_cannot_be_taken_apart_is_refused() -> None:
    core = CrossQ(hidden_sizes=(8,)).make_updater(BOX, "cpu", 1)
    with pytest.raises(ValueError, match="crossq folds its batch normalisation"):
        core.begin_with(weights_of(core), 1)
