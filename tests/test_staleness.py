"""Staleness against hand-worked numbers and a slow histogram."""

import numpy as np
import pytest

from asyncrl.staleness import EDGES, StalenessMeter, _measure


def measure(meter, version, weight=None, now=100, each=1):
    version = np.asarray(version, np.int64)
    staleness = np.full(len(version), -1, np.int64)
    weight = np.ones(len(version), np.float32) if weight is None else np.asarray(weight, np.float32)
    meter.measure(now, version, staleness, weight, each)
    return staleness, weight


def test_staleness_is_versions_between_and_weights_stay_without_correction():
    staleness, weight = measure(StalenessMeter(), [100, 99, 60], weight=[1.0, 0.5, 0.25])
    assert staleness.tolist() == [0, 1, 40]
    assert weight.tolist() == [1.0, 0.5, 0.25]


def test_power_correction_by_hand():
    _, weight = measure(StalenessMeter("power", 0.5), [100, 97, 76], weight=[1.0, 1.0, 0.5])
    assert weight.tolist() == [1.0, 0.5, pytest.approx(0.1)]  # 1, 4^-0.5, 0.5 * 25^-0.5


def test_exponential_correction_by_hand():
    _, weight = measure(StalenessMeter("exponential", np.log(2)), [100, 99, 97])
    assert weight == pytest.approx([1.0, 0.5, 0.125])


def test_statistics_of_an_interval_and_of_the_run():
    meter = StalenessMeter()
    measure(meter, [100] * 18 + [90, 80])
    first = meter.statistics(reset=True)
    assert (first.mean, first.max, first.samples) == (30 / 20, 20, 20)
    assert first.p95 == 10  # the 19th of 20
    measure(meter, [98, 98])
    second = meter.statistics()
    assert (second.mean, second.p95, second.max, second.samples) == (2.0, 2.0, 2, 2)
    whole = meter.overall()
    assert (whole.mean, whole.max, whole.samples) == (34 / 22, 20, 22)
    assert dict(zip(whole.edges, whole.counts, strict=True))[2] == 2
    assert sum(whole.counts) == 22


def test_nothing_measured_is_zero():
    statistics = StalenessMeter().statistics()
    assert (statistics.mean, statistics.p95, statistics.max, statistics.edges) == (0.0, 0.0, 0, ())


def test_rows_of_a_segment_count_once_for_each_environment():
    by_row, by_step = StalenessMeter("power", 1.0), StalenessMeter("power", 1.0)
    versions = [100, 100, 99, 97, 60]
    staleness, weight = measure(by_row, versions, each=6)
    assert staleness.tolist() == [0, 0, 1, 3, 40]
    assert weight == pytest.approx([1, 1, 1 / 2, 1 / 4, 1 / 41])  # corrected once, however many it stands for
    measure(by_step, np.repeat(versions, 6))
    assert by_row.statistics() == by_step.statistics()
    assert by_row.statistics().samples == 30
    assert by_row.statistics().mean == 44 / 5
    assert by_row.overall() == by_step.overall()


def test_the_bound_holds_for_rows_too():
    meter = StalenessMeter(max_staleness=5)
    measure(meter, [95, 100], each=4)
    with pytest.raises(AssertionError, match="staleness 6 reached an update, max_staleness is 5"):
        measure(meter, [100, 94], each=4)


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("compiled", [True, False])
def test_histogram_against_searchsorted(compiled, each):
    rng = np.random.default_rng(0)
    staleness = np.concatenate([np.arange(300), (2.0 ** rng.uniform(0, 40, 500)).astype(np.int64)])
    now = int(staleness.max())
    counts, sums = np.zeros(len(EDGES), np.int64), np.zeros(3, np.int64)
    out, weight = np.empty_like(staleness), np.ones(len(staleness), np.float32)
    function = _measure if compiled else _measure.py_func
    most = function(now, now - staleness, out, weight, each, 0, 0.0, counts, sums)
    expected = np.minimum(np.searchsorted(EDGES, staleness, side="right") - 1, len(EDGES) - 1)
    assert counts.tolist() == (each * np.bincount(expected, minlength=len(EDGES))).tolist()
    assert (most, sums.tolist()) == (now, [each * len(staleness), each * staleness.sum(), now])


def test_row_over_the_bound_is_our_own_bug():
    meter = StalenessMeter(max_staleness=5)
    measure(meter, [95])
    with pytest.raises(AssertionError, match="staleness 6 reached an update, max_staleness is 5"):
        measure(meter, [94])


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
