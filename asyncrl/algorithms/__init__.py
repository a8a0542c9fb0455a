"""The algorithms by name. Importing this package does not import torch; making a learner core does."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.a2c import A2C
from asyncrl.algorithms.dqn import DQN
from asyncrl.algorithms.impala import IMPALA
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.registry import ALGORITHMS

ALGORITHMS.update({algorithm.name: algorithm for algorithm in (DQN, PPO, IMPALA, A2C)})

__all__ = ["A2C", "ALGORITHMS", "DQN", "IMPALA", "PPO", "preset_options"]


def preset_options(algorithm: str, env: str) -> dict[str, Any]:
    """Options of the run (`num_actors`, ...) tuned for `algorithm` in `env`; empty where there are none."""
    return ALGORITHMS[algorithm].preset_options(env) if algorithm in ALGORITHMS else {}
