"""Presets: tuned settings of an algorithm for an environment, read from `presets/<algorithm>.toml`.

A name that ends with `*`, such as `ALE/*`, stands for all environments that begin so and have no preset of their own.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Attributes:
        algorithm: fields of the algorithm's record that differ from their defaults.
        run: options of the run that belong to them (`num_actors`, `envs_per_actor`, ...).
        reached: return reached with them and its cost; "" if not measured.
    """

    algorithm: Mapping[str, Any]
    run: Mapping[str, Any]
    reached: str = ""


@functools.cache
def load_presets(algorithm: str) -> Mapping[str, Preset]:
    """Presets of an algorithm by environment id, or the beginning of one and `*`; empty if it has no file."""
    file = FOLDER / f"{algorithm}.toml"
    if not file.exists():
        return {}
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        env: Preset(table.get("algorithm", {}), table.get("run", {}), table.get("reached", ""))
        for env, table in tables.items()
    }


def preset_for(algorithm: str, env: str) -> Preset | None:
    """Preset of an algorithm for an environment's id: its own, else that of its family; None without one.

    A module in front of the id (`minigrid:MiniGrid-DoorKey-5x5-v0`) does not count.
    """
    presets = load_presets(algorithm)
    env = env.rpartition(":")[2]
    return presets.get(env) or next((found for name, found in presets.items() if is_family(name, env)), None)


def is_family(name: str, env: str) -> bool:
    """Whether the name of a preset stands for several environments, this one among them."""
    return name.endswith("*") and env.lower().startswith(name[:-1].lower())
