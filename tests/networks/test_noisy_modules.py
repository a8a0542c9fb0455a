"""Noisy layers after convolutions: the paper's formula, noise of actors and learner, Rainbow on images."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl import C51, DQN, QRDQN, Rainbow
from asyncrl.acting.noisy_layers import NoisyLinear, factor_counts, noisy_layers, set_noise, signed_root_
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.networks.noisy import NoisyModule

IMAGES = EnvSpec("images", (21, 21), "uint8", DiscreteAction(3))


def frames(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (rows, 2, 21, 21), dtype=np.uint8)


def loaded(algorithm: Any) -> tuple[Any, Any]:
    """Policy with a new learner's weights."""
    core, policy = algorithm.make_updater(IMAGES, "cpu", 0), algorithm.make_policy(IMAGES)
    core.write_weights(policy.weights)
    policy.weights_changed()
    return core, policy


@pytest.mark.parametrize("rows", [1, 4])
def test_outputs_are_those_of_the_slow_formula(rows: int) -> None:
    layer, x = NoisyLinear(5, 3, 0.7), torch.randn(4, 5)
    assert torch.all(layer.sigma_weight == 0.7 / 5**0.5) and torch.all(layer.sigma_bias == 0.7 / 5**0.5)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    noise = torch.randn(rows, 8)
    f = torch.sign(noise) * noise.abs().sqrt()
    set_noise([layer], signed_root_(noise.clone()) if rows > 1 else signed_root_(noise.clone())[0])
    out = layer(x)
    for i in range(4):
        e_in, e_out = f[i % rows, :5], f[i % rows, 5:]
        weight = layer.weight + layer.sigma_weight * torch.outer(e_out, e_in)
        expected = weight @ x[i] + layer.bias + layer.sigma_bias * e_out
        torch.testing.assert_close(out[i], expected)
    set_noise([layer], None)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("dueling", [False, True])
def test_all_layers_behind_the_convolutions_are_noisy(dueling: bool) -> None:
    core = DQN(frame_stack=2, noisy=True, dueling=dueling).make_updater(IMAGES, "cpu", 0)
    layers = noisy_layers(core._online.modules)
    linear = [m for m in core._online.modules[0].modules() if isinstance(m, torch.nn.Linear)]
    assert layers == linear and len(layers) == (4 if dueling else 2)
    assert core._online.noise_count == sum(factor_counts(layers))


def test_actors_draw_noise_for_every_stream_and_go_by_the_means_when_greedy() -> None:
    _, policy = loaded(Rainbow(frame_stack=2, noisy_sigma=3.0))
    policy = pickle.loads(pickle.dumps(policy))
    policy.assign_streams(0, 8, 8)
    obs, rng = np.repeat(frames(1), 8, axis=0), np.random.default_rng(0)
    first, second = (policy._network.perturbed(obs, rng) for _ in range(2))
    assert len(np.unique(first[:, 0])) == 8 and (first != second).all()
    assert (policy._network.perturbed(obs, np.random.default_rng(0)) == first).all(), (
        "the generator decides it"
    )
    assert len(np.unique(policy.q_values(obs)[:, 0].round(5))) == 1, "the means have none"
    acted = np.concatenate([policy.act(obs, rng, 0)[0] for _ in range(20)])
    assert len(set(acted.tolist())) > 1 and len(set(policy.greedy(obs).tolist())) == 1


def test_without_deviations_there_is_no_noise() -> None:
    core, policy = loaded(DQN(frame_stack=2, noisy=True, noisy_sigma=1e-12))
    obs = frames(5)
    got = policy._network.perturbed(obs, np.random.default_rng(0))
    np.testing.assert_allclose(got, policy.q_values(obs), rtol=1e-4, atol=1e-5)
    rows = (obs.reshape(5, -1) / 255).astype(np.float32)
    np.testing.assert_allclose(core.action_values(rows), policy.q_values(obs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("record", [DQN, C51, QRDQN, Rainbow])
def test_images_are_learned_with_noise_and_the_state_goes_on(record: Any) -> None:
    algorithm = record(frame_stack=2, noisy=True, learning_rate=1e-3)
    batch = Batch.allocate(16, algorithm.stacked_spec(IMAGES))
    batch.obs[:], batch.next_obs[:], batch.action[:] = frames(16), frames(16, 1), np.arange(16) % 3
    batch.reward[:], batch.discount[:], batch.weight[:] = batch.action, 0.0, 1.0
    core, other = (algorithm.make_updater(IMAGES, "cpu", seed) for seed in (0, 1))
    assert isinstance(core._online, NoisyModule)
    core.update(batch)
    before = core._online.flat.clone()
    first = core.metrics()["train/loss"]
    losses = []
    for _ in range(60):
        core.update(batch)
        losses.append(core.metrics()["train/loss"])
    assert np.mean(losses[-5:]) < 0.7 * first and core.metrics()["train/noise"] > 0
    ends = torch.tensor([0, *(p.numel() for p in core._online.modules[0].parameters())]).cumsum(0)
    names = [name for name, _ in core._online.modules[0].named_parameters()]
    moved = {
        n: not torch.equal(before[a:b], core._online.flat[a:b])
        for n, a, b in zip(names, ends, ends[1:], strict=False)
    }
    assert all(moved.values()) and any("sigma" in name for name in moved)
    other.load_state_dict(core.state_dict())
    for learner in (core, other):
        learner.update(batch)
    assert torch.equal(core._online.flat, other._online.flat), "noise goes on too"
