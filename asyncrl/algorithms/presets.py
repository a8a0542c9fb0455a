"""What a preset is: settings of an algorithm for one environment, and the options of the run that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of the algorithm's record that differ from its defaults.
        trainer: options of the run that go with them (`num_actors`, `envs_per_actor`, ...).
    """

    algorithm: Mapping[str, Any]
    trainer: Mapping[str, Any]
