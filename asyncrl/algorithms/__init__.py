"""The algorithms by name. Importing this package does not import torch; making an updater does.

An algorithm is a file `<name>.py` with a record whose `name` is that, and a file `presets/<name>.toml`. It is found by
the latter, so that adding one changes no other file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms.preset_files import FOLDER
from asyncrl.algorithms.registry import ALGORITHMS, Record

if TYPE_CHECKING:
    from asyncrl.algorithms.a2c import A2C as A2C
    from asyncrl.algorithms.c51 import C51 as C51
    from asyncrl.algorithms.ddpg import DDPG as DDPG
    from asyncrl.algorithms.dqn import DQN as DQN
    from asyncrl.algorithms.impala import IMPALA as IMPALA
    from asyncrl.algorithms.ppo import PPO as PPO
    from asyncrl.algorithms.qrdqn import QRDQN as QRDQN
    from asyncrl.algorithms.rainbow import Rainbow as Rainbow
    from asyncrl.algorithms.sac import SAC as SAC
    from asyncrl.algorithms.td3 import TD3 as TD3


def _find(name: str) -> type[Record]:
    """The record called `name` in the module of that name."""
    module = importlib.import_module(f"{__name__}.{name}")
    found = (value for value in vars(module).values() if isinstance(value, type))
    return next(value for value in found if value.__dict__.get("name") == name)


ALGORITHMS.update({file.stem: _find(file.stem) for file in sorted(FOLDER.glob("*.toml"))})
globals().update({record.__name__: record for record in ALGORITHMS.values()})

__all__ = ["ALGORITHMS", "preset_options", *(record.__name__ for record in ALGORITHMS.values())]


def preset_options(algorithm: str, env: str) -> dict[str, Any]:
    """Options of the run (`num_actors`, ...) tuned for `algorithm` in `env`; empty where there are none."""
    return ALGORITHMS[algorithm].preset_options(env) if algorithm in ALGORITHMS else {}
