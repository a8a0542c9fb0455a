"""Normalised observations in replay algorithms: learner and actor see the same numbers."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrl import C51, DQN, QRDQN, SAC, TD3, CrossQ, Rainbow, Trainer
from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.network import NetworkInputs
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec

CHOICES = EnvSpec("test", (4,), "float32", DiscreteAction(3))
BOX = EnvSpec("test", (4,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
MEAN, DEVIATION = np.array([1e4, -3.0, 0.0, 5.0]), np.array([1e4, 1e-2, 1.0, 30.0])

ALGORITHMS = [
    (DQN, CHOICES),
    (C51, CHOICES),
    (QRDQN, CHOICES),
    (Rainbow, CHOICES),
    (SAC, BOX),
    (TD3, BOX),
    (CrossQ, BOX),
]


def filled(spec: EnvSpec, rng: np.random.Generator) -> Batch:
    batch = Batch.allocate(32, spec)
    for array in (batch.obs, batch.next_obs):
        array[:] = MEAN + DEVIATION * rng.normal(size=array.shape)
    batch.action[:] = rng.integers(0, 2, batch.action.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=32), 0.9, 1.0
    return batch


def weights_of(core: Any) -> np.ndarray:
    out = np.full(core.weight_count, np.nan, np.float32)
    core.write_weights(out)
    assert np.isfinite(out).all(), "every number is written"
    return out


@pytest.mark.parametrize(("record", "spec"), ALGORITHMS, ids=lambda value: getattr(value, "name", ""))
def test_statistics_travel_with_the_weights(record: Any, spec: EnvSpec) -> None:
    algorithm, rng = record(normalize_observations=True), np.random.default_rng(0)
    core = algorithm.make_updater(spec, "cpu", 0)
    seen = []
    for _ in range(20):
        batch = filled(spec, rng)
        seen.append(batch.obs.copy())
        core.update(batch)
    rows = np.concatenate(seen).astype(np.float64)
    policy = pickle.loads(pickle.dumps(algorithm.make_policy(spec)))
    policy.load_weights(weights_of(core))
    assert policy.weight_count == core.weight_count == record().make_policy(spec).weight_count + 8
    layout = policy.layout
    np.testing.assert_allclose(policy.weights[layout.obs_mean], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(policy.weights[layout.obs_scale], 1 / rows.std(axis=0), rtol=1e-3)


def test_policy_and_learner_give_the_same_values() -> None:
    algorithm, rng = DQN(normalize_observations=True), np.random.default_rng(0)
    core, policy = algorithm.make_updater(CHOICES, "cpu", 0), algorithm.make_policy(CHOICES)
    batch = filled(CHOICES, rng)
    core.update(batch)
    policy.load_weights(weights_of(core))
    rows = np.empty((32, 4), np.float32)
    NetworkInputs(CHOICES).fill(batch.obs, rows, core.statistics.normalisation)
    assert 0.5 < np.abs(rows).mean() < 1.5
    np.testing.assert_allclose(policy.q_values(batch.obs), core.action_values(rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("record", "spec"), [ALGORITHMS[0], ALGORITHMS[4]])
def test_state_holds_the_statistics(record: Any, spec: EnvSpec) -> None:
    algorithm, rng = record(normalize_observations=True), np.random.default_rng(0)
    first, second = (algorithm.make_updater(spec, "cpu", seed) for seed in (0, 1))
    first.update(filled(spec, rng))
    second.load_state_dict(first.state_dict())
    batch = filled(spec, rng)
    for core in (first, second):
        core.update(batch)
    np.testing.assert_array_equal(weights_of(first), weights_of(second))
    assert "statistics" not in record().make_updater(spec, "cpu", 0).state_dict()


class Layout(NetworkLayout):
    inputs, normalized, network_count = 2, True, 3


@pytest.mark.parametrize("heard", [False, True])
def test_state_holds_statistics_that_came_from_other_learners_alone(heard: bool) -> None:
    layout = DQN(normalize_observations=True).layout(CHOICES)
    ours, restored, other = (ObservationStatistics(layout) for _ in range(3))
    if heard:
        other.take_message()
        other.observe(np.random.default_rng(0).normal(3.0, 2.0, (50, 4)))
        ours.merge(other.take_message())
    restored.load_state_dict(ours.state_dict())
    for own, theirs in zip(restored.normalisation, ours.normalisation, strict=True):
        assert np.array_equal(own, theirs)
    assert (ours.mean != 0.0).all() == heard


def test_later_batches_count_once_in_a_while() -> None:
    statistics = ObservationStatistics(Layout())
    for batch in range(statistics.EVERY_BATCH + 2 * statistics.INTERVAL):
        statistics.observe(np.full((4, 2), float(batch)))
    assert statistics.count == 4 * (statistics.EVERY_BATCH + 2)
    out = np.zeros(7, np.float32)
    statistics.write(out)
    mean, scale = statistics.normalisation
    assert (out[:3] == 0).all() and (out[3:5] == mean).all() and (out[5:] == scale).all()


class Scaled(gymnasium.ObservationWrapper):
    """CartPole with a position and a speed of ten thousands, and an angle and its speed of thousandths."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return (observation * (1e4, 1e4, 1e-3, 1e-3)).astype(np.float32)


@pytest.mark.slow
def test_dqn_learns_from_observations_of_any_scale() -> None:
    """As they are, the observations have led to returns below 50."""
    algorithm = DQN.preset("CartPole-v1", normalize_observations=True)
    options = {**DQN.preset_options("CartPole-v1"), "eval_interval_steps": 1000, "target_eval_episodes": 20}
    with Trainer(Scaled, algorithm, seed=0, http="off", **options) as trainer:
        result = trainer.learn(target_return=150.0, total_steps=6_000)
    assert result.stop_reason == "target_return", result.evaluation
