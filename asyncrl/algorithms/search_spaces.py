"""Search spaces of `asyncrl tune`: the options to search for an algorithm, read from `spaces/<algorithm>.toml`.

total_steps = 50_000            # of a trial, where the command gives none
like = "dqn"                    # takes over DQN's space, but for the options of `without`

[learning_rate]                 # a range; whole numbers where the option has them
low = 2e-4
high = 5e-3
log = true

[hidden_sizes]                  # or choices
choices = [[64, 64], [128, 128]]
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from asyncrl.errors import ConfigurationError
from asyncrl.options import Option, coerce, near_miss, option_help

FOLDER = Path(__file__).parent / "spaces"
_RANGE, _CHOICES = {"low", "high", "log"}, {"choices"}


@dataclass(frozen=True)
class Interval:
    """Values of an option from `low` to `high`, both included.

    Attributes:
        log: whether the logarithm is drawn evenly.
        whole: whether the option has whole numbers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choices:
    """Values of an option, each a text, a number or true or false; a list of numbers is a text, `64,64`."""

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return plain_value(value) in self.values


@dataclass(frozen=True)
class SearchSpace:
    """What is searched for an algorithm.

    Attributes:
        options: values by option.
        total_steps: environment steps of a trial, None if the file does not say.
    """

    options: Mapping[str, Interval | Choices]
    total_steps: int | None = None


def plain_value(value: Any) -> Any:
    """A value of an option as `Choices` and a study hold it: lists as text."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def load_space(algorithm: str, record: type) -> SearchSpace:
    """Space of an algorithm of the package.

    Raises:
        ConfigurationError: it has none (ASYNC017).
    """
    file = FOLDER / f"{algorithm}.toml"
    if not file.exists():
        raise ConfigurationError(
            f"there is no search space for {algorithm}",
            facts={"algorithms with one": ", ".join(sorted(f.stem for f in FOLDER.glob("*.toml")))},
            fix="write one, as docs/search.md shows, and give it: --space FILE",
        )
    return read_space(file, record)


def read_space(file: Path, record: type) -> SearchSpace:
    """Read the space of `record`, a class of options, from a file.

    Raises:
        ConfigurationError: the file cannot be read, or names an option or a value that the record does not have.
    """
    tables = _tables(file, record)
    total_steps = tables.pop("total_steps", None)
    if total_steps is not None and (type(total_steps) is not int or total_steps <= 0):
        raise _wrong(file, "total_steps", f"total_steps must be a whole number above 0, got {total_steps!r}")
    options = option_help(record)
    found = {}
    for name, table in tables.items():
        if name not in options:
            miss = near_miss(name, options)
            text = f"{record.__name__} has no option {name}" + (f"; did you mean {miss}?" if miss else "")
            raise _wrong(file, name, text)
        found[name] = _values(file, options[name], table)
    if not found:
        raise _wrong(file, "options", "a search space must have at least one option, got none")
    return SearchSpace(found, total_steps)


def _tables(file: Path, record: type) -> dict[str, Any]:
    """Content of the file over that of the space that it is `like`."""
    try:
        own = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        text = f"the search space {file} cannot be read: {error.strerror}"
        raise ConfigurationError(text, fix="give a file as docs/search.md shows it: --space FILE") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        text = f"{file.name}: it is not a TOML file: {error}"
        raise ConfigurationError(
            text, facts={"file": file}, fix="write it as docs/search.md shows"
        ) from error
    like, without = own.pop("like", None), own.pop("without", [])
    if like is None:
        if without:
            raise _wrong(file, "without", "without needs like: it leaves out options of that space")
        return own
    base = FOLDER / f"{like}.toml"
    if not base.exists():
        raise _wrong(file, "like", f"like must be an algorithm with a search space, got {like!r}")
    tables = _tables(base, record)
    known = [*tables, *option_help(record)]
    if not isinstance(without, list) or any(name not in known for name in without):
        raise _wrong(file, "without", f"without must be a list of options, got {without!r}")
    return {name: table for name, table in tables.items() if name not in without} | own


def _values(file: Path, option: Option, table: Any) -> Interval | Choices:
    keys = set(table) if isinstance(table, dict) else set()
    if keys == _CHOICES and isinstance(table["choices"], list) and table["choices"]:
        values = tuple(map(plain_value, table["choices"]))
        for value in values:
            _checked(file, option, value)
        return Choices(values)
    if not {"low", "high"} <= keys <= _RANGE:
        raise _wrong(file, option.name, f"{option.name} must have low and high, or choices, got {table!r}")
    low, high = (_checked(file, option, table[bound]) for bound in ("low", "high"))
    numbers = all(isinstance(bound, int | float) and math.isfinite(bound) for bound in (low, high))
    if not numbers or isinstance(low, bool) or not low < high:
        raise _wrong(file, option.name, f"{option.name} must have numbers with low < high, got {table!r}")
    log = table.get("log", False)
    if not isinstance(log, bool) or (log and low <= 0):
        raise _wrong(file, option.name, f"log of {option.name} must be false, or low above 0, got {table!r}")
    kinds = get_args(option.type) or (option.type,)
    return Interval(low, high, log, whole=int in kinds and float not in kinds)


def _checked(file: Path, option: Option, value: Any) -> Any:
    try:
        found = coerce(option.name, option.type, value)
        for constraint in option.constraints:
            constraint.check(option.name, found)
        return found
    except ValueError as error:
        raise _wrong(file, option.name, str(error)) from None


def _wrong(file: Path, key: str, text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{file.name}: {text}", facts={"file": file, "key": key}, fix=f"change {key} in the search space"
    )
