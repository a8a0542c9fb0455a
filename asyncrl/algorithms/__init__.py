"""Algorithms by name, each imported at its first use. The import does not load torch; making an updater does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms.registry import ALGORITHMS as ALGORITHMS

if TYPE_CHECKING:
    from asyncrl.algorithms.a2c import A2C as A2C
    from asyncrl.algorithms.bc import BC as BC
    from asyncrl.algorithms.c51 import C51 as C51
    from asyncrl.algorithms.crossq import CrossQ as CrossQ
    from asyncrl.algorithms.ddpg import DDPG as DDPG
    from asyncrl.algorithms.dqn import DQN as DQN
    from asyncrl.algorithms.impala import IMPALA as IMPALA
    from asyncrl.algorithms.iql import IQL as IQL
    from asyncrl.algorithms.maddpg import MADDPG as MADDPG
    from asyncrl.algorithms.mappo import MAPPO as MAPPO
    from asyncrl.algorithms.ppo import PPO as PPO
    from asyncrl.algorithms.pqn import PQN as PQN
    from asyncrl.algorithms.qmix import QMIX as QMIX
    from asyncrl.algorithms.qrdqn import QRDQN as QRDQN
    from asyncrl.algorithms.r2d2 import R2D2 as R2D2
    from asyncrl.algorithms.rainbow import Rainbow as Rainbow
    from asyncrl.algorithms.sac import SAC as SAC
    from asyncrl.algorithms.td3 import TD3 as TD3
    from asyncrl.algorithms.td3bc import TD3BC as TD3BC
    from asyncrl.algorithms.td7 import TD7 as TD7
    from asyncrl.algorithms.tqc import TQC as TQC
    from asyncrl.algorithms.vdn import VDN as VDN


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [
            "ALGORITHMS",
            "over_preset",
            "preset_options",
            *(record.__name__ for record in ALGORITHMS.values()),
        ]
    record = ALGORITHMS.get(name.lower())
    if record is None or record.__name__ != name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return record


def preset_options(algorithm: str, env: str) -> dict[str, Any]:
    """Options of the run (`num_actors`, ...) tuned for `algorithm` in `env`; empty without a preset."""
    return ALGORITHMS[algorithm].preset_options(env) if algorithm in ALGORITHMS else {}


def over_preset(algorithm: str, env: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a run over those of the preset. Keyword arguments of the environment are put together, one by one."""
    tuned = preset_options(algorithm, env)
    below, given = tuned.get("env_kwargs", {}), options.get("env_kwargs")
    together = {"env_kwargs": {**below, **given}} if below and isinstance(given, Mapping) else {}
    return {**tuned, **options, **together}
