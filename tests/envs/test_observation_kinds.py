"""Kinds of observations: only bytes of images are scaled, by learner, actors, ONNX models and saved policies alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from portable_policies import portable

import asyncrl
from asyncrl.acting.network import NetworkInputs
from asyncrl.envs.observations import kind_of
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.storage.checkpoint_meta import meta_from_json, meta_to_json


class Shows(gymnasium.Env[Any, Any]):
    """Environment with random samples of `space`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def box(shape: tuple[int, ...], high: float = 255, dtype: Any = np.uint8, low: float = 0) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (box((84, 84)), "image"),
        (box((210, 160, 3)), "image"),
        (box((4, 84, 84)), "image"),
        (box((28, 28, 1)), "image"),
        (box((20, 200, 3)), "image"),
        (box((4, 84, 84, 3)), "image"),
        (box((21, 21)), "image"),
        (box((7, 7, 3)), "grid"),  # MiniGrid
        (box((25, 25, 3)), "grid"),  # MiniGrid's largest
        (box((7, 7, 20)), "grid"),  # MiniGrid, one-hot
        (box((10, 10, 4), 1, bool), "grid"),  # MinAtar
        (box((9, 9, 17), 1, np.int8), "grid"),
        (spaces.MultiBinary((6, 6, 2)), "grid"),
        (box((8, 8, 3), 10, np.int64), "grid"),
        (box((64, 64, 3), 1), "grid"),
        (box((10, 10), 6), "grid"),
        (box((4, 4, 3)), "values"),
        (box((8, 8, 3), 1000, np.int64), "values"),
        (box((8, 8, 3), 1, np.float32), "values"),
        (box((128,)), "values"),
        (box((2, 3)), "values"),
        (box((10, 10), 6, np.int64), "values"),
        (spaces.MultiBinary(9), "values"),
    ],
)
def test_the_kind_of_a_space(space: Any, kind: str) -> None:
    assert kind_of(space) == kind
    spec = describe(EnvSource.from_user(lambda: Shows(space)))
    assert spec.observation_kind == kind


def test_bounds_of_one_number_decide() -> None:
    high = np.full((40, 40, 3), 255, np.uint8)
    high[3, 2, 1] = 254
    assert kind_of(spaces.Box(np.zeros_like(high), high, dtype=np.uint8)) == "grid"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: gymnasium.wrappers.FlattenObservation(Shows(box((40, 40, 3)))), "image"),
        (lambda: gymnasium.wrappers.FlattenObservation(Shows(box((7, 7, 3)))), "values"),
        (lambda: gymnasium.wrappers.FrameStackObservation(Shows(box((21, 21))), 3), "image"),
        (lambda: gymnasium.vector.SyncVectorEnv([lambda: flattened((30, 30, 3))]), "image"),
        (lambda: gymnasium.vector.SyncVectorEnv([lambda: flattened((7, 7, 3))]), "values"),
        (lambda: gymnasium.make("ALE/Pong-v5", obs_type="ram"), "image"),
    ],
)
def test_the_origin_of_a_flattened_array_decides(make: Any, kind: str) -> None:
    from asyncrl.envs.observations import kind_of_observations

    if "ALE" in str(make.__code__.co_consts):
        pytest.importorskip("ale_py")
    assert kind_of_observations(make()) == kind


def flattened(shape: tuple[int, ...]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.FlattenObservation(Shows(box(shape)))


IMAGE = EnvSpec("any", (8, 8, 3), "uint8", DiscreteAction(3), observation_kind="image")
GRID, OLD = replace(IMAGE, observation_kind="grid"), replace(IMAGE, observation_kind=None)


@pytest.mark.parametrize(("spec", "factor"), [(IMAGE, 1 / 255), (GRID, 1.0), (OLD, 1 / 255)])
def test_only_images_are_scaled(spec: EnvSpec, factor: float) -> None:
    rows = np.arange(192, dtype=np.uint8).reshape(1, -1)
    out = np.empty((1, 192), np.float32)
    NetworkInputs(spec).fill(rows, out)
    np.testing.assert_array_equal(out, rows * np.float32(factor))


def test_a_header_keeps_the_kind_and_an_old_one_has_none() -> None:
    policy = portable(asyncrl.DQN(network="mlp", hidden_sizes=(8,)), GRID)
    record = meta_to_json(policy.meta)
    assert meta_from_json(meta_to_json(policy.meta)).spec == GRID
    del record["spec"]["observation_kind"]
    assert meta_from_json(record).spec == OLD


@pytest.mark.parametrize("spec", [IMAGE, GRID, OLD])
@pytest.mark.parametrize("name", ["mlp", "small"])
@pytest.mark.parametrize("kind", [asyncrl.DQN, asyncrl.PPO])
def test_file_and_model_act_as_the_policy(kind: Any, name: Any, spec: EnvSpec, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = portable(kind(network=name), spec)
    rng = np.random.default_rng(0)
    policy.weights[:] = rng.normal(scale=0.1, size=policy.weights.shape)
    policy.policy.load_weights(policy.weights)
    obs = rng.integers(0, 11, (200, 8, 8, 3), dtype=np.uint8)
    expected = policy.predict(obs)[0]
    assert np.array_equal(asyncrl.load(policy.save(tmp_path / "x.policy")).predict(obs)[0], expected)
    model = onnxruntime.InferenceSession(str(policy.export_onnx(tmp_path / "x.onnx")))
    assert np.mean(model.run(None, {"obs": obs})[0] == expected) > 0.99
    other = portable(kind(network=name), IMAGE if spec is GRID else GRID)
    other.policy.load_weights(policy.weights)
    assert not np.array_equal(other.predict(obs)[0], expected), "the scaling matters to these weights"
