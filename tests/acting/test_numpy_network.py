"""Convolutional networks in NumPy give the values of the torch modules, and need no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from portable_policies import make_network, portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.acting.images import CombinedNetwork, ConvolutionalNetwork
from asyncrl.acting.modules import (
    ModuleActingNetwork,
    bind,
    flat_size,
    make_acting_network,
    network_size,
    require_torch,
)
from asyncrl.acting.noisy_layers import factor_counts, noisy_layers, set_noise
from asyncrl.acting.policies import QLayout
from asyncrl.acting.recurrent import Cell, RecurrentActingNetwork
from asyncrl.acting.stochastic import ActorLayout
from asyncrl.envs.observations import Image
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import DiscreteAction, EnvSpec, Leaf

ROWS, OUTPUTS = 3, 7
SIDES = {"small": (11, 9), "cells": (7, 5), "coarse": (37, 44), "nature": (44, 37), "impala": (17, 12)}
HEADS: dict[str, tuple[int, float, bool]] = {
    "plain": (0, 0.0, False),
    "dueling": (2, 0.0, False),
    "noisy": (0, 0.5, False),
    "dueling, noisy": (2, 0.5, False),
    "normalised": (0, 0.0, True),
    "dueling, normalised": (2, 0.0, True),
}


def images(name: str) -> list[Image]:
    """Images of one channel, with channels last and first, single and in stacks."""
    height, width = SIDES[name]
    return [
        Image(frames, height, width, channels, first)
        for frames in (1, 3)
        for channels, first in ((1, False), (3, False), (3, True))
    ]


def weights_of(module: torch.nn.Module, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random weights of which no layer's output vanishes or grows; the module uses them."""
    flat = np.concatenate([p.numpy().ravel() for p in module.requires_grad_(False).parameters()])
    flat += rng.normal(scale=0.02, size=flat.shape).astype(np.float32)
    bind([module], torch.from_numpy(flat))
    return flat


def assert_equal_to_torch(factory: Any, inputs: int) -> None:
    rng = np.random.default_rng(0)
    module, network = factory(inputs, OUTPUTS), factory.numpy
    flat = weights_of(module, rng)
    assert network.parameter_count(inputs, OUTPUTS) == flat_size([module])
    x = rng.random((ROWS, inputs), np.float32)
    expected = module(torch.from_numpy(x)).numpy()
    behind = np.full(5, np.nan, np.float32)  # a policy's block goes on after its network
    got = network.forward(x, np.concatenate((flat, behind)), OUTPUTS)
    assert got.dtype == np.float32 and np.abs(expected).max() > 0.01
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    layers = noisy_layers([module])
    assert network.noise_count(inputs, OUTPUTS) == sum(factor_counts(layers))
    if layers:
        noise = rng.standard_normal((ROWS, sum(factor_counts(layers))), np.float32)
        set_noise(layers, torch.from_numpy(noise))
        perturbed = module(torch.from_numpy(x)).numpy()
        assert np.abs(perturbed - expected).max() > 0.01
        np.testing.assert_allclose(network.forward(x, flat, OUTPUTS, noise), perturbed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", SIDES)
def test_every_network_of_images_is_that_of_torch(name: Any, head: str) -> None:
    for image in images(name):
        for others in (0, 2):  # such as the action of a critic
            assert_equal_to_torch(ConvolutionalNetwork(name, image, *HEADS[head]), image.values + others)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("frames", [1, 2])
def test_every_network_of_structured_observations_is_that_of_torch(name: Any, head: str, frames: int) -> None:
    first, second = Image(frames, *SIDES[name], 3, False), Image(frames, 10, 8, 2, True)
    start = 4 + first.values // frames
    row = start + second.values // frames + 5
    both = ((4, first), (start, second))
    for others in (0, 2):
        network = CombinedNetwork(name, frames, row, both, *HEADS[head])
        assert_equal_to_torch(network, frames * row + others)
    alone = CombinedNetwork(name, frames, first.values // frames, ((0, first),), *HEADS[head])
    assert_equal_to_torch(alone, first.values)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("name", SIDES)
def test_a_recurrent_network_with_such_an_encoder_is_that_of_torch(
    name: Any, kind: Any, activation: Any
) -> None:
    image, rng = Image(1, *SIDES[name], 3, False), np.random.default_rng(0)
    spec = EnvSpec("images", (*SIDES[name], 3), "uint8", DiscreteAction(OUTPUTS))
    network, cell = ConvolutionalNetwork(name, image), Cell(kind, 6)
    layout = ActorLayout(
        image.values, (5,), spec.action, activation=activation, network=network, cell=cell, normalized=True
    )
    both = [make_acting_network(spec, layout, activation == "relu", cell) for _ in range(2)]
    weights = rng.normal(scale=0.05, size=layout.weight_count).astype(np.float32)
    weights[layout.obs_scale] = 0.01
    for acting in both:
        assert isinstance(acting, RecurrentActingNetwork)
        acting.load(weights)
        acting.forget(ROWS)
    both[1].leave_torch()
    for _ in range(4):
        obs = rng.integers(0, 256, (ROWS, *spec.observation_shape)).astype(np.uint8)
        expected, got = (acting(obs) for acting in both)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(both[1].state, both[0].state, rtol=1e-5, atol=1e-5)
    assert both[1]._module is None and np.abs(both[1].state).max() > 0.01


def test_a_noisy_network_draws_the_same_noise_without_torch() -> None:
    image = Image(2, *SIDES["small"], 1, False)
    spec = EnvSpec("images", SIDES["small"], "uint8", DiscreteAction(3)).stacked(2)
    network = ConvolutionalNetwork("small", image, 1, 0.5)
    layout = QLayout(image.values, (5,), 3, dueling=True, noisy=True, network=network)
    rng = np.random.default_rng(0)
    weights = rng.normal(scale=0.05, size=layout.weight_count).astype(np.float32)
    obs = rng.integers(0, 256, (ROWS, *spec.observation_shape)).astype(np.uint8)
    values = []
    for without in (False, True):
        acting = ModuleActingNetwork(spec, layout, network)
        acting.load(weights)
        if without:
            acting.leave_torch()
        drawn = np.random.default_rng(1)
        values.append([acting.perturbed(obs, drawn), acting.perturbed(obs, drawn), acting(obs)])
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-5)
    assert np.abs(values[1][0] - values[1][1]).max() > 0.01


def test_many_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.acting.numpy_network.CHUNK_BYTES", 2 * 6 * 5 * 9 * 4 + 1)
    monkeypatch.setattr(sys.modules[__name__], "ROWS", 5)
    image = Image(1, *SIDES["small"], 1, False)
    assert_equal_to_torch(ConvolutionalNetwork("small", image), image.values)


def structured() -> EnvSpec:
    leaves = (Leaf(("image",), "image", (12, 10, 3)), Leaf(("position",), "values", (2,)))
    return EnvSpec("any", (12 * 10 * 3 + 2 * 4,), "uint8", DiscreteAction(3), leaves=leaves)


PIXELS = EnvSpec("any", (12, 10), "uint8", DiscreteAction(3))
POLICIES: dict[str, tuple[Any, EnvSpec]] = {
    "dqn, dueling, noisy": (asyncrl.DQN(dueling=True, noisy=True, frame_stack=2), PIXELS),
    "ppo, impala": (asyncrl.PPO(network="impala"), PIXELS),
    "r2d2": (asyncrl.R2D2(), PIXELS),
    "dqn, structured": (asyncrl.DQN(), structured()),
    "dqn, grid": (asyncrl.DQN(), replace(PIXELS, observation_shape=(7, 7, 3), observation_kind="grid")),
}


@pytest.mark.parametrize("case", POLICIES)
def test_a_loaded_policy_acts_without_torch(case: str, tmp_path: Path) -> None:
    algorithm, spec = POLICIES[case]
    policy, rng = portable(algorithm, spec), np.random.default_rng(0)
    shape = spec.observation_shape if algorithm.frame_stack == 1 else (2, *spec.observation_shape)
    obs = 60 * (rng.random((20, *shape)) < rng.random((20, *[1] * len(shape)))).astype(np.uint8)
    drawn = policy.weights.copy()
    while len(np.unique(policy.predict(obs)[0])) == 1:  # weights for which the actions differ
        policy.weights[:] = drawn + rng.normal(scale=0.06, size=drawn.shape)
        policy.policy.load_weights(policy.weights)
    policy.save(tmp_path / "x.policy")
    np.save(tmp_path / "obs.npy", obs)
    code = (
        "import sys, json, numpy, asyncrl\n"
        f"policy = asyncrl.load({str(tmp_path / 'x.policy')!r})\n"
        f"obs = numpy.load({str(tmp_path / 'obs.npy')!r})\n"
        "policy.predict(obs, deterministic=False)\n"
        "print(json.dumps(policy.predict(obs)[0].tolist()))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == policy.predict(obs)[0].tolist()


def test_a_network_of_the_users_own_says_that_it_needs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    file = portable(asyncrl.DQN(network=make_network), spec).save(tmp_path / "x.policy")
    require_torch()
    unpickled = "asyncrl.policies.load.unpickled_network"
    monkeypatch.setattr(unpickled, lambda _: __import__("torch"))  # as the pickle of most factories does
    monkeypatch.setitem(sys.modules, "torch", None)
    for options in ({"network": make_network}, {"trusted": True}):
        with pytest.raises(ConfigurationError, match="a network of your own acts with torch, which is not"):
            asyncrl.load(file, **options)
    with pytest.raises(ConfigurationError, match="acts with torch"):
        network_size((4, 5, 2), make_network)
    assert network_size((4, 5, 2), None) == 5 * 5 + 6 * 2
