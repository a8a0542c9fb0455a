"""What a preset is: settings of an algorithm for one environment, and the options of the run that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of the algorithm's record that differ from its defaults.
        trainer: options of the run that go with them (`num_actors`, `envs_per_actor`, ...).
    """

    algorithm: Mapping[str, Any]
    trainer: Mapping[str, Any]


class WithPresets:
    """A record that is made with the settings of an environment's preset."""

    @classmethod
    def _presets(cls) -> Mapping[str, Preset]:
        """What is tuned, by the environment's id."""
        return {}

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        preset = cls._presets().get(env_name)
        return cls(**{**(preset.algorithm if preset else {}), **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        preset = cls._presets().get(env_name)
        return dict(preset.trainer) if preset else {}
