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
            "hidden_sizes": (128, 128),
            "prioritized": False,
            "samples_per_insert": 32.0,
            "learning_starts": 500,
            "exploration_steps": 3_000,
            "replay_capacity": 50_000,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16},
    ),
    "Acrobot-v1": Preset(
        algorithm={
            "learning_rate": 1e-3,
            "prioritized": False,
            "samples_per_insert": 16.0,
            "learning_starts": 1_000,
            "exploration_steps": 5_000,
            "replay_capacity": 50_000,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16},
    ),
    "LunarLander-v3": Preset(
        algorithm={
            "learning_rate": 1e-3,
            "hidden_sizes": (128, 128),
            "batch_size": 128,
            "tau": 0.01,
            "samples_per_insert": 32.0,
            "learning_starts": 2_000,
            "exploration_steps": 20_000,
            "replay_capacity": 200_000,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16},
    ),
    "MountainCar-v0": Preset(
        algorithm={
            "learning_rate": 1e-3,
            "hidden_sizes": (128, 128),
            "batch_size": 128,
            "n_step": 5,
            "tau": 0.01,
            "samples_per_insert": 16.0,
            "learning_starts": 2_000,
            "exploration_steps": 20_000,
        },
        trainer={"num_actors": 1, "envs_per_actor": 16},
    ),
}
