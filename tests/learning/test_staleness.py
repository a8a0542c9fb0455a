"""Staleness against hand-worked numbers."""

from dataclasses import dataclass

import numpy as np
import pytest

from asyncrl.learning import staleness as module
from asyncrl.learning.staleness import StalenessMeter


@dataclass
class Stamped:
    """Fields of a batch and a segment with the versions and updates of the acting policies."""

    version: np.ndarray
    policy_updates: np.ndarray
    staleness: np.ndarray
    weight: np.ndarray


def stamped(updates, version=None, weight=None):
    updates = np.asarray(updates, np.int64)
    version = updates // 10 if version is None else np.asarray(version, np.int64)
    weight = np.ones(len(updates)) if weight is None else weight
    return Stamped(version, updates, np.full(len(updates), -1, np.int64), np.asarray(weight, np.float32))


def measure(meter, updates, version=None, weight=None, now=(100, 10), each=1):
    batch = stamped(updates, version, weight)
    meter.measure(*now, batch, each)
    return batch.staleness, batch.weight


def test_staleness_is_updates_between_and_weights_stay_without_correction():
    staleness, weight = measure(StalenessMeter(), [100, 99, 60], weight=[1.0, 0.5, 0.25])
    assert staleness.tolist() == [0, 1, 40]
    assert weight.tolist() == [1.0, 0.5, 0.25]


def test_both_units_are_measured_and_one_corrects():
    for unit, expected in (("updates", [0, 3, 40]), ("versions", [0, 1, 8])):
        meter = StalenessMeter("power", 1.0, unit=unit)
        staleness, weight = measure(meter, [100, 97, 60], version=[10, 9, 2])
        assert staleness.tolist() == expected
        assert weight == pytest.approx([1 / (1 + s) for s in expected])
        in_updates, in_versions = meter.in_updates.overall(), meter.in_versions.overall()
        assert (in_updates.mean, in_updates.max, in_updates.samples) == (43 / 3, 40, 3)
        assert (in_versions.mean, in_versions.max, in_versions.samples) == (3.0, 8, 3)
        statistics = meter.statistics()
        assert (statistics["async/staleness_mean"], statistics["async/staleness_versions_max"]) == (43 / 3, 8)


def test_power_correction_by_hand():
    _, weight = measure(StalenessMeter("power", 0.5), [100, 97, 76], weight=[1.0, 1.0, 0.5])
    assert weight.tolist() == [1.0, 0.5, pytest.approx(0.1)]  # 1, 4^-0.5, 0.5 * 25^-0.5


def test_exponential_correction_by_hand():
    _, weight = measure(StalenessMeter("exponential", np.log(2)), [100, 99, 97])
    assert weight == pytest.approx([1.0, 0.5, 0.125])


def test_rows_of_a_segment_count_once_for_each_environment():
    by_row, by_step = StalenessMeter("power", 1.0), StalenessMeter("power", 1.0)
    updates = [100, 100, 99, 97, 60]
    staleness, weight = measure(by_row, updates, each=6)
    assert staleness.tolist() == [0, 0, 1, 3, 40]
    assert weight == pytest.approx([1, 1, 1 / 2, 1 / 4, 1 / 41])  # corrected once, however many it stands for
    measure(by_step, np.repeat(updates, 6))
    for ours, theirs in ((by_row.in_updates, by_step.in_updates), (by_row.in_versions, by_step.in_versions)):
        assert ours.overall() == theirs.overall() and ours.overall().samples == 30


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_compiled_correction_equals_the_interpreted_one(kind):
    then = np.array([100, 99, 97, 60, 0], np.int64)
    results = []
    for function in (module._correct, module._correct.py_func):
        staleness, weight = np.full(5, -1, np.int64), np.full(5, 0.5, np.float32)
        function(100, then, staleness, weight, kind, 0.25)
        results.append((staleness.tolist(), weight.tolist()))
    assert results[0][0] == results[1][0] and results[0][1] == pytest.approx(results[1][1], rel=1e-6)


@pytest.mark.parametrize("each", [1, 4])
@pytest.mark.parametrize(
    ("unit", "old"), [("updates", {"updates": [94]}), ("versions", {"updates": [100], "version": [4]})]
)
def test_row_over_the_bound_is_our_own_bug(unit, old, each):
    meter = StalenessMeter(max_staleness=5, unit=unit)
    in_versions = {"updates": [0, 100], "version": [5, 10]}
    measure(
        meter, **({"updates": [95, 100], "version": [0, 10]} if unit == "updates" else in_versions), each=each
    )
    with pytest.raises(AssertionError, match="staleness 6 reached an update, max_staleness is 5"):
        measure(meter, **old, each=each)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("linear", 1.0), "staleness_correction must be one of none, power, exponential, got 'linear'"),
        (("power", -1.0), "staleness_rate must be at least 0, got -1.0"),
        (("power", float("nan")), "staleness_rate must be at least 0, got nan"),
        (("none", 0.0, -1), "max_staleness must be at least 0 or None, got -1"),
    ],
)
def test_bad_settings(arguments, text):
    with pytest.raises(ValueError, match=text):
        StalenessMeter(*arguments)
