"""Options of a record that are left to the run: what is chosen for an environment and a number of actors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from asyncrl import A2C, IMPALA, PPO, Trainer, TrainerConfig
from asyncrl.envs.checks import spec_of
from asyncrl.envs.packing import packed
from asyncrl.interfaces import DiscreteAction, EnvSpec

VECTOR = EnvSpec("any", (4,), "float32", DiscreteAction(2), observation_kind="values")


@pytest.mark.parametrize(
    ("actors", "envs", "segments", "length"),
    [(1, 16, None, 128), (2, 16, None, 64), (4, 16, 2, 64), (1, 1, None, 2048), (15, 16, None, 32)],
)
def test_a_batch_has_2048_steps_for_any_number_of_actors(
    actors: int, envs: int, segments: int | None, length: int
) -> None:
    config = TrainerConfig(env="any", algo="ppo", num_actors=actors, envs_per_actor=envs)
    assert PPO(segments_per_batch=segments).for_run(VECTOR, config).segment_length == length
    told = PPO(segment_length=7, normalize_observations=False)
    assert told.for_run(VECTOR, config) == told
    for record in (A2C(), IMPALA()):
        assert record.for_run(VECTOR, config).segment_length == record.segment_length


SPACES: dict[str, tuple[Any, bool]] = {
    "real vector": (Box(-1, 1, (3,), np.float64), True),
    "bytes": (Box(0, 10, (147,), np.uint8), False),
    "picture": (Box(0, 255, (40, 40, 3), np.uint8), False),
    "bits": (MultiBinary(5), False),
    "choice": (Discrete(5), False),
    "choices and bits": (Dict({"a": Discrete(3), "b": Discrete(2)}), False),
    "choice and vector": (Dict({"a": Discrete(3), "b": Box(-1, 1, (2,), np.float32)}), True),
    "choice and mask": (Dict({"a": Discrete(3), "action_mask": MultiBinary(2)}), False),
    "picture and vector": (
        Dict({"a": Box(0, 255, (40, 40, 3), np.uint8), "b": Box(-1, 1, (2,), np.float32)}),
        False,
    ),
}


class Spaces(gymnasium.Env[Any, np.int64]):
    """Environment of a space, with episodes of five steps."""

    def __init__(self, space: Any = SPACES["real vector"][0]) -> None:
        self.observation_space, self.action_space, self._steps = space, Discrete(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self.observation_space.sample(), 1.0, False, self._steps == 5, {}


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_real_vectors_are_normalised_and_nothing_else(kind: str) -> None:
    space, normalised = SPACES[kind]
    spec = spec_of("any", packed(Spaces(space)))
    config = TrainerConfig(env="any", algo="ppo", num_actors=1)
    assert PPO().normalizes(spec) is normalised
    assert PPO().layout(spec).normalized is normalised
    assert PPO().for_run(spec, config).normalize_observations is normalised
    assert PPO(normalize_observations=not normalised).normalizes(spec) is not normalised


def test_files_of_a_run_show_what_was_chosen(tmp_path: Path) -> None:
    options: Any = {"num_actors": 1, "envs_per_actor": 32, "http": "off", "eval_episodes": 1}
    trainer = Trainer(Spaces, PPO(epochs=1), run_dir=tmp_path / "run", **options)
    result = trainer.learn(total_steps=64 * 32)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["ppo"]
    assert (written["segment_length"], written["normalize_observations"]) == (64, True)
    assert result.summary["env_steps"] >= 64 * 32
    assert trainer.algorithm == PPO(epochs=1)
