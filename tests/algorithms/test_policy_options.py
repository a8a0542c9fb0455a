"""Options that policies of one run have in common: all that the loops, rings and processes read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import asyncrl
from asyncrl import IMPALA
from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.policy_options import COMMON
from asyncrl.options import option_help

READERS = ("actors", "learning", "run", "trainer")
"""Rooms that read the algorithm's common record."""
OF_EACH = {
    "gamma": "`make_loop` reads it of each policy's own record, and `value_pairs` with one policy only",
    "alpha": "likewise",
    "prioritized": "likewise",
    "normalize_observations": "read for the mirror of the rows on a GPU, which several policies have not",
}


def test_what_the_loops_read_is_common() -> None:
    options = {name for record in ALGORITHMS.values() for name in option_help(record)}
    package, read = Path(asyncrl.__file__).parent, set[str]()
    for room in READERS:
        for file in (package / room).glob("*.py"):
            read |= set(re.findall(r"\b_?algorithm\.([a-z_]+)", file.read_text()))
    assert {"batch_size", "discipline", "n_step"} <= read & options
    assert read & options <= COMMON.keys() | OF_EACH.keys()
    assert COMMON.keys() <= options


@pytest.mark.parametrize("name", ["epochs", "value_epochs"])
def test_the_passes_over_a_batch_are_common(name: str) -> None:
    """The pace of segments reads their sum, `samples_per_insert`."""
    assert IMPALA(**{name: 7}).samples_per_insert != IMPALA().samples_per_insert and name in COMMON
