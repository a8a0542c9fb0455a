"""Search spaces: those of the package fit their records, and a wrong file says what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.search_spaces import FOLDER, Choices, Interval, load_space, read_space
from asyncrl.errors import ConfigurationError

OWN = sorted(file.stem for file in FOLDER.glob("*.toml"))


def test_every_algorithm_of_the_package_has_a_space() -> None:
    assert sorted(name for name in ALGORITHMS if ALGORITHMS[name].__module__.startswith("asyncrl.")) == OWN


@pytest.mark.parametrize("name", OWN)
def test_the_record_accepts_what_its_space_holds(name: str) -> None:
    record, rng = ALGORITHMS[name], np.random.default_rng(0)
    space = load_space(name, record)
    assert space.total_steps is not None
    for _ in range(50):
        drawn = {}
        for option, values in space.options.items():
            if isinstance(values, Choices):
                drawn[option] = values.values[rng.integers(len(values.values))]
            else:
                drawn[option] = rng.uniform(values.low, values.high)
                drawn[option] = int(drawn[option]) if values.whole else drawn[option]
            assert drawn[option] in values
        record(**drawn)


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "space.toml"
    file.write_text(text)
    return file


def test_a_space_may_extend_that_of_an_algorithm(tmp_path: Path) -> None:
    text = 'like = "dqn"\nwithout = ["tau"]\ntotal_steps = 7\n[gamma]\nlow = 0.9\nhigh = 0.99\n'
    space = read_space(written(tmp_path, text), ALGORITHMS["dqn"])
    whole = load_space("dqn", ALGORITHMS["dqn"])
    assert set(space.options) == set(whole.options) - {"tau"} and space.total_steps == 7
    assert space.options["gamma"] == Interval(0.9, 0.99)


def test_lists_are_texts_and_whole_options_have_whole_numbers(tmp_path: Path) -> None:
    text = "[hidden_sizes]\nchoices = [[32, 32], [64]]\n[batch_size]\nlow = 8\nhigh = 64\nlog = true\n"
    space = read_space(written(tmp_path, text), ALGORITHMS["dqn"])
    assert space.options["hidden_sizes"] == Choices(("32,32", "64"))
    assert (32, 32) in space.options["hidden_sizes"] and (32,) not in space.options["hidden_sizes"]
    assert space.options["batch_size"] == Interval(8, 64, log=True, whole=True)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[gama]\nchoices = [0.9]", "DQN has no option gama; did you mean gamma"),
        ("[gamma]\nchoices = [0.9, 'x']", "gamma must be a number or none, got 'x'"),
        ("[gamma]\nchoices = [0.9, 2.0]", "gamma must be .*, got 2.0"),
        ("[gamma]\nlow = 0.9\nhigh = 1.5", "gamma must be .*, got 1.5"),
        ("[hidden_sizes]\nchoices = [[0]]", "hidden_sizes must name at least one width of at least 1"),
        ("like = 'dqn'\nwithout = ['gama']", r"without must be a list of options, got \['gama'\]"),
        ("like = 'dqn'\nwithout = 'gamma'", "without must be a list of options, got 'gamma'"),
        ("like = 'dqn'\nwithout = 3", "without must be a list of options, got 3"),
        ("like = 'dqn'\nwithout = [[]]", r"without must be a list of options, got \[\[\]\]"),
        (
            "total_steps = true\n[gamma]\nchoices = [0.9]",
            "total_steps must be a whole number above 0, got True",
        ),
        ("without = ['gamma']\n[n_step]\nchoices = [1]", "without needs like"),
        ("[gamma]\nlow = 0.9", "gamma must have low and high, or choices"),
        ("[gamma]\nlow = 0.9\nhigh = 0.8", "gamma must have numbers with low < high"),
        ("[gamma]\nlow = 0.0\nhigh = 0.8\nlog = true", "log of gamma must be false, or low above 0"),
        ("gamma = 3", "gamma must have low and high, or choices, got 3"),
        ("total_steps = 0\n[gamma]\nchoices = [0.9]", "total_steps must be a whole number above 0, got 0"),
        ("like = 'sarsa'", "like must be an algorithm with a search space, got 'sarsa'"),
        ("total_steps = 5", "a search space must have at least one option"),
        ("gamma = ", "it is not a TOML file"),
    ],
)
def test_a_wrong_file_is_told_of(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error) as raised:
        read_space(written(tmp_path, text), ALGORITHMS["dqn"])
    assert "change -" not in str(raised.value.fix), "a fix names a key, or the file"


def test_a_missing_file_and_an_algorithm_without_a_space_are_told_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file") as error:
        read_space(tmp_path / "none.toml", ALGORITHMS["dqn"])
    assert error.value.fix == "give a file as docs/search.md shows it: --space FILE"
    with pytest.raises(ConfigurationError, match="there is no search space for mine"):
        load_space("mine", ALGORITHMS["dqn"])
