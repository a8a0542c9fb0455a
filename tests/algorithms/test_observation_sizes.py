from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from asyncrl import A2C, DQN
from asyncrl.algorithms.normalization import warn_of_sizes
from asyncrl.errors import ObservationsOfUnusualSize
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from tests.algorithms.segment_rig import batch_of

LINE = EnvSpec("line", (3,), "float32", DiscreteAction(4))
BYTES = EnvSpec("bytes", (4, 4, 3), "uint8", DiscreteAction(4))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([[1.0, 150.0], [1.0, -90.0]], "large: value 1 of 2 has a root mean square of 1.2e\\+02"),
        ([[2024.0], [2025.0]], "large: they have a root mean square of 2e\\+03"),
        ([[3e38], [1.0]], "large: they have"),
        ([[0.004, 0.004], [-0.004, 0.0]], "small: the root mean square of their length is 0.005"),
    ],
)
def test_unusual_sizes(inputs: Any, says: str) -> None:
    with pytest.warns(ObservationsOfUnusualSize, match=rf"ASYNC049.*{says}"):
        warn_of_sizes(np.array(inputs, np.float32))


@pytest.mark.parametrize(
    "inputs",
    [
        np.zeros((5, 3)),  # says nothing
        np.eye(2000)[:50],  # one-hot: every value is small, the whole is not
        [[99.0], [-99.0]],
        [[0.008, 0.008]],  # of length 0.011
        np.zeros((0, 3)),
    ],
)
def test_usual_sizes(inputs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_sizes(np.array(inputs, np.float32))


def replayed(record: Any, spec: EnvSpec, size: float) -> list[str]:
    core = record.make_updater(spec, "cpu", 0)
    rng, batch = np.random.default_rng(0), Batch.allocate(16, spec)
    batch.obs[:], batch.next_obs[:] = size * rng.random((2, *batch.obs.shape))
    batch.action[:], batch.reward[:], batch.discount[:], batch.weight[:] = 0, 1.0, 0.9, 1.0
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            core.update(batch)
    return [str(warning.message) for warning in found]


def test_a_learner_from_replay_says_it_once() -> None:
    small = {"batch_size": 16, "hidden_sizes": (8,)}
    assert len(replayed(DQN(**small), LINE, 1000.0)) == 1
    assert replayed(DQN(**small), LINE, 1.0) == []
    assert replayed(DQN(**small, normalize_observations=True), LINE, 1000.0) == []
    assert replayed(DQN(**small), BYTES, 255.0) == []


def test_a_learner_from_segments_says_it_once() -> None:
    for options, count in (({}, 1), ({"normalize_observations": True}, 0)):
        record = A2C(segment_length=8, **options)
        core = record.make_updater(LINE, "cpu", 0)
        segments = batch_of(record, LINE, core)
        for segment in segments:
            segment.obs[:] *= 1000.0
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(2):
                core.begin(segments, 0.0)
                while core.step():
                    pass
        assert [type(warning.message) for warning in found] == [ObservationsOfUnusualSize] * count
