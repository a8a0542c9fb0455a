"""Read and write `config.toml`, the options of a run in a file from which it can be trained again.

Table `[trainer]` holds the fields of `TrainerConfig`; a table named after an algorithm (`[dqn]`) holds that algorithm's
hyper-parameters. Omitted options have their defaults. The key `algorithm`, before the tables, is module and class of an
algorithm of the user's, which is imported when the file is read. A mistake raises ASYNC017, which names the file, the
path of the key and, for an unknown key, the nearest known option.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from asyncrl.algorithms.registry import ALGORITHMS, importable_name, imported_algorithm
from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import factory_name
from asyncrl.errors import ConfigurationError
from asyncrl.options import coerce, functions_of, near_miss, option_help, option_values, texts_of_mapping

R = TypeVar("R")

ALGORITHM = "algorithm"
"""Key of a user's algorithm, `module:Class`."""

TRAINER = "trainer"
"""Name of the table with the fields of `TrainerConfig`."""


def read_config(file: Path, algorithms: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """Read the tables of `file`; keys and types are checked, ranges are not.

    Args:
        file: a TOML file.
        algorithms: record classes of all algorithms by name.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or has an unknown or mistyped key.
    """
    tables = {}
    for name, table in _parse(file).items():
        record = TrainerConfig if name == TRAINER else algorithms.get(name)
        if record is None:
            raise unknown_key(file, name, [TRAINER, *algorithms, *_known_paths(algorithms)])
        tables[name] = _checked_table(record, table, file, name, algorithms)
    trainer = tables.get(TRAINER, {})
    for name in ("env_file", "eval_env_file"):
        if trainer.get(name) is not None:  # relative to the configuration file
            trainer[name] = str(file.parent / trainer[name])
    return tables


def read_trainer(file: Path) -> dict[str, Any]:
    """Read only the table of the run's options, checked like `read_config`; no algorithm is loaded."""
    return _checked_table(TrainerConfig, _parse(file).get(TRAINER, {}), file, TRAINER, {})


def import_own_algorithm(file: Path) -> None:
    """Import the user's algorithm that a run's file names; nothing if it names none, or cannot be read.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    if not file.is_file():  # a pipe would wait for a writer
        return
    try:
        parsed = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    _with_algorithm(parsed)


def _known_paths(algorithms: Mapping[str, type]) -> list[str]:
    """Every `table.option`. Loads all algorithms, so it is called only for an unknown key."""
    records = {TRAINER: TrainerConfig, **algorithms}
    return [f"{table}.{name}" for table, record in records.items() for name in option_help(record)]


def _nearest_first(paths: list[str], file: Path) -> list[str]:
    """Sort the paths of the file's own tables before others: an option of another table is most likely meant there."""
    tables = _parse(file)
    return sorted(paths, key=lambda path: path.partition(".")[0] not in tables)


def _parse(file: Path) -> dict[str, Any]:
    try:
        return _with_algorithm(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        what = f"the configuration file cannot be read: {error.strerror}"
        inside = file / "config.toml"
        fix = f"name the file in it: {inside}" if inside.is_file() else "check the path"
        raise ConfigurationError(what, facts={"file": file}, fix=fix) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        what = f"{file.name} is not a TOML file: {why}"
        raise ConfigurationError(what, facts={"file": file}, fix="correct the file at that place") from error


def _with_algorithm(parsed: dict[str, Any]) -> dict[str, Any]:
    """Import the user's algorithm that a file names, unless its name is known; return the tables alone."""
    own = parsed.pop(ALGORITHM, None)
    name = parsed[TRAINER].get("algo") if isinstance(parsed.get(TRAINER), dict) else None
    if isinstance(own, str) and ":" in own and name not in ALGORITHMS:
        imported_algorithm(own)
    return parsed


def _checked_table(
    record: type, table: object, file: Path, path: str, algorithms: Mapping[str, type]
) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise _wrong_value(file, path, f"{path} must be a table, got {table!r}")
    options, values = option_help(record), {}
    for key, value in table.items():
        if key not in options:
            raise unknown_key(file, f"{path}.{key}", _nearest_first(_known_paths(algorithms), file))
        try:
            values[key] = coerce(key, options[key].type, value)
        except ValueError as error:
            raise _wrong_value(file, f"{path}.{key}", str(error)) from None
    return values


def make_record(record: type[R], values: Mapping[str, Any], *, file: Path, path: str) -> R:
    """Return `record(**values)`, for values from table `path` of `file`.

    Raises:
        ConfigurationError: an option is missing, or the record refuses a value.
    """
    for name, option in option_help(record).items():
        if option.required and name not in values:
            raise _wrong_value(file, f"{path}.{name}", f"{name} must be given, got nothing")
    known = [f"{path}.{name}" for name in option_help(record)]
    for name in values:
        if name not in option_help(record):
            raise unknown_key(file, f"{path}.{name}", known)
    try:
        return record(**values)
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        raise _wrong_value(file, f"{path}.{name}" if name in values else path, str(error)) from error


def dump_config(config: TrainerConfig, algorithm: Any) -> str:
    """Return both records as TOML: every option below its help; a function, and None as default, is a comment."""
    own = importable_name(algorithm)
    first = f"# Module and class of the algorithm\n{_assignment(ALGORITHM, own)}\n\n" if own else ""
    return first + _table(TRAINER, config) + "\n" + _table(config.algo, algorithm)


def options_by_table(config: TrainerConfig, algorithm: Any) -> dict[str, dict[str, Any]]:
    """Options of both records, in the tables of `config.toml`."""
    functions = {name: factory_name(function) for name, function in functions_of(algorithm).items()}
    return {TRAINER: option_values(config), config.algo: option_values(algorithm) | functions}


def _table(path: str, record: Any) -> str:
    lines = [f"[{path}]"]
    for name, option in option_help(type(record)).items():
        value = getattr(record, name)
        lines.append(f"# {option.help}")
        if value is None and option.default is None:
            lines.append(f"# {name} is not set")
        elif not callable(value):  # a missing line would be the default
            lines.append(_assignment(name, "none" if value is None else value))
    for name, function in functions_of(record).items():
        file = "network.pkl" if name == "network" else "functions.pkl"
        lines.append(f"# {name} is {factory_name(function)}: a function, kept in {file}")
    return "\n".join(lines) + "\n"


def _assignment(name: str, value: object) -> str:
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, Mapping):
        value = texts_of_mapping(value)
    if dataclasses.is_dataclass(value):
        raise TypeError(f"{name} must be a TOML value, got {value!r}")
    return tomli_w.dumps({name: value}).rstrip("\n")


def unknown_key(file: Path, key: str, known: Iterable[str]) -> ConfigurationError:
    """Make the error ASYNC017 for an unknown key (full path), with the nearest of the `known` paths."""
    facts: dict[str, object] = {"file": file, "key": key}
    fix = "remove it; `asyncrl train --help` lists every option"
    miss = _near_path(key, list(known))
    if miss is not None:
        facts["did you mean"] = miss
        fix = f"write {miss}, or remove it; `asyncrl train --help` lists every option"
    return ConfigurationError(f"{file.name} sets an option that does not exist: {key}", facts=facts, fix=fix)


def _near_path(key: str, known: list[str]) -> str | None:
    table, _, leaf = key.rpartition(".")
    elsewhere = [path for path in known if path.rpartition(".")[2] == leaf]
    if elsewhere:
        return elsewhere[0]
    # Without the tables: `trainer.bogus` is like `trainer.groups` only in its table.
    of_this_table_last = sorted(known, key=lambda path: path.rpartition(".")[0] == table)
    leaves = {path.rpartition(".")[2]: path for path in of_this_table_last}
    return leaves.get(near_miss(leaf, leaves) or "")


def _wrong_value(file: Path, key: str, rule: str) -> ConfigurationError:
    facts: dict[str, object] = {"file": file, "key": key}
    return ConfigurationError(f"{file.name}: {rule}", facts=facts, fix=f"change {key}")
