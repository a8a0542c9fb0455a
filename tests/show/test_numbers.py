"""Readable numbers."""

from __future__ import annotations

from asyncrl.show.numbers import of_return, with_deviation, with_interval


def test_returns_keep_the_digits_that_tell_them_apart() -> None:
    texts = {
        None: "-",
        0.0: "0.0",
        0.0004: "0.0004",
        -0.0023456: "-0.00235",
        0.955: "0.955",
        -0.048: "-0.048",
        1.25: "1.25",
        -9.5: "-9.50",
        10.0: "10.0",
        -200.04: "-200.0",
        12_345.6: "12,346",
    }
    assert {value: of_return(value) for value in texts} == texts


def test_a_return_and_its_deviation_have_the_decimals_of_the_larger() -> None:
    assert with_deviation(0.955, 0.0312) == "0.955 +/- 0.031"
    assert with_deviation(4e-4, 1.25e-5) == "0.0004 +/- 1.25e-05"
    assert with_deviation(500.0, 0.0) == "500.0 +/- 0.0"
    assert with_deviation(0.0, 0.0) == "0.0 +/- 0.0"
    assert with_deviation(-0.05, 15.2) == "-0.1 +/- 15.2"
    assert with_interval(0.5, -0.25, 2.0) == "0.50 [-0.25, 2.00]"
    assert with_interval(20_000.4, 9.0, 30_000.0) == "20,000 [9, 30,000]"
