"""The table of algorithms, filled by the package; a file of its own so that an algorithm can name the others."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

import numpy as np

from asyncrl.interfaces import ActionSpec, Algorithm, BoxAction, EnvSpec


class Record(Algorithm, Protocol):
    """What the record of an algorithm has beside what `Algorithm` asks of it."""

    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool]
    """Whether a Box action must have finite bounds."""

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


def unbounded(action: ActionSpec) -> int | None:
    """Index of the first value of a Box action that has no finite bounds in float32; None where there is none."""
    if not isinstance(action, BoxAction):
        return None
    largest = float(np.finfo(np.float32).max)
    bounds = enumerate(zip(action.low, action.high, strict=True))
    return next((i for i, (low, high) in bounds if not max(abs(low), abs(high)) <= largest), None)


def fitting(spec: EnvSpec) -> str:
    """Names of the algorithms that take the actions that `spec` has, or "none of this version"."""
    endless = unbounded(spec.action) is not None
    names = [
        name
        for name, record in ALGORITHMS.items()
        if isinstance(spec.action, record.action_kinds) and not (endless and record.needs_bounds)
    ]
    return ", ".join(sorted(names)) or "none of this version"
