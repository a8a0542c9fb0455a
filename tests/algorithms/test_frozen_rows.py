"""Rows of opponents in segments: what is in them changes no number of an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from segment_rig import SPECS, acted, iterate, record, weights_of

from asyncrl.interfaces import FROZEN, RESET, Segment

ALGORITHMS = {
    "ppo": {"normalize_observations": True, "normalize_rewards": True},
    "ppo-decoupled": {"staleness_correction": "importance"},
    "ppo-gru": {"recurrent": "gru", "recurrent_size": 8},
    "a2c": {},
    "impala": {},
    "impala-lstm": {"recurrent": "lstm", "recurrent_size": 8, "normalize_advantages": True},
}


def frozen_segments(algorithm: Any, weights: np.ndarray[Any, Any], other: bool) -> list[Segment]:
    """Two segments of four streams, two of which are opponents; `other`: what these saw, did and got differs."""
    found = []
    for ring in range(2):
        segment = acted(algorithm, SPECS["discrete"], weights, seed=ring, envs=4, ring=ring)
        segment.flags[:2] |= FROZEN
        if other:
            rng = np.random.default_rng(9)
            rows = segment.flags[:2] & RESET == 0
            for values in (segment.obs, segment.reward, *segment.extras.values()):
                values[:2][rows] = 5 * rng.normal(size=values[:2][rows].shape)
            segment.action[:2][rows] = rng.integers(0, 3, rows.sum())
        found.append(segment)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_is_learned_from_the_rows_of_opponents(name: str) -> None:
    algorithm = record(name.partition("-")[0], **ALGORITHMS[name])
    results = []
    for other in (False, True):
        core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
        before = weights_of(core)
        segments = frozen_segments(algorithm, before, other)
        iterate(core, segments)
        after = weights_of(core)
        assert (after != before).any() and core.samples % sum(
            int(
                (segment.flags == 0).sum()
                + (segment.flags & 3 != 0).sum()
                - (segment.flags[:2] & 3 != 0).sum()
            )
            for segment in segments
        ) == 0
        results.append(after)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("frozen", [0, 1, 3])
def test_a_minibatch_of_streams_is_a_mean_however_many_are_opponents(frozen: int) -> None:
    algorithm = record("ppo", recurrent="gru", recurrent_size=8, minibatch_size=24)
    core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
    weights = weights_of(core)
    segments = [acted(algorithm, SPECS["discrete"], weights, seed=r, envs=4, ring=r) for r in (0, 1)]
    for segment in segments:
        segment.flags[:frozen] |= FROZEN
    core.begin(segments, 0.0)
    weight = core._rollout.column("weight").reshape(-1)
    sums = [weight[part.rows[:-1]].sum() for part, _ in core._parts]
    assert len(sums) == 2 * (4 - frozen)
    np.testing.assert_allclose(sums, 1.0, atol=0.15)


@pytest.mark.parametrize("name", [*ALGORITHMS, "pqn"])
def test_a_gradient_step_without_trained_rows_moves_nothing(name: str) -> None:
    """Adam's momentum would: minibatches of whole streams may be those of opponents alone."""
    algorithm = record(name.partition("-")[0], **ALGORITHMS.get(name, {}))
    core = algorithm.make_updater(SPECS["discrete"], "cpu", 0)
    segments = [
        acted(algorithm, SPECS["discrete"], weights_of(core), seed=ring, ring=ring) for ring in (0, 1)
    ]
    iterate(core, segments)
    learned, samples = weights_of(core), core.samples
    for segment in segments:
        segment.flags[:] |= FROZEN
    iterate(core, segments)
    np.testing.assert_array_equal(weights_of(core), learned)
    assert core.samples == samples
