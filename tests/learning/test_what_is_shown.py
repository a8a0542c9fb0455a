"""Histograms of actions, realised returns and times of updates, which are measured for the page alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncrl.algorithms import DQN, SAC, TD3, TQC, CrossQ
from asyncrl.interfaces import (
    FROZEN,
    RESET,
    TERMINATED,
    TRUNCATED,
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)
from asyncrl.learning.what_is_shown import (
    BOX_BINS,
    MOST_COMPONENTS,
    MOST_ROWS,
    MOST_STEPS,
    UpdateTimes,
    action_bins,
    realised_return,
)


def ring(spec: Any, actions: np.ndarray, published: int, retired: int = 0) -> Any:
    """A ring with these actions `[E, S, ...]`, in which rows `[retired, published)` may be read."""
    shape = actions.shape[:2]
    return SimpleNamespace(
        layout=SimpleNamespace(spec=SimpleNamespace(action=spec)),
        action=actions,
        flags=np.zeros(shape, np.uint8),
        reward=np.zeros(shape, np.float32),
        num_envs=shape[0],
        num_slots=shape[1],
        retired=retired,
        fault="",
        published=lambda: published,
    )


def test_choices_are_counted_by_their_names_without_resets() -> None:
    one = ring(DiscreteAction(3, start=5), np.array([[0, 1, 1, 2], [0, 0, 0, 0]]), published=4, retired=1)
    one.flags[1, 2] = RESET
    one.flags[1, 3] = FROZEN
    other = ring(DiscreteAction(3, start=5), np.full((2, 4), 2), published=0)
    bins = action_bins([one, other])["rollout/action"]
    assert bins.edges == (4.5, 5.5, 6.5, 7.5)
    assert bins.counts == (1, 2, 1)


def test_slots_are_those_of_the_newest_rows() -> None:
    actions = np.arange(512)[None] % 2  # slot k holds row 512 + k
    bins = action_bins([ring(DiscreteAction(2), actions, published=1024 + 3, retired=512 + 3)])
    assert sum(bins["rollout/action"].counts) == MOST_ROWS


def test_components_have_histograms_of_their_own() -> None:
    box = BoxAction((-1.0, -np.inf) + (0.0,) * 10, (1.0, np.inf) + (1.0,) * 10, (12,))
    actions = np.zeros((1, 4, 12), np.float32)
    actions[0, :, 0] = -1.0, 1.0, 3.0, np.nan  # beyond the bound counts as the bound
    actions[0, :, 1] = 2.0, 4.0, 4.0, 3.0
    found = action_bins([ring(box, actions, published=4)])
    assert [*found] == [f"rollout/action/{i}" for i in range(MOST_COMPONENTS)]
    first, second = found["rollout/action/0"], found["rollout/action/1"]
    assert (first.edges[0], first.edges[-1], len(first.counts)) == (-1.0, 1.0, BOX_BINS)
    assert (first.counts[0], first.counts[-1], sum(first.counts)) == (1, 2, 3)
    assert (second.edges[0], second.edges[-1], sum(second.counts)) == (2.0, 4.0, 4)


def test_a_vector_of_choices() -> None:
    spec = MultiDiscreteAction((2, 4), start=(0, -1))
    found = action_bins([ring(spec, np.array([[[0, 3], [1, 3]]]), published=2)])
    assert found["rollout/action/0"].counts == (1, 1)
    assert found["rollout/action/1"].edges[0] == -1.5 and found["rollout/action/1"].counts == (0, 0, 0, 2)


def test_there_is_nothing_to_count_without_rows_or_in_a_faulty_ring() -> None:
    assert action_bins([ring(DiscreteAction(2), np.zeros((1, 4), int), published=0)]) == {}
    faulty = ring(DiscreteAction(2), np.zeros((1, 4), int), published=4)
    faulty.fault = "published is -1"
    assert action_bins([faulty]) == {}


# --- realised returns -----------------------------------------------------------------------------------


def test_a_realised_return_is_discounted_up_to_the_termination() -> None:
    played = ring(DiscreteAction(2), np.zeros((2, 8), int), published=12, retired=4)
    # Rows 4 to 11 are in slots 4 5 6 7 0 1 2 3.
    played.reward[1] = [5, 6, 7, 8, 1, 2, 3, 4]
    played.flags[1, 1] = TERMINATED  # row 9
    assert realised_return(played, 7, 1, 0.5) == 4 + 0.5 * 5 + 0.25 * 6
    assert realised_return(played, 9, 1, 0.5) == 6
    assert realised_return(played, 3, 1, 0.5) is None, "overwritten"
    assert realised_return(played, 10, 1, 0.5) is None, "it goes on"
    assert realised_return(played, 4, 0, 0.9) is None


def test_a_return_that_is_cut_counts_if_the_rest_is_negligible() -> None:
    played = ring(DiscreteAction(2), np.zeros((1, 8), int), published=8)
    played.reward[:] = 1
    played.flags[0, 4] = TRUNCATED
    assert realised_return(played, 0, 0, 0.5) == 2 - 0.5**4
    assert realised_return(played, 2, 0, 0.5) is None, "a quarter of the weight is missing"
    assert realised_return(played, 5, 0, 0.1) == pytest.approx(1.11)


def test_a_realised_return_reads_a_limited_number_of_rows() -> None:
    played = ring(DiscreteAction(2), np.zeros((1, 4096), int), published=4096)
    played.reward[:] = 1
    assert realised_return(played, 0, 0, 0.999) == pytest.approx(
        (1 - 0.999**MOST_STEPS) / 0.001 if 0.999**MOST_STEPS <= 0.05 else None
    )
    assert realised_return(played, 0, 0, 0.998) == pytest.approx((1 - 0.998**MOST_STEPS) / 0.002)


# --- times of updates -----------------------------------------------------------------------------------


def test_times_of_updates_are_means_since_the_last_report() -> None:
    times = UpdateTimes()
    assert times.statistics() == {}
    times.add(sample=1.0, learn=2.0, priorities=0.5)
    times.add(sample=3.0, learn=4.0, priorities=0.5)
    names = ("sample", "learn", "priorities")
    first = times.statistics()
    assert [first[f"time/update_{name}_seconds"] for name in names] == [2.0, 3.0, 0.5]
    assert times.statistics() == first, "the last known"
    times.add(sample=1.0, learn=1.0, priorities=1.0)
    assert [*times.statistics().values()] == [1.0, 1.0, 1.0]


def test_the_preparation_of_an_iteration_is_spread_over_its_updates() -> None:
    times = UpdateTimes()
    times.add(0, sample=6.0)
    times.add(learn=1.0)
    assert times.statistics() == {"time/update_sample_seconds": 6.0, "time/update_learn_seconds": 1.0}
    times.add(learn=2.0)
    assert times.statistics()["time/update_sample_seconds"] == 6.0, "the next one is not prepared yet"
    times.add(0, sample=3.0)
    times.add(learn=4.0)
    assert times.statistics() == {"time/update_sample_seconds": 1.5, "time/update_learn_seconds": 3.0}


# --- predicted values -----------------------------------------------------------------------------------


def test_values_of_a_batch_are_those_before_its_update_in_the_unit_of_the_rewards() -> None:
    spec = EnvSpec("line", (3,), "float32", DiscreteAction(4))
    core = DQN(batch_size=16, hidden_sizes=(8,), reward_scale=0.5).make_updater(spec, "cpu", 0)
    rng, batch = np.random.default_rng(0), Batch.allocate(16, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, 16, 3))
    batch.action[:] = rng.integers(4, size=16)
    batch.reward[:], batch.discount[:], batch.weight[:] = 1.0, 0.9, 1.0
    assert core.values_of(batch.action) is None, "no update yet"
    expected = core.action_values(batch.obs)[np.arange(16), batch.action] / 0.5
    core.update(batch)
    np.testing.assert_allclose(core.values_of(batch.action), expected, rtol=1e-5, atol=1e-6)
    assert core.values_of(batch.action[:8]) is None, "of another batch"


@pytest.mark.parametrize("record", [TD3, SAC, TQC, CrossQ])
def test_values_of_continuous_actions_are_means_over_critics(record: Any) -> None:
    spec = EnvSpec("box", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
    core = record(batch_size=16, hidden_sizes=(8,), critic_hidden_sizes=(8,)).make_updater(spec, "cpu", 0)
    batch = Batch.allocate(16, spec)
    batch.obs[:], batch.next_obs[:] = np.random.default_rng(0).normal(size=(2, 16, 3))
    batch.action[:], batch.reward[:], batch.discount[:], batch.weight[:] = 0.0, 1.0, 0.9, 1.0
    core.update(batch)
    values = core.values_of(batch.action)
    assert values is not None and values.shape == (16,)
    assert values.mean() == pytest.approx(core.metrics()["train/q_mean"], abs=1e-6)
