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
from asyncrl.acting.images import choose_network
from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.network import NetworkInputs
from asyncrl.envs.observations import kind_of, kind_of_observations, pack
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import SpacesDoNotFit
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
        (box((4, 4, 3)), "bytes"),
        (box((8, 8, 3), 1000, np.int64), "values"),
        (box((8, 8, 3), 1, np.float32), "values"),
        (box((128,)), "bytes"),
        (box((2, 3)), "bytes"),
        (box((128,), 254), "values"),
        (box((128,), 255, np.int64), "values"),
        (box((10, 10), 6, np.int64), "values"),
        (spaces.MultiBinary(9), "values"),
    ],
)
def test_the_kind_of_a_space(space: Any, kind: str) -> None:
    assert kind_of(space) == ("values" if kind == "bytes" else kind)
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
        (lambda: gymnasium.wrappers.FlattenObservation(Shows(box((7, 7, 3)))), "bytes"),
        (lambda: gymnasium.wrappers.FrameStackObservation(Shows(box((21, 21))), 3), "image"),
        (lambda: gymnasium.vector.SyncVectorEnv([lambda: flattened((30, 30, 3))]), "image"),
        (lambda: gymnasium.vector.SyncVectorEnv([lambda: flattened((7, 7, 3))]), "bytes"),
    ],
)
def test_the_origin_of_a_flattened_array_decides(make: Any, kind: str) -> None:
    assert kind_of_observations(make()) == kind


@pytest.mark.usefixtures("atari_games")
def test_the_memory_of_an_atari_game_is_scaled_as_an_image() -> None:
    assert kind_of_observations(gymnasium.make("ALE/Pong-v5", obs_type="ram")) == "image"


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
    if name == "small":  # a grid has other convolutions
        return
    other = portable(kind(network=name), IMAGE if spec is GRID else GRID)
    other.policy.load_weights(policy.weights)
    assert not np.array_equal(other.predict(obs)[0], expected), "the scaling matters to these weights"


def network_of(space: Any, name: Any = "auto") -> Any:
    return choose_network(name, describe(EnvSource.from_user(lambda: Shows(space))))


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (box((7, 7, 3)), "grid 7x7x3: small convolutional network without strides"),
        (box((10, 10, 4), 1, bool), "grid 10x10x4: small convolutional network without strides"),
        (box((7, 7, 20)), "grid 7x7x20: small convolutional network without strides"),
        (box((5, 6, 6), 1, np.int8), "grid 6x6x5: small convolutional network without strides"),
        (box((5, 5, 5), 3, np.int64), "grid 5x5x5: small convolutional network without strides"),
        (box((19, 19, 3)), "grid 19x19x3: small convolutional network"),
        (box((40, 40, 6), 1, bool), "grid 40x40x6: Nature CNN (Mnih et al. 2015)"),
        (box((10, 10), 6), "grid 10x10x1: small convolutional network without strides"),
    ],
)
def test_a_grid_has_convolutions_that_fit_it(space: Any, text: str) -> None:
    assert network_of(space).text == text


def test_a_network_asked_for_by_name_fits_a_grid_or_is_refused() -> None:
    assert network_of(box((7, 7, 3)), "small").name == "cells"
    assert network_of(box((7, 7, 3)), "mlp") is None
    assert network_of(box((10, 10, 4), 1, bool), "impala").name == "impala"
    with pytest.raises(SpacesDoNotFit, match="'impala' needs images of at least 8 x 8"):
        network_of(box((7, 7, 3)), "impala")
    for space in (box((4, 4, 3)), box((128,)), box((8, 8, 3), 1000, np.int64)):
        assert network_of(space) is None


def test_a_file_from_before_grids_keeps_its_perceptron() -> None:
    for kind in (None, "values"):
        spec = EnvSpec("any", (10, 10, 4), "bool", DiscreteAction(3), observation_kind=kind)  # type: ignore[arg-type]
        assert choose_network("auto", spec) is None


def test_a_grid_in_a_dictionary_has_convolutions_and_is_not_scaled() -> None:
    space = spaces.Dict({"cells": box((7, 7, 3)), "speed": box((2,), 1, np.float32)})
    spec = describe(EnvSource.from_user(lambda: Shows(space)))
    network = choose_network("auto", spec)
    assert network is not None and network.text == (
        "grid 7x7x3: small convolutional network without strides; other values a layer of their own"
    )
    assert (spec.observation_dtype, spec.observation_shape) == ("float32", (147 + 2,))
    obs = space.sample()
    np.testing.assert_array_equal(pack(obs, spec)[:147], obs["cells"].ravel())


@pytest.mark.parametrize("shape", [(7, 7, 3), (3, 6, 6)])
@pytest.mark.parametrize("dtype", [np.uint8, bool, np.int64])
@pytest.mark.parametrize("frames", [1, 2])
def test_learner_actor_file_and_model_agree_on_a_grid(
    shape: tuple[int, ...], dtype: Any, frames: int, tmp_path: Path
) -> None:
    space = box(shape, 1, dtype)
    spec = describe(EnvSource.from_user(lambda: Shows(space)))
    policy = portable(asyncrl.DQN(frame_stack=frames), spec)
    assert isinstance(policy.policy.network, ModuleActingNetwork)  # type: ignore[attr-defined]
    rng, expected = np.random.default_rng(0), np.zeros(1)
    stack = (100,) if frames == 1 else (100, frames)
    obs = rng.integers(0, 2, (*stack, *shape)).astype(dtype)
    while len(np.unique(expected)) == 1:  # weights for which the actions differ
        policy.weights[:] = rng.normal(scale=0.1, size=policy.weights.shape)
        policy.policy.load_weights(policy.weights)
        expected = policy.predict(obs)[0]
    acting = asyncrl.DQN(frame_stack=frames).make_policy(spec)
    acting.load_weights(policy.weights)
    np.testing.assert_array_equal(acting.greedy(obs), expected, err_msg="torch in an actor")
    np.testing.assert_array_equal(asyncrl.load(policy.save(tmp_path / "x")).predict(obs)[0], expected)
    onnxruntime = pytest.importorskip("onnxruntime")
    model = onnxruntime.InferenceSession(str(policy.export_onnx(tmp_path / "x.onnx")))
    np.testing.assert_array_equal(model.run(None, {"obs": obs})[0], expected)
