"""Networks run by the learner's process: several arrays in one pass, other devices, and which policies allow it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import fakes
import numpy as np
import pytest
import torch
from labelled_device import LabelledDevice

from asyncrl import DQN, PPO, SAC, Rainbow
from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.network_policy import own_weights, require_served
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec

IMAGES = EnvSpec("images", (9, 9), "uint8", DiscreteAction(3))
VALUES = EnvSpec("values", (4,), "float32", DiscreteAction(3))
IMAGES_BOX = EnvSpec("images", (9, 9), "uint8", BoxAction((-1.0,), (1.0,), (1,)))
BOX = EnvSpec("box", (4,), "float32", BoxAction((-1.0, -1.0), (1.0, 1.0), (2,)))


def weighted(algorithm: Any, spec: EnvSpec, seed: int = 0) -> Any:
    policy = algorithm.make_policy(spec)
    rng = np.random.default_rng(seed)
    policy.load_weights(rng.normal(0, 0.2, policy.weight_count).astype(np.float32))
    return policy


def observations(spec: EnvSpec, rows: int) -> Any:
    return (np.random.default_rng(rows).random((rows, *spec.observation_shape)) * 255).astype(
        spec.observation_dtype
    )


@pytest.mark.parametrize(
    ("algorithm", "spec"),
    [
        (DQN(network="small"), IMAGES),
        (PPO(hidden_sizes=(8,), normalize_observations=True), VALUES),
        (SAC(hidden_sizes=(8,)), BOX),
    ],
)
def test_one_pass_over_several_arrays_is_a_pass_over_each(algorithm: Any, spec: EnvSpec) -> None:
    network = require_served(weighted(algorithm, spec)).network
    for counts in ((3, 1, 2), (2,), (4, 4), (1, 1)):
        arrays = [observations(spec, count) for count in counts]
        together = network.of_all(arrays)
        assert together.shape == (sum(counts), network.outputs)
        np.testing.assert_allclose(
            together, np.concatenate([network(obs) for obs in arrays]), rtol=1e-4, atol=1e-5
        )


def test_on_another_device_a_module_takes_the_weights_when_it_is_told() -> None:
    """`cpu:0` is a substitute for a GPU: torch copies to it and back."""
    policy = weighted(DQN(network="small"), IMAGES)
    network, obs = policy.network, observations(IMAGES, 3)
    assert isinstance(network, ModuleActingNetwork)
    expected = network(obs)
    there = weighted(DQN(network="small"), IMAGES).network
    there.device = "cpu:0"
    np.testing.assert_array_equal(there(obs), expected)
    there.weights[...] *= 2
    np.testing.assert_array_equal(there(obs), expected, err_msg="a copy")
    there.weights_changed()
    policy.weights[...] *= 2
    np.testing.assert_array_equal(there(obs), network(obs))
    assert pickle.loads(pickle.dumps(there)).device == "cpu"


@pytest.mark.parametrize(
    ("algorithm", "spec"),
    [
        (DQN(network="small"), IMAGES),
        (Rainbow(network="small"), IMAGES),
        (PPO(network="small"), IMAGES),
        (SAC(network="small"), IMAGES_BOX),
    ],
)
def test_a_served_module_gives_on_a_gpu_what_it_gives_on_the_cpu(
    algorithm: Any, spec: EnvSpec, labelled_device: LabelledDevice
) -> None:
    networks = [weighted(algorithm, spec).network for _ in range(2)]
    networks[1].device = "cuda:1"
    for factor in (1.0, 2.0):
        for network in networks:
            network.weights[...] *= factor
            network.weights_changed()
        expected, found = (
            network.of_all([observations(spec, 3), observations(spec, 1)]) for network in networks
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    if isinstance(algorithm, Rainbow):
        noisy = [network.perturbed(observations(spec, 2), np.random.default_rng(0)) for network in networks]
        np.testing.assert_allclose(*noisy, rtol=1e-5, atol=1e-6)


def test_a_served_pass_does_not_wait_for_the_updates_that_are_launched(
    labelled_device: LabelledDevice,
) -> None:
    network, obs = weighted(PPO(network="small"), IMAGES).network, observations(IMAGES, 4)
    network.device = "cuda"
    network(obs)
    learner = labelled_device.current_stream()
    learned = torch.zeros(2, device="cuda").add_(1.0)
    launched = learner.clock[learner.number]
    network.weights_changed()
    network(obs)
    assert not labelled_device.host.knows(learner.number, launched)
    learned.cpu()
    assert labelled_device.host.knows(learner.number, launched)


@pytest.mark.parametrize(("spec", "size"), [(IMAGES, 1), (replace(IMAGES, observation_dtype="float32"), 4)])
def test_observations_are_uploaded_as_they_are_and_from_pinned_memory(
    spec: EnvSpec, size: int, labelled_device: LabelledDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded: list[tuple[int, bool]] = []
    transfer = LabelledDevice.transfer

    def noted(self: LabelledDevice, into: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        if source.numel() == 5 * 81:
            uploaded.append((source.element_size(), self.is_pinned(source) and non_blocking))
        transfer(self, into, source, non_blocking)

    monkeypatch.setattr(LabelledDevice, "transfer", noted)
    network = weighted(PPO(network="small"), spec).network
    network.device = "cuda"
    for _ in range(2):
        network(observations(spec, 5))
    assert uploaded == [(size, True)] * 2


def test_answers_take_the_place_of_the_network_and_do_not_travel() -> None:
    policy = weighted(DQN(hidden_sizes=(8,)), VALUES)
    policy.network.answer = lambda: np.array([[0.0, 2.0, 1.0]] * 5, np.float32)
    assert policy.greedy(observations(VALUES, 5)).tolist() == [1] * 5
    assert pickle.loads(pickle.dumps(policy)).network.answer is None


def test_weights_beside_the_network_are_named() -> None:
    gaussian = weighted(PPO(hidden_sizes=(8,), normalize_observations=True), BOX)
    assert own_weights(gaussian) == gaussian.layout.log_std
    for policy in (weighted(SAC(hidden_sizes=(8,)), BOX), weighted(PPO(hidden_sizes=(8,)), VALUES)):
        own = own_weights(policy)
        assert own.stop == own.start


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Rainbow(hidden_sizes=(8,)).make_policy(VALUES), "has noisy weights"),
        (PPO(recurrent="gru").make_policy(VALUES), "is recurrent"),
        (fakes.RandomPolicy(), "has no ActingNetwork as its attribute network"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_reason(policy: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"inference must be actor where the policy {why}") as raised:
        require_served(policy)
    assert raised.value.code == "ASYNC017" and "set inference to actor" in raised.value.fix
