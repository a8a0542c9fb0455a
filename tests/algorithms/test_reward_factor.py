from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl import A2C, C51, DQN, PPO, SAC, TD3, VDN, CrossQ, Rainbow
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.interfaces import Agent, Batch, BoxAction, DiscreteAction, EnvSpec
from tests.algorithms.segment_rig import batch_of
from tests.algorithms.test_value_decomposition import random_batch

LINE = EnvSpec("line", (3,), "float32", DiscreteAction(4))
BOX = EnvSpec("box", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
AGENTS = EnvSpec("agents", (3,), "float32", DiscreteAction(4), agents=(Agent("a"), Agent("b")))


def decided(reward: Any, steps: int = 1) -> RewardFactor:
    factor = RewardFactor()
    factor.decide(np.array(reward, np.float32), steps)
    return factor


@pytest.mark.parametrize(
    ("reward", "steps", "factor"),
    [
        ([1.0, 1.0], 1, 1.0),
        ([0.0, -9.9, 9.9], 1, 1.0),  # zeros do not count, nor do signs
        ([0.011], 1, 1.0),
        ([10.0], 1, 0.1),
        ([29.0], 3, 1.0),  # 9.67 a step
        ([31.0], 3, 0.1),
        ([0.0099], 1, 100.0),
        ([400.0], 1, 1e-3),  # 0.4 is nearer to 1 than 4, in powers of ten
        ([200.0], 1, 1e-2),
        ([1.0, 1999.0], 1, 1e-3),
        ([1e-5, 0.0, 0.0, 0.0], 1, 1e5),
        ([3e38], 1, 1e-30),
        ([1e-40], 1, 1e30),
    ],
)
def test_the_factor_of_rewards(reward: Any, steps: int, factor: float) -> None:
    assert decided(reward, steps).factor == pytest.approx(factor)


@pytest.mark.parametrize("reward", [[0.0, 0.0], [np.inf, 1.0], [np.nan]])
def test_rewards_that_decide_nothing(reward: Any) -> None:
    factor = decided(reward)
    assert not factor.decided and factor.factor == 1.0
    factor.decide(np.full(3, 1000.0, np.float32))
    assert factor.factor == pytest.approx(1e-3), "the first rewards that say something do"
    factor.decide(np.full(3, 1.0, np.float32))
    assert factor.factor == pytest.approx(1e-3), "once"


def filled(spec: EnvSpec, size: float) -> Batch:
    rng, batch = np.random.default_rng(0), Batch.allocate(32, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, 32, 3))
    batch.action[:] = rng.integers(4, size=32) if spec is LINE else rng.uniform(-1, 1, size=(32, 1))
    batch.reward[:], batch.discount[:], batch.weight[:] = size * rng.choice([-1.0, 1.0], 32), 0.9, 1.0
    return batch


def after_updates(record: Any, spec: EnvSpec, size: float, count: int = 3) -> Any:
    core = record.make_updater(spec, "cpu", 0)
    for _ in range(count):
        core.update(filled(spec, size))
    return core


@pytest.mark.parametrize(
    ("record", "spec"),
    [(DQN(batch_size=32, hidden_sizes=(8,)), LINE), (SAC(batch_size=32, hidden_sizes=(8,)), BOX)],
)
def test_rewards_in_another_unit_give_the_same_networks(record: Any, spec: EnvSpec) -> None:
    one, thousand = (after_updates(record, spec, size) for size in (1.0, 1000.0))
    np.testing.assert_array_equal(one.vector.parameters, thousand.vector.parameters)
    assert "train/reward_scale" not in one.metrics()
    assert thousand.metrics()["train/reward_scale"] == pytest.approx(1e-3)
    assert thousand.metrics()["train/value_high"] == one.metrics()["train/value_high"]
    batch = filled(spec, 1000.0)
    np.testing.assert_allclose(
        thousand.values_of(batch.action), one.values_of(batch.action) * np.float32(1000.0), rtol=1e-5
    )


def test_a_factor_that_is_given_stays() -> None:
    for record in (DQN(reward_scale=1.0), C51(), Rainbow()):
        core = after_updates(record, LINE, 1000.0, 1)
        assert core.reward_scale.factor == 1.0 and "train/reward_scale" not in core.metrics()
    for record in (SAC(ent_coef=0.2), TD3(reward_scale=0.5)):
        core = after_updates(record, BOX, 1000.0, 1)
        assert core.reward_scale.factor == record.given_reward_scale
    assert SAC(ent_coef=0.2, reward_scale=0.1).given_reward_scale == 0.1


def test_learners_of_a_group_have_the_same_factor() -> None:
    core = DQN(batch_size=32, hidden_sizes=(8,)).make_updater(LINE, "cpu", 0)
    core.vector.on_update = lambda: None
    core.update(filled(LINE, 1000.0))
    assert core.reward_scale.factor == 1.0


def test_the_factor_is_part_of_the_state() -> None:
    record = DQN(batch_size=32, hidden_sizes=(8,))
    first, second = after_updates(record, LINE, 1000.0), record.make_updater(LINE, "cpu", 1)
    second.load_state_dict(first.state_dict())
    for core in (first, second):
        core.update(filled(LINE, 1.0))
    np.testing.assert_array_equal(first.vector.parameters, second.vector.parameters)
    assert second.reward_scale.factor == pytest.approx(1e-3)
    old = record.make_updater(LINE, "cpu", 0).state_dict()
    del old["chosen_reward_scale"]  # as checkpoints from before
    second.load_state_dict(old)
    assert second.reward_scale.factor == 1.0 and not second.reward_scale.decided


@pytest.mark.parametrize("algorithm", [SAC, CrossQ])
def test_an_entropy_coefficient_that_a_resumed_run_is_given_is_in_the_unit_of_its_rewards(
    algorithm: Any,
) -> None:
    learned = after_updates(algorithm(batch_size=32, hidden_sizes=(8,)), BOX, 1000.0)
    given = algorithm(batch_size=32, hidden_sizes=(8,), ent_coef=200.0)
    core = given.make_updater(BOX, "cpu", 1)
    assert core.reward_scale.factor == 1.0 and float(core.log_alpha.exp()) == pytest.approx(200.0)
    core.load_state_dict(learned.state_dict())
    again = given.make_updater(BOX, "cpu", 2)
    again.load_state_dict(core.state_dict())
    for one in (core, again):
        one.update(filled(BOX, 1000.0))
        assert one.reward_scale.factor == pytest.approx(1e-3)
        assert float(one.log_alpha.exp()) == pytest.approx(0.2)
    firm = algorithm(batch_size=32, hidden_sizes=(8,), ent_coef=200.0, reward_scale=0.5).make_updater(
        BOX, "cpu", 1
    )
    firm.load_state_dict(learned.state_dict())
    assert firm.reward_scale.factor == 0.5 and float(firm.log_alpha.exp()) == pytest.approx(200.0)


def test_rewards_of_a_team() -> None:
    core = VDN(batch_size=8, hidden_sizes=(8,)).make_updater(AGENTS, "cpu", 0)
    batch = random_batch(AGENTS, 8, 0)
    batch.reward[:], batch.discount[:] = 1000.0, 0.9
    core.update(batch)
    np.testing.assert_allclose(core._buffers.batch.reward, 2.0)


@pytest.mark.parametrize(("record", "factor"), [(A2C(segment_length=8), 1e-3), (PPO(segment_length=8), 1.0)])
def test_segments_are_scaled_unless_their_rewards_are_normalised(record: Any, factor: float) -> None:
    core = record.make_updater(LINE, "cpu", 0)
    segments = batch_of(record, LINE, core)
    for segment in segments:
        segment.reward[:] = 1000.0
    core.begin(segments, 0.0)
    metrics = core.metrics()
    assert metrics.get("train/reward_scale", 1.0) == pytest.approx(factor)
    if factor != 1.0:
        np.testing.assert_allclose(core._rollout.reward, 1.0)
    restored = record.make_updater(LINE, "cpu", 0)
    restored.load_state_dict(core.state_dict())
    assert restored.metrics().get("train/reward_scale", 1.0) == pytest.approx(factor)
