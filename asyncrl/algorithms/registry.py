"""The table of algorithms, filled by the package; a file of its own so that an algorithm can name the others."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

from asyncrl.core import Algorithm, EnvSpec


class Record(Algorithm, Protocol):
    """What the record of an algorithm has beside what `Algorithm` asks of it."""

    action_kinds: ClassVar[tuple[type, ...]]

    def __init__(self, **options: Any) -> None: ...

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        ...

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        ...


ALGORITHMS: dict[str, type[Record]] = {}
"""Every algorithm's record by the name that the command line knows it by."""


def fitting(spec: EnvSpec) -> str:
    """Names of the algorithms that take the kind of action that `spec` has, or "none of this version"."""
    names = [name for name, record in ALGORITHMS.items() if isinstance(spec.action, record.action_kinds)]
    return ", ".join(sorted(names)) or "none of this version"
