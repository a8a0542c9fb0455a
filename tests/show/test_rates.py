"""Rates against numbers worked by hand."""

import pytest

from asyncrl.show.rates import Counters, RateMeter, Rates


def test_rates_are_differences_over_the_interval():
    meter = RateMeter()
    assert meter.observe(10.0, Counters(700, 600, 5000)) == Rates(
        0, 0, 0, 0
    )  # nothing to take a difference to
    assert meter.observe(12.0, Counters(1000, 800, 6200)) == Rates(150.0, 100.0, 600.0, 4.0)
    assert meter.observe(12.5, Counters(1100, 1100, 6200)) == Rates(200.0, 600.0, 0.0, 0.0)


def test_updates_and_waiting():
    meter = RateMeter()
    meter.observe(0.0, Counters(updates=10, learner_wait_seconds=1.0))
    rates = meter.observe(2.0, Counters(updates=15, learner_wait_seconds=1.5))
    assert (rates.updates_per_second, rates.learner_wait_fraction) == (2.5, 0.25)
    lost = meter.observe(3.0, Counters())
    assert (lost.updates_per_second, lost.learner_wait_fraction) == (0.0, 0.0), "parts that have failed"


def test_nothing_produced_is_no_division():
    meter = RateMeter()
    meter.observe(0.0, Counters(5, 5, 0))
    assert meter.observe(1.0, Counters(5, 5, 32)) == Rates(0.0, 0.0, 32.0, 0.0)


def test_the_same_instant_repeats_the_last_rates_and_loses_nothing():
    meter = RateMeter()
    meter.observe(0.0, Counters(0, 0, 0))
    first = meter.observe(1.0, Counters(8, 4, 2))
    assert meter.observe(1.0, Counters(16, 8, 4)) == first
    assert meter.observe(2.0, Counters(24, 12, 6)) == Rates(16.0, 8.0, 4.0, 0.25)  # all since 1.0


def test_a_clock_that_goes_back_is_refused():
    meter = RateMeter()
    meter.observe(3.0, Counters(0, 0, 0))
    with pytest.raises(ValueError, match=r"now_seconds must not go back from 3\.0, got 2\.0"):
        meter.observe(2.0, Counters(0, 0, 0))
