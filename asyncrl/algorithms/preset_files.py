"""Presets: settings of an algorithm for an environment, read from `presets/<algorithm>.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from asyncrl.other_names import unknown_option

FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of the algorithm's record that differ from its defaults.
        run: options of the run that go with them (`num_actors`, `envs_per_actor`, ...).
        reached: the return that was reached with them, and what it took; "" where that was not measured.
    """

    algorithm: Mapping[str, Any]
    run: Mapping[str, Any]
    reached: str = ""


@functools.cache
def load_presets(algorithm: str) -> Mapping[str, Preset]:
    """Presets of an algorithm by the environment's id; none where it has no file."""
    file = FOLDER / f"{algorithm}.toml"
    if not file.exists():
        return {}
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        env: Preset(table.get("algorithm", {}), table.get("run", {}), table.get("reached", ""))
        for env, table in tables.items()
    }


class WithPresets:
    """A record that can be made with the settings of an environment's preset."""

    name: ClassVar[str]

    def __new__(cls, *values: object, **options: object) -> Self:
        """Refuse an option that does not exist, with our name for one of another library. Raises TypeError."""
        known = cls.__dict__.get("__dataclass_fields__", {})
        for name in options:
            if known and name not in known:
                raise TypeError(unknown_option(name, known, cls.__name__))
        return super().__new__(cls)

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        preset = load_presets(cls.name).get(env_name)
        return cls(**{**(preset.algorithm if preset else {}), **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        preset = load_presets(cls.name).get(env_name)
        return dict(preset.run) if preset else {}
