"""Bounds on action values against hand-worked transitions and the values of random decision processes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.algorithms import DDPG, QRDQN, SAC, TD3, TQC, CrossQ
from asyncrl.algorithms.value_bounds import FIRST_VERDICT, ValueBounds, ValueWatch, _extend, entropy_margin
from asyncrl.errors import ActionValuesOutOfRange
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec

pytestmark = pytest.mark.filterwarnings("ignore::asyncrl.errors.ObservationsOfUnusualSize")


def bounds_of(*transitions: tuple[float, float]) -> list[float]:
    """(low, high) after transitions of (reward, discount)."""
    bounds = ValueBounds()
    reward, discount = (np.array(values, np.float32) for values in zip(*transitions, strict=True))
    bounds.extend(reward, discount)
    return bounds.values.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("transitions", "expected"),
    [
        ([(1.0, 0.9), (1.0, 0.0)], (0.0, 10.0)),
        ([(-1.0, 0.9), (-3.0, 0.0)], (-10.0, 0.0)),
        ([(-0.1, 0.9), (-100.0, 0.0), (0.5, 0.9)], (-100.0, 5.0)),  # a crash counts once
        ([(2.0 + 0.9 * 2.0 + 0.81 * 2.0, 0.9**3), (2.0, 0.0)], (0.0, 20.0)),  # three steps, as one step of 2
        ([(2.0 + 0.9 * 2.0, 0.9**2), (2.0, 0.9)], (0.0, 20.0)),  # cut by a time limit after two and one
        ([(0.0, 0.9)], (0.0, 0.0)),
        ([(1.0, 1.0), (-2.0, 0.5)], (-4.0, math.inf)),
        ([(-1.0, 1.0), (3.0, 0.0)], (-math.inf, 3.0)),
        ([(0.0, 1.0)], (0.0, 0.0)),
    ],
)
def test_bounds_by_hand(transitions: list[tuple[float, float]], expected: tuple[float, float]) -> None:
    assert bounds_of(*transitions) == pytest.approx(expected, rel=1e-5)


def test_bounds_only_widen_and_the_kernel_is_its_source() -> None:
    rng = np.random.default_rng(0)
    bounds, plain = ValueBounds(), np.zeros(2, np.float32)
    for _ in range(50):
        reward = rng.normal(0, 3, 8).astype(np.float32)
        discount = rng.choice([0.0, 0.9, 0.97], 8).astype(np.float32)
        before = bounds.values.copy()
        bounds.extend(reward, discount)
        _extend.py_func(reward, discount, plain)  # type: ignore[attr-defined]
        assert bounds.values[0] <= before[0] and bounds.values[1] >= before[1]
        assert bounds.values == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_values_of_every_policy_lie_within(seed: int, n_step: int) -> None:
    """Deterministic chains: each state has one action with its own reward and successor, or ends the episode."""
    rng = np.random.default_rng(seed)
    states, gamma = 12, 0.9
    after, ends = rng.integers(states, size=states), rng.random(states) < rng.choice([0.0, 0.3])
    reward = rng.normal(rng.normal(), 1.0, states)
    values, transitions = np.zeros(states), []
    for _ in range(400):
        values = reward + gamma * np.where(ends, 0.0, values[after])
    for first in range(states):
        state, total, discount = first, 0.0, 1.0
        for _ in range(n_step):
            total, discount = total + discount * reward[state], discount * gamma
            if ends[state]:
                discount = 0.0
                break
            state = after[state]
        transitions.append((total, discount))
    low, high = bounds_of(*transitions)
    assert low * (1 + 1e-5) <= values.min() and values.max() <= high * (1 + 1e-5)
    one_step = max(abs(reward.min()), abs(reward.max())) / (1 - gamma)
    assert max(-low, high) <= one_step * (1 + 1e-5)


def q_metrics(q_max: float, low: float = 0.0, high: float = 10.0) -> dict[str, float]:
    return {"train/q_max": q_max, "train/value_low": low, "train/value_high": high}


def test_values_over_twice_the_bound_are_warned_of_once() -> None:
    watch = ValueWatch()
    watch.check(q_metrics(19.9), FIRST_VERDICT)
    with pytest.warns(ActionValuesOutOfRange) as caught:
        watch.check(q_metrics(1.25e6), FIRST_VERDICT)
        watch.check(q_metrics(2e6), FIRST_VERDICT)
    (warning,) = caught
    assert str(warning.message).startswith(
        "[ASYNC024] an action value has reached 1.25e+06 in size, but the rewards so far and gamma allow 0 to 10;"
    )


@pytest.mark.parametrize(
    ("metrics", "updates"),
    [
        (q_metrics(1e6), FIRST_VERDICT - 1),
        ({"train/q_max": 1e6}, FIRST_VERDICT),
        (q_metrics(1e6, high=0.0), FIRST_VERDICT),
        (q_metrics(math.nan), FIRST_VERDICT),
        ({}, FIRST_VERDICT),
    ],
    ids=["too early", "no bound", "no reward yet", "no number", "no metrics"],
)
def test_nothing_is_said_without_a_bound(metrics: dict[str, float], updates: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ValueWatch().check(metrics, updates)


@pytest.mark.parametrize("side", ["low", "high"])
def test_values_are_not_called_too_large_while_one_side_is_unbounded(side: str) -> None:
    """With gamma 1, +1 per step and -10 at the end, values have the lower bound -10 and no upper one."""
    bounded = {"low": {"train/value_low": -10.0}, "high": {"train/value_high": 10.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ValueWatch().check({"train/q_max": 25.0, **bounded[side]}, FIRST_VERDICT)


def filled(spec: EnvSpec, size: int = 32) -> Batch:
    """Batch with rewards of 1 and a discount of 0.9, so that values are between 0 and 10."""
    rng = np.random.default_rng(1)
    batch = Batch.allocate(size, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(
        0, 1000, (2, *batch.obs.shape)
    )  # extreme: values run off at once
    batch.action[:] = 0
    batch.reward[:], batch.discount[:], batch.weight[:] = 1.0, 0.9, 1.0
    return batch


def mean_target(core: Any) -> torch.Tensor:
    """Targets of the last update, whose errors are the priorities."""
    buffers = core._buffers
    values = core._values(core._by_action(buffers.online.output[: buffers.batch.size]))
    return values.gather(1, buffers.batch.action) - buffers.priorities


@pytest.mark.parametrize("record", [QRDQN, DDPG, TD3])
def test_no_target_is_beyond_the_bounds(record: type) -> None:
    action = DiscreteAction(2) if record is QRDQN else BoxAction((-1.0,), (1.0,), (1,))
    spec = EnvSpec("test", (3,), "float32", action)
    largest = {}
    for bound in (True, False):
        core = record(batch_size=32, hidden_sizes=(16,), bound_targets=bound).make_updater(spec, "cpu", 0)
        core.update(filled(spec))
        target = mean_target(core) if record is QRDQN else core._learned.q - core._learned.critic.td
        largest[bound] = float(target.max())
    assert largest[True] <= 10.0 + 1e-4
    assert largest[False] > 12.0, "the batch has to reach beyond the bounds"


def test_the_entropy_margin_by_hand() -> None:
    per_step = 0.5 * (2 * math.log(2.0) + 3.0)
    assert entropy_margin(0.5, -3.0, 2, 0.9) == pytest.approx(per_step * (1 + 0.9 / 0.1))
    assert entropy_margin(0.5, -3.0, 2, 1.0) == math.inf
    uniform = -math.log(2.0**3) * 3.0  # alpha log pi of actions that are uniform in -1..1
    values = sum(-uniform * 0.9**step for step in range(500))
    assert values == pytest.approx(entropy_margin(3.0, 0.0, 3, 0.9))


def test_a_margin_widens_both_bounds_once_a_reward_was_seen() -> None:
    bounds = ValueBounds()
    assert bounds.metrics(5.0) == {"train/value_low": 0.0, "train/value_high": 0.0}
    bounds.extend(np.ones(1, np.float32), np.full(1, 0.5, np.float32))
    assert bounds.metrics(5.0) == {"train/value_low": -5.0, "train/value_high": 7.0}
    assert bounds.metrics(math.inf) == {}


@pytest.mark.parametrize("record", [SAC, TQC, CrossQ])
def test_entropy_widens_the_bounds_and_clips_nothing(record: Any) -> None:
    spec = EnvSpec("test", (3,), "float32", BoxAction((-1.0, -1.0), (1.0, 1.0), (2,)))
    cores = [
        record(batch_size=32, hidden_sizes=(16,), gamma=0.9, **options).make_updater(spec, "cpu", 0)
        for options in ({"ent_coef": 0.5}, {"ent_coef_initial": 0.5, "target_entropy": -3.0})
    ]
    margins = [0.5 * (2 * math.log(2.0) + entropy) / 0.1 for entropy in (2.0, 3.0)]
    for core, margin in zip(cores, margins, strict=True):
        core.update(filled(spec))
        metrics = core.metrics()
        assert metrics["train/value_low"] == pytest.approx(-margin, rel=1e-4)
        assert metrics["train/value_high"] == pytest.approx(10.0 + margin, rel=1e-4)
        assert metrics["train/q_max"] > 2.0 * metrics["train/value_high"] or record is CrossQ
    other = record(batch_size=32, hidden_sizes=(16,), gamma=0.9).make_updater(spec, "cpu", 1)
    narrow = record(batch_size=32, hidden_sizes=(16,), gamma=0.9).make_updater(spec, "cpu", 1)
    other.bounds.values[:] = -1e6, 1e6
    for core in (other, narrow):
        core.update(filled(spec))
    assert torch.equal(
        other.state_dict()["critics"]["0.0.weight"], narrow.state_dict()["critics"]["0.0.weight"]
    )


def test_the_bounds_are_part_of_the_state() -> None:
    spec = EnvSpec("test", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
    core, other = (SAC(batch_size=32, hidden_sizes=(16,)).make_updater(spec, "cpu", seed) for seed in (0, 1))
    core.update(filled(spec))
    state = core.state_dict()
    other.load_state_dict(state)
    assert other.bounds.values.tolist() == core.bounds.values.tolist() != [0.0, 0.0]
    del state["bounds"]
    with pytest.raises(ValueError, match="bounds"):
        other.load_state_dict(state)
