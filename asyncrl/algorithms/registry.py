"""Table of algorithms, in a module of its own so that algorithms can name each other.

An algorithm consists of a file `<name>.py`, which contains a record with that `name`, and a file `presets/<name>.toml`.
Algorithms are found by their preset files, so adding one changes no other file but the two lists of names for type
checkers, in `asyncrl/__init__.py` and `asyncrl/algorithms/__init__.py`. The module is imported when its record
is requested: the command line lists the names without importing an algorithm or NumPy.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

from asyncrl.algorithms.preset_files import FOLDER
from asyncrl.errors import ConfigurationError
from asyncrl.options import documented
from asyncrl.protocols import Algorithm

T = TypeVar("T")

_ASKED_FOR = (
    *("name", "update_loop", "action_kinds", "needs_bounds", "preset", "preset_options"),
    *("check", "extra_fields", "make_policy", "make_updater"),
)
"""Attributes that a record must have."""


class Restricted(Protocol):
    """Supported action spaces of an algorithm, as data."""

    name: ClassVar[str]
    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool]
    """Whether a Box action must have finite bounds."""


class Record(Algorithm, Restricted, Protocol):
    """Record of an algorithm: `Algorithm` plus the supported action spaces and presets."""

    def __init__(self, **options: Any) -> None: ...

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """Record with the preset of an environment's id (defaults without one) and `overrides` applied."""
        ...

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that belong to the preset, as a new dict."""
        ...


class Algorithms(Mapping[str, type[Record]]):
    """Records by name: the package's in alphabetical order, imported at their first use, then the user's."""

    def __init__(self) -> None:
        self._own = sorted(file.stem for file in FOLDER.glob("*.toml"))
        self._names = list(self._own)
        self._records: dict[str, type[Record]] = {}

    def add(self, record: type[Record]) -> None:
        """Add or replace a user's record. Raises ValueError for a name that the package uses."""
        if record.name in self._own:
            raise ValueError(
                f"name must be one that no algorithm of asyncrl has, got {record.name!r} in {record.__name__}"
            )
        if record.name not in self._names:
            self._names.append(record.name)
        self._records[record.name] = documented(record)

    def __getitem__(self, name: str) -> type[Record]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._records:
            self._records[name] = documented(_record_called(name))
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _record_called(name: str) -> type[Record]:
    """Import the record `name` from the module of the same name."""
    module = importlib.import_module(f"asyncrl.algorithms.{name}")
    found = (value for value in vars(module).values() if isinstance(value, type))
    return next(value for value in found if value.__dict__.get("name") == name)


ALGORITHMS = Algorithms()
"""Records of all algorithms by their names on the command line."""


def register(record: type[T]) -> type[T]:
    """Register your own algorithm under its `name`; a decorator for its record.

    `Trainer(env, name)`, the command line and saved policies find it in every process that has imported its module.

    Raises:
        TypeError: the record is not a dataclass, or lacks an attribute of `asyncrl.protocols.Algorithm`.
        ValueError: an algorithm of asyncrl has that name.
    """
    missing = [name for name in _ASKED_FOR if not hasattr(record, name)]
    if not dataclasses.is_dataclass(record) or missing:
        lacks = f"lacks {', '.join(missing)}" if missing else "is no dataclass"
        raise TypeError(
            f"an algorithm must be a dataclass with what protocols.Algorithm asks for, {record!r} {lacks}"
        )
    ALGORITHMS.add(cast("type[Record]", record))
    return record


def imported_algorithm(text: str) -> str:
    """Import and register an algorithm written `module:Class`; return its name, and other texts unchanged.

    Raises:
        ConfigurationError: the module or class does not exist, or is no algorithm of the user's (ASYNC017).
    """
    module, colon, name = text.partition(":")
    if not colon:
        return text
    try:
        if not module or module.startswith("."):
            raise ImportError(f"{module!r} names no module from the top")
        record: type[Record] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the algorithm {text} cannot be imported: {error}",
            fix="write module:Class, of a module in the working directory or on sys.path",
        ) from error
    try:
        return register(record).name
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the algorithm {text} cannot be used: {error}",
            fix="write module:Class of an algorithm of your own, or the name of one of asyncrl's",
        ) from error


def importable_name(record: object) -> str | None:
    """`module:Class` of a user's record that another process can import; None for the package's, and of a script."""
    kind = type(record)
    own = (
        kind.__module__.partition(".")[0] not in ("asyncrl", "__main__") and kind.__qualname__.isidentifier()
    )
    if not own or not all(hasattr(kind, name) for name in _ASKED_FOR):
        return None
    return f"{kind.__module__}:{kind.__qualname__}"


def algorithm_name(text: str) -> str:
    """Name of the algorithm that `text` (such as `PPO` or `QR-DQN`) stands for; `text` itself if there is none."""
    plain = "".join(filter(str.isalnum, text.lower()))
    return plain if plain in ALGORITHMS else text
