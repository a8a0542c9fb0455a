"""Presets: tuned settings of an algorithm for an environment, read from `presets/<algorithm>.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from asyncrl.algorithms.other_names import unknown_option

FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of the algorithm's record that differ from their defaults.
        run: options of the run that belong to them (`num_actors`, `envs_per_actor`, ...).
        reached: return reached with them and its cost; "" if not measured.
    """

    algorithm: Mapping[str, Any]
    run: Mapping[str, Any]
    reached: str = ""


@functools.cache
def load_presets(algorithm: str) -> Mapping[str, Preset]:
    """Presets of an algorithm by environment id; empty if it has no file."""
    file = FOLDER / f"{algorithm}.toml"
    if not file.exists():
        return {}
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        env: Preset(table.get("algorithm", {}), table.get("run", {}), table.get("reached", ""))
        for env, table in tables.items()
    }


class WithPresets:
    """Base of records with presets."""

    name: ClassVar[str]

    def __new__(cls, *values: object, **options: object) -> Self:
        """Raise TypeError for an unknown option, or a value without a name.

        The message translates names of other libraries to ours, and `PPO("MlpPolicy", env)` of Stable-Baselines3.
        """
        known = cls.__dict__.get("__dataclass_fields__", {})
        if values and known and all(field.kw_only for field in known.values() if field.init):
            raise TypeError(
                f"{cls.__name__} takes options by name only, got {str(values[0])[:60]!r}; the environment is Trainer's "
                f'and decides the network: Trainer("CartPole-v1", {cls.__name__}()).learn(total_steps=...)'
            )
        for name in options:
            if known and name not in known:
                raise TypeError(unknown_option(name, known, cls.__name__))
        return super().__new__(cls)

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """Record with the preset of an environment's id (defaults without one) and `overrides` applied.

        With a network of one's own the preset's heads (`dueling`, `noisy`) are left out, with a learning rate that is a
        function the preset's schedule.
        """
        preset = load_presets(cls.name).get(env_name)
        tuned = dict(preset.algorithm) if preset else {}
        if callable(overrides.get("network")):
            tuned = {name: value for name, value in tuned.items() if name not in ("dueling", "noisy")}
        if callable(overrides.get("learning_rate")):
            tuned.pop("learning_rate_schedule", None)
        return cls(**{**tuned, **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that belong to the preset, as a new dict."""
        preset = load_presets(cls.name).get(env_name)
        return dict(preset.run) if preset else {}
