"""The table of algorithms, filled by the package; a file of its own so that an algorithm can name the others."""

from __future__ import annotations

from typing import Any

from asyncrl.core import EnvSpec

ALGORITHMS: dict[str, Any] = {}
"""Every algorithm's record by the name that the command line knows it by."""


def fitting(spec: EnvSpec) -> str:
    """Names of the algorithms that take the kind of action that `spec` has, or "none of this version"."""
    names = [name for name, record in ALGORITHMS.items() if isinstance(spec.action, record.action_kinds)]
    return ", ".join(sorted(names)) or "none of this version"
