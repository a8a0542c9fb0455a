"""Histogram against hand-worked numbers and a slow reference."""

import numpy as np
import pytest

from asyncrl.interfaces import Distribution
from asyncrl.learning import histogram
from asyncrl.learning.histogram import EDGES, Histogram


def counted(values, each=1, now=100):
    made = Histogram("lag")
    made.add(now, now - np.asarray(values, np.int64), each)
    return made


def test_statistics_of_an_interval_and_of_the_run():
    made = Histogram("lag")
    assert made.add(100, np.array([100] * 18 + [90, 80])) == 20
    # The 95th percentile is the 19th of 20.
    assert made.statistics(reset=True) == {"lag_mean": 30 / 20, "lag_p95": 10.0, "lag_max": 20}
    assert made.add(100, np.array([98, 98])) == 2
    assert made.statistics() == {"lag_mean": 2.0, "lag_p95": 2.0, "lag_max": 2}
    whole = made.overall()
    assert (whole.mean, whole.max, whole.samples, whole.sum) == (34 / 22, 20, 22, 34)
    assert dict(zip(whole.edges, whole.counts, strict=True))[2] == 2
    assert sum(whole.counts) == 22


def test_the_run_is_the_same_however_often_it_is_reported():
    rng = np.random.default_rng(0)
    often, once = Histogram("lag"), Histogram("lag")
    for _ in range(20):
        values = rng.integers(0, 60, 30)
        for made in (often, once):
            made.add(100, 100 - values)
        often.statistics(reset=True)
    assert often.overall() == once.overall()
    whole = once.overall()
    assert once.statistics() == {"lag_mean": whole.mean, "lag_p95": whole.p95, "lag_max": whole.max}


def test_nothing_counted_is_zero():
    assert Histogram("lag").statistics() == {"lag_mean": 0.0, "lag_p95": 0.0, "lag_max": 0}
    assert Histogram("lag").overall() == Distribution()
    assert Histogram("lag").add(7, np.zeros(0, np.int64)) == 0


def test_each_value_counts_as_often_as_it_is_told():
    by_row, by_step = counted([0, 0, 1, 3, 40], each=6), counted(np.repeat([0, 0, 1, 3, 40], 6))
    assert by_row.statistics() == by_step.statistics()
    assert by_row.statistics()["lag_mean"] == 44 / 5
    assert by_row.overall() == by_step.overall()


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("compiled", [True, False])
def test_buckets_against_searchsorted(compiled, each):
    rng = np.random.default_rng(0)
    values = np.concatenate([np.arange(300), (2.0 ** rng.uniform(0, 40, 500)).astype(np.int64)])
    now = int(values.max())
    counts, sums = np.zeros(len(EDGES), np.int64), np.zeros(3, np.int64)
    function = histogram._add if compiled else histogram._add.py_func
    most = function(now, now - values, each, counts, sums)
    expected = np.minimum(np.searchsorted(EDGES, values, side="right") - 1, len(EDGES) - 1)
    assert counts.tolist() == (each * np.bincount(expected, minlength=len(EDGES))).tolist()
    assert (most, sums.tolist()) == (now, [each * len(values), each * values.sum(), now])


def test_an_interval_without_values_repeats_the_last_one() -> None:
    """A curve of the mean falls to 0 only where the values do, not where training pauses for a second."""
    meter = Histogram("lag")
    assert meter.statistics(reset=True)["lag_mean"] == 0.0
    meter.add(10, np.array([4, 8], np.int64))
    assert meter.statistics(reset=True)["lag_mean"] == 4.0
    assert meter.statistics(reset=True) == {"lag_mean": 4.0, "lag_p95": 6.0, "lag_max": 6}
    assert (meter.overall().mean, meter.overall().max, meter.overall().samples) == (4.0, 6, 2)
    meter.add(10, np.array([9], np.int64))
    assert meter.statistics() == {"lag_mean": 1.0, "lag_p95": 1.0, "lag_max": 1}
