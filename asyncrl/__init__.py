"""Asynchronous reinforcement learning on one workstation.

    from asyncrl import DQN, Trainer

    result = Trainer("CartPole-v1", DQN(), num_actors=2, seed=0).learn(total_steps=200_000)

Names are imported at first use (PEP 562), so that an actor process, which imports `asyncrl.shm` and `asyncrl.actors`,
does not import torch, and `asyncrl --help` is fast.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
"""True for type checkers, which know the name. Importing `typing` would take most of the time before the command heeds
Ctrl-C (`cli/entry.py`), in which it is a traceback."""
if TYPE_CHECKING:
    from typing import Any

    from asyncrl.algorithms.a2c import A2C
    from asyncrl.algorithms.bc import BC
    from asyncrl.algorithms.c51 import C51
    from asyncrl.algorithms.crossq import CrossQ
    from asyncrl.algorithms.ddpg import DDPG
    from asyncrl.algorithms.dqn import DQN
    from asyncrl.algorithms.impala import IMPALA
    from asyncrl.algorithms.iql import IQL
    from asyncrl.algorithms.maddpg import MADDPG
    from asyncrl.algorithms.mappo import MAPPO
    from asyncrl.algorithms.ppo import PPO
    from asyncrl.algorithms.pqn import PQN
    from asyncrl.algorithms.qmix import QMIX
    from asyncrl.algorithms.qrdqn import QRDQN
    from asyncrl.algorithms.r2d2 import R2D2
    from asyncrl.algorithms.rainbow import Rainbow
    from asyncrl.algorithms.registry import register
    from asyncrl.algorithms.sac import SAC
    from asyncrl.algorithms.td3 import TD3
    from asyncrl.algorithms.td3bc import TD3BC
    from asyncrl.algorithms.td7 import TD7
    from asyncrl.algorithms.tqc import TQC
    from asyncrl.algorithms.vdn import VDN
    from asyncrl.config import TrainerConfig
    from asyncrl.errors import AsyncRLError, AsyncRLWarning
    from asyncrl.policies.evaluation import evaluate
    from asyncrl.policies.load import load
    from asyncrl.policies.record import record
    from asyncrl.run.callbacks import Callback, Curriculum
    from asyncrl.run.result import TrainResult
    from asyncrl.show.evaluation_result import EvaluationResult
    from asyncrl.show.metrics import Snapshot, flat
    from asyncrl.trainer.running import running, stop_all
    from asyncrl.trainer.seeds import SeedResults, train_seeds
    from asyncrl.trainer.trainer import Trainer, train
    from asyncrl.tuning.result import Searched
    from asyncrl.tuning.tune import tune
    from asyncrl.version import __version__

# Names missing here are looked up among the algorithms' records.
_HOMES = {
    "AsyncRLError": "asyncrl.errors",
    "AsyncRLWarning": "asyncrl.errors",
    "Callback": "asyncrl.run.callbacks",
    "Curriculum": "asyncrl.run.callbacks",
    "EvaluationResult": "asyncrl.show.evaluation_result",
    "Searched": "asyncrl.tuning.result",
    "SeedResults": "asyncrl.trainer.seeds",
    "Snapshot": "asyncrl.show.metrics",
    "TrainResult": "asyncrl.run.result",
    "Trainer": "asyncrl.trainer.trainer",
    "TrainerConfig": "asyncrl.config",
    "__version__": "asyncrl.version",
    "evaluate": "asyncrl.policies.evaluation",
    "flat": "asyncrl.show.metrics",
    "load": "asyncrl.policies.load",
    "record": "asyncrl.policies.record",
    "register": "asyncrl.algorithms.registry",
    "running": "asyncrl.trainer.running",
    "stop_all": "asyncrl.trainer.running",
    "train": "asyncrl.trainer.trainer",
    "train_seeds": "asyncrl.trainer.seeds",
    "tune": "asyncrl.tuning.tune",
}

__all__ = [
    "A2C",
    "BC",
    "C51",
    "DDPG",
    "DQN",
    "IMPALA",
    "IQL",
    "MADDPG",
    "MAPPO",
    "PPO",
    "PQN",
    "QMIX",
    "QRDQN",
    "R2D2",
    "SAC",
    "TD3",
    "TD3BC",
    "TD7",
    "TQC",
    "VDN",
    "AsyncRLError",
    "AsyncRLWarning",
    "Callback",
    "CrossQ",
    "Curriculum",
    "EvaluationResult",
    "Rainbow",
    "Searched",
    "SeedResults",
    "Snapshot",
    "TrainResult",
    "Trainer",
    "TrainerConfig",
    "__version__",
    "evaluate",
    "flat",
    "load",
    "record",
    "register",
    "running",
    "stop_all",
    "train",
    "train_seeds",
    "tune",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name, "asyncrl.algorithms" if name[:1].isupper() else "")
    value = getattr(importlib.import_module(home), name, None) if home else None
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    records = importlib.import_module("asyncrl.algorithms").__all__
    return sorted({*__all__, *(name for name in records if name[:1].isupper())} - {"ALGORITHMS"})
