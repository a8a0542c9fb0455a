"""The algorithms by name. Importing this package does not import torch; making a learner core does."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.dqn import DQN
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.registry import ALGORITHMS

ALGORITHMS.update({algorithm.name: algorithm for algorithm in (DQN, PPO)})

__all__ = ["ALGORITHMS", "DQN", "PPO", "preset_options"]


def preset_options(algorithm: str, env: str) -> dict[str, Any]:
    """Options of the run (`num_actors`, ...) tuned for `algorithm` in `env`; empty where there are none."""
    return ALGORITHMS[algorithm].preset_options(env) if algorithm in ALGORITHMS else {}
