"""Asynchronous reinforcement learning on one workstation.

    from asyncrl import DQN, Trainer

    result = Trainer("CartPole-v1", DQN(), num_actors=2, seed=0).learn(total_steps=200_000)

Names load at first use (PEP 562): an actor process imports `asyncrl.shm` and `asyncrl.actors` and must not import
torch, and `asyncrl --help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.algorithms.a2c import A2C
    from asyncrl.algorithms.c51 import C51
    from asyncrl.algorithms.ddpg import DDPG
    from asyncrl.algorithms.dqn import DQN
    from asyncrl.algorithms.impala import IMPALA
    from asyncrl.algorithms.ppo import PPO
    from asyncrl.algorithms.qrdqn import QRDQN
    from asyncrl.algorithms.rainbow import Rainbow
    from asyncrl.algorithms.sac import SAC
    from asyncrl.algorithms.td3 import TD3
    from asyncrl.errors import AsyncRLError, AsyncRLWarning
    from asyncrl.run.config import TrainerConfig
    from asyncrl.run.run_thread import TrainResult
    from asyncrl.run.trainer import Trainer, train
    from asyncrl.show.metrics import EvaluationResult, Snapshot
    from asyncrl.version import __version__

_HOMES = {
    "A2C": "asyncrl.algorithms.a2c",
    "AsyncRLError": "asyncrl.errors",
    "AsyncRLWarning": "asyncrl.errors",
    "C51": "asyncrl.algorithms.c51",
    "DDPG": "asyncrl.algorithms.ddpg",
    "DQN": "asyncrl.algorithms.dqn",
    "EvaluationResult": "asyncrl.show.metrics",
    "IMPALA": "asyncrl.algorithms.impala",
    "PPO": "asyncrl.algorithms.ppo",
    "QRDQN": "asyncrl.algorithms.qrdqn",
    "Rainbow": "asyncrl.algorithms.rainbow",
    "SAC": "asyncrl.algorithms.sac",
    "Snapshot": "asyncrl.show.metrics",
    "TD3": "asyncrl.algorithms.td3",
    "TrainResult": "asyncrl.run.run_thread",
    "Trainer": "asyncrl.run.trainer",
    "TrainerConfig": "asyncrl.run.config",
    "__version__": "asyncrl.version",
    "train": "asyncrl.run.trainer",
}

__all__ = [
    "A2C",
    "C51",
    "DDPG",
    "DQN",
    "IMPALA",
    "PPO",
    "QRDQN",
    "SAC",
    "TD3",
    "AsyncRLError",
    "AsyncRLWarning",
    "EvaluationResult",
    "Rainbow",
    "Snapshot",
    "TrainResult",
    "Trainer",
    "TrainerConfig",
    "__version__",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
