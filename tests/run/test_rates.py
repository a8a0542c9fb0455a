"""Rates against numbers worked by hand."""

from typing import Any

import pytest

from asyncrl.interfaces import Metrics
from asyncrl.run.reporting import RateMeter


def counted(produced: int = 0, received: int = 0, consumed: int = 0, **others: Any) -> Metrics:
    steps = {"time/total_timesteps": produced, "received_steps": received, "consumed_samples": consumed}
    return {**steps, **others}


def balance(rates: Metrics) -> tuple[float | None, ...]:
    """Production, receipt, consumption, and consumption per production."""
    names = (
        "time/fps",
        "async/receipt_per_second",
        "async/consumption_per_second",
        "consumption_per_production",
    )
    return tuple(rates[name] for name in names)


def test_rates_are_growth_over_the_time_between() -> None:
    meter = RateMeter()
    assert set(meter.observe(10.0, counted(700, 600, 5000)).values()) == {0.0, None}, (
        "none before the first interval"
    )
    first = meter.observe(12.0, counted(1000, 800, 6200))
    assert balance(first) == (150.0, 100.0, 600.0, 4.0)
    assert first["async/production_per_second"] == 150.0
    assert balance(meter.observe(12.5, counted(1100, 1100, 6200))) == (200.0, 600.0, 0.0, 0.0)


def test_updates_and_the_share_of_waiting() -> None:
    meter = RateMeter()
    meter.observe(0.0, {"train/n_updates": 10, "learner_wait_seconds": 1.0})
    rates = meter.observe(2.0, {"train/n_updates": 15, "learner_wait_seconds": 1.5})
    assert (rates["updates_per_second"], rates["async/learner_wait_fraction"]) == (2.5, 0.25)
    lost = meter.observe(3.0, {})
    assert (lost["updates_per_second"], lost["async/learner_wait_fraction"]) == (0.0, 0.0), "none below 0"
    assert meter.observe(4.0, {"learner_wait_seconds": 1.1})["async/learner_wait_fraction"] == 1.0, (
        "a fraction"
    )


def test_the_inference_server_has_rates_once_there_is_one() -> None:
    meter = RateMeter()
    meter.observe(0.0, {"inference_passes": None, "inference_rows": None, "inference_wait_seconds": None})
    unknown = meter.observe(1.0, {"inference_passes": None})
    assert unknown["async/inference_batch_size"] is unknown["async/inference_wait_fraction"] is None
    served = {"inference_passes": 4, "inference_rows": 10, "inference_wait_seconds": 0.25}
    rates = meter.observe(2.0, served)
    assert (rates["async/inference_batch_size"], rates["async/inference_wait_fraction"]) == (2.5, 0.25)
    assert meter.observe(3.0, served)["async/inference_batch_size"] == 0.0, "no pass"


def test_consumption_without_production_has_no_ratio() -> None:
    meter = RateMeter()
    meter.observe(0.0, counted(5, 5, 0))
    assert balance(meter.observe(1.0, counted(5, 5, 32))) == (0.0, 0.0, 32.0, 0.0)


def test_a_call_at_the_same_time_repeats_the_last_rates() -> None:
    meter = RateMeter()
    meter.observe(0.0, counted())
    first = meter.observe(1.0, counted(8, 4, 2))
    assert meter.observe(1.0, counted(16, 8, 4)) == first
    assert balance(meter.observe(2.0, counted(24, 12, 6))) == (16.0, 8.0, 4.0, 0.25)  # all since 1.0


def test_a_clock_that_goes_back_is_refused() -> None:
    meter = RateMeter()
    meter.observe(3.0, counted())
    with pytest.raises(ValueError, match=r"now_seconds must not go back from 3\.0, got 2\.0"):
        meter.observe(2.0, counted())
