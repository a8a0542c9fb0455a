"""The algorithms by name. Importing this package does not import torch; making a learner core does."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.a2c import A2C
from asyncrl.algorithms.c51 import C51
from asyncrl.algorithms.ddpg import DDPG
from asyncrl.algorithms.dqn import DQN
from asyncrl.algorithms.impala import IMPALA
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.qrdqn import QRDQN
from asyncrl.algorithms.rainbow import Rainbow
from asyncrl.algorithms.registry import ALGORITHMS
from asyncrl.algorithms.sac import SAC
from asyncrl.algorithms.td3 import TD3

ALGORITHMS.update(
    {made.name: made for made in (DQN, C51, QRDQN, Rainbow, DDPG, TD3, SAC, PPO, IMPALA, A2C)},
)

__all__ = [
    "A2C",
    "ALGORITHMS",
    "C51",
    "DDPG",
    "DQN",
    "IMPALA",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "Rainbow",
    "preset_options",
]


def preset_options(algorithm: str, env: str) -> dict[str, Any]:
    """Options of the run (`num_actors`, ...) tuned for `algorithm` in `env`; empty where there are none."""
    return ALGORITHMS[algorithm].preset_options(env) if algorithm in ALGORITHMS else {}
