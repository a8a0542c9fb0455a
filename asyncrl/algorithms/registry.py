"""The table of algorithms; a file of its own so that an algorithm can name the others.

An algorithm is a file `<name>.py` with a record whose `name` is that, and a file `presets/<name>.toml`. It is found by
the latter, so that adding one changes no other file. Its module is imported when its record is asked for: the command
line lists the names without loading any, and without NumPy.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

from asyncrl.algorithms.preset_files import FOLDER
from asyncrl.errors import ConfigurationError
from asyncrl.option_docs import documented
from asyncrl.protocols import Algorithm

T = TypeVar("T")

_ASKED_FOR = (
    *("name", "update_loop", "action_kinds", "needs_bounds", "preset", "preset_options"),
    *("check", "extra_fields", "make_policy", "make_updater"),
)
"""What a record must have."""


class Restricted(Protocol):
    """The action spaces that an algorithm takes, as data."""

    name: ClassVar[str]
    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool]
    """Whether a Box action must have finite bounds."""


class Record(Algorithm, Restricted, Protocol):
    """What the record of an algorithm has beside what `Algorithm` asks of it."""

    def __init__(self, **options: Any) -> None: ...

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        ...

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        ...


class Algorithms(Mapping[str, type[Record]]):
    """Records by name, in alphabetical order, the user's last; those of the package are imported at their first use."""

    def __init__(self) -> None:
        self._own = sorted(file.stem for file in FOLDER.glob("*.toml"))
        self._names = list(self._own)
        self._records: dict[str, type[Record]] = {}

    def add(self, record: type[Record]) -> None:
        """Add a user's record; one of the same name is replaced. Raises ValueError for a name of the package."""
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
    """The record called `name` in the module of that name."""
    module = importlib.import_module(f"asyncrl.algorithms.{name}")
    found = (value for value in vars(module).values() if isinstance(value, type))
    return next(value for value in found if value.__dict__.get("name") == name)


ALGORITHMS = Algorithms()
"""Every algorithm's record by the name that the command line knows it by."""


def register(record: type[T]) -> type[T]:
    """Make an algorithm of your own known by its `name`; a decorator of its record.

    `Trainer(env, name)`, the command line and saved policies then find it, wherever its module was imported.

    Raises:
        TypeError: it is no dataclass, or lacks what `asyncrl.protocols.Algorithm` asks for.
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
    """Name of the algorithm written `module:Class`, which is imported and registered; other texts as they are.

    Raises:
        ConfigurationError: there is no such module or class (ASYNC017).
    """
    module, colon, name = text.partition(":")
    if not colon:
        return text
    try:
        record: type[Record] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the algorithm {text} cannot be imported: {error}",
            fix="write module:Class, of a module in the working directory or on sys.path",
        ) from error
    return register(record).name


def algorithm_name(text: str) -> str:
    """The name of an algorithm that is written `PPO` or `QR-DQN`; `text` itself where it is none."""
    plain = "".join(filter(str.isalnum, text.lower()))
    return plain if plain in ALGORITHMS else text
