"""Convolutional networks: shapes, channel orders, choice by observation, gradients."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl import DQN, IMPALA, PPO, SAC
from asyncrl.acting.convolutions import channels_of
from asyncrl.acting.images import ConvolutionalNetwork, choose_network
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.envs.observations import Image, image_of
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec
from asyncrl.networks.architecture import Architecture


def spec_of_shape(*shape: int, dtype: str = "uint8") -> EnvSpec:
    return EnvSpec("images", shape, dtype, DiscreteAction(3))


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((84, 84), Image(1, 84, 84, 1, False)),
        ((96, 80, 3), Image(1, 96, 80, 3, False)),
        ((3, 96, 80), Image(1, 96, 80, 3, True)),
        ((21, 21, 1), Image(1, 21, 21, 1, False)),
        ((28, 28, 40), Image(1, 28, 28, 40, False)),
        ((40, 28, 28), Image(1, 28, 28, 40, True)),
        ((7, 84), None),
        ((84,), None),
        ((2, 84, 84, 3), None),
    ],
)
def test_images_are_arrays_of_bytes(shape: tuple[int, ...], image: Image | None) -> None:
    spec = spec_of_shape(*shape)
    assert image_of(spec) == image
    assert image_of(replace(spec, observation_dtype="float32")) is None
    if image is not None:
        assert image_of(spec.stacked(4)) == replace(image, frames=4)


def test_the_network_follows_the_size_of_the_image() -> None:
    def chosen(spec: EnvSpec, name: Any = "auto") -> str | None:
        network = choose_network(name, spec)
        return network and network.name

    assert chosen(spec_of_shape(84, 84, 3)) == chosen(spec_of_shape(36, 40)) == "nature"
    assert chosen(spec_of_shape(35, 84)) == chosen(spec_of_shape(8, 8)) == "small"
    assert chosen(spec_of_shape(84)) is None and chosen(spec_of_shape(84, 84), "mlp") is None
    assert chosen(spec_of_shape(84, 84), "impala") == "impala"
    assert chosen(spec_of_shape(10, 10, 4, dtype="float32"), "small") == "small", "asked for by name"
    with pytest.raises(SpacesDoNotFit, match="'nature' needs images of at least 36 x 36"):
        choose_network("nature", spec_of_shape(21, 21))
    with pytest.raises(SpacesDoNotFit, match="'small' needs images of at least 8 x 8"):
        choose_network("small", spec_of_shape(7, 7, 3))
    with pytest.raises(SpacesDoNotFit, match="'impala' needs images of at least 8 x 8"):
        choose_network("impala", spec_of_shape(4))


def test_what_was_chosen_is_told() -> None:
    network = choose_network("auto", spec_of_shape(84, 84).stacked(4))
    assert network is not None
    assert network.text == "images 84x84x1, 4 frames: Nature CNN (Mnih et al. 2015)"


@pytest.mark.parametrize("name", ["small", "coarse", "nature", "impala"])
def test_sizes_are_those_of_the_papers(name: Any) -> None:
    image = Image(4, 84, 84, 1, False)
    network = ConvolutionalNetwork(name, image)
    module = pickle.loads(pickle.dumps(network))(image.values, 6)
    assert module(torch.rand(5, image.values)).shape == (5, 6)
    if name == "nature":  # 3,136 features (7 x 7 x 64), 1.69 million parameters
        assert module.head[0].in_features == 3136
        assert sum(p.numel() for p in module.parameters()) == 1_687_206
    if name == "coarse":
        assert module.head[0].in_features == 13 * 13 * 32
    if name == "impala":
        assert module.head[0].in_features == 11 * 11 * 32
        assert sum(isinstance(m, nn.Conv2d) for m in module.modules()) == 15


def test_channels_are_those_of_the_image_in_either_order() -> None:
    rng = np.random.default_rng(0)
    last = rng.random((2, 4, 9, 8, 3), np.float32)  # rows, frames, height, width, channels
    first = np.ascontiguousarray(last.transpose(0, 1, 4, 2, 3))
    wanted = first.reshape(2, 12, 9, 8)
    for array, channels_first in ((last, False), (first, True)):
        rows = torch.from_numpy(array.reshape(2, -1))
        got = channels_of(rows, Image(4, 9, 8, 3, channels_first))
        np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("side", [21, 42])
def test_the_order_of_a_large_images_memory_changes_no_gradient(side: int, monkeypatch: Any) -> None:
    image = Image(4, side, side, 1, False)
    module = ConvolutionalNetwork("small" if side < 36 else "coarse", image)(image.values, 3).double()
    rows = torch.rand(5, image.values, dtype=torch.float64)
    orders, gradients = [], []
    module.convolutions[0][0].register_forward_hook(
        lambda _, inputs, __: orders.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    for smallest in (36, 1000):
        monkeypatch.setattr("asyncrl.acting.convolutions.LARGE", smallest)
        loss = module(rows).square().sum()
        gradients.append(torch.autograd.grad(loss, list(module.parameters())))
    assert orders == [side == 42, False]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_stands_behind_the_image_joins_the_features() -> None:
    image = Image(1, 12, 12, 1, False)
    module = ConvolutionalNetwork("small", image)(144 + 2, 1)
    rows = torch.rand(3, 146, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(rows).sum(), rows)
    assert (gradient[:, 144:] != 0).all() and (gradient[:, :144] != 0).any()


def test_dueling_streams_are_apart() -> None:
    image = Image(1, 12, 12, 1, False)
    module = ConvolutionalNetwork("small", image, value_outputs=1)(144, 4)
    out = module(torch.rand(3, 144))
    assert out.shape == (3, 4)
    gradients = torch.autograd.grad(
        out[:, 0].sum(), list(module.head.advantage.parameters()), allow_unused=True
    )
    assert all((gradient == 0).all() for gradient in gradients)


def test_rows_without_a_gradient_go_through_no_graph_and_change_nothing() -> None:
    network = ConvolutionalNetwork("small", Image(1, 12, 12, 1, False))
    arch = Architecture((144, 3), network=network)
    flat = arch.initial(torch.Generator())
    net = arch.on(flat.clone())
    x, grad_out = torch.rand(10, 144), torch.rand(4, 3)
    gradients = []
    for split in (True, False):
        gradient = torch.zeros_like(flat)
        work = net.make_pass(x, gradient, weight_rows=4)
        work._split = split
        with torch.no_grad():
            out = work.forward()
            padded = grad_out if split else torch.cat((grad_out, torch.zeros(6, 3)))
            work.backward(padded[: 4 if split else 10])
        assert out.shape == (10, 3)
        gradients.append((out, gradient))
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    torch.testing.assert_close(gradients[0][1], gradients[1][1])
    assert gradients[0][1].abs().sum() > 0


def test_initial_weights_are_orthogonal_for_actor_critics() -> None:
    network = ConvolutionalNetwork("small", Image(1, 12, 12, 1, False))
    arch = Architecture((144, 3), network=network, seed=5)
    flat = arch.initial(torch.Generator(), head_gain=0.01)
    module = arch.on(flat).modules[0]
    head = module.head[2].weight
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(3))
    again = Architecture((144, 3), network=network, seed=5).initial(torch.Generator(), head_gain=0.01)
    assert torch.equal(flat, again)


IMAGES = spec_of_shape(21, 21)


def images(rows: int, *, frames: int = 2) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (rows, frames, 21, 21), np.uint8)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"network": "impala"}, {"network": "mlp"}])
def test_policy_and_learner_of_dqn_give_the_same_values(options: dict[str, Any]) -> None:
    algorithm = DQN(frame_stack=2, **options)
    core, policy = algorithm.make_updater(IMAGES, "cpu", 3), algorithm.make_policy(IMAGES)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    policy = pickle.loads(pickle.dumps(policy))
    policy.load_weights(weights)
    assert policy.frame_stack == 2
    obs = images(5)
    rows = obs.reshape(5, -1).astype(np.float32) / np.float32(255)
    np.testing.assert_allclose(policy.q_values(obs), core.action_values(rows), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("algorithm", [PPO(frame_stack=2), IMPALA(frame_stack=2)])
def test_policy_and_learner_of_actor_critics_give_the_same_logits(algorithm: Any) -> None:
    core, policy = algorithm.make_updater(IMAGES, "cpu", 3), algorithm.make_policy(IMAGES)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    policy.load_weights(weights)
    work = core.nets.make_pass(5, gradient=False)
    work.x.copy_(torch.from_numpy(images(5).reshape(5, -1)))
    work.x.mul_(1 / 255)
    with torch.no_grad():
        np.testing.assert_allclose(policy.outputs(images(5)), work.forward()[0].numpy(), rtol=2e-5, atol=2e-6)


def test_policy_and_value_share_the_trunk_and_its_gradient() -> None:
    apart = PPO(frame_stack=2, shared_trunk=False).make_updater(IMAGES, "cpu", 3).nets
    nets = PPO(frame_stack=2).make_updater(IMAGES, "cpu", 3).nets
    assert nets.parameters.numel() < 0.6 * apart.parameters.numel()
    sized = PPO(frame_stack=2, value_hidden_sizes=(8,)).make_updater(IMAGES, "cpu", 3).nets
    assert torch.equal(sized.parameters, nets.parameters), "widths are a perceptron's"
    rng = np.random.default_rng(0)
    work = nets.make_pass(5, gradient=True)
    work.x.copy_(torch.from_numpy(images(5).reshape(5, -1)))
    work.x.mul_(1 / 255)
    for scale_out, scale_value in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        grad_out = torch.from_numpy(rng.normal(size=(5, 3)).astype(np.float32)) * scale_out
        grad_value = torch.from_numpy(rng.normal(size=5).astype(np.float32)) * scale_value

        def summed() -> float:
            out, value = work.forward()
            return float((out.double() * grad_out).sum() + (value.double() * grad_value).sum())  # noqa: B023

        with torch.no_grad():
            summed()
            work.backward(grad_out, grad_value, torch.zeros(0))
            along = nets.gradient / nets.gradient.norm()
            slope, start = float(nets.gradient @ along), nets.parameters.clone()
            nets.parameters.add_(along, alpha=1e-3)
            above = summed()
            nets.parameters.copy_(start).sub_(along, alpha=1e-3)
            measured = (above - summed()) / 2e-3
            nets.parameters.copy_(start)
        assert slope > 1e-3
        np.testing.assert_allclose(measured, slope, rtol=0.03)


def updated(**options: Any) -> np.ndarray:
    """Weights of DQN after three updates on one batch of images."""
    algorithm = DQN(frame_stack=2, dueling=True, **options)
    core, rng = algorithm.make_updater(IMAGES, "cpu", 0), np.random.default_rng(0)
    batch = Batch.allocate(16, algorithm.stacked_spec(IMAGES))
    batch.obs[:], batch.next_obs[:] = images(16), images(16)[::-1]
    batch.action[:] = rng.integers(0, 3, batch.action.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=16), 0.9, 1.0
    for _ in range(3):
        core.update(batch)
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    return weights


def test_updates_as_a_graph_and_in_bfloat16() -> None:
    """On the CPU a graph is a plain call; autocast rounds, and the updates have nearly the same direction."""
    start, plain = updated(learning_rate=1e-30), updated()
    assert np.array_equal(updated(cuda_graph=True), plain)
    rounded = updated(matmul_precision="bfloat16")
    assert not np.array_equal(rounded, plain)
    own, other = rounded - start, plain - start
    assert own @ other > 0.8 * np.linalg.norm(own) * np.linalg.norm(other)


@pytest.mark.parametrize(
    ("algorithm", "action"),
    [
        (DQN(frame_stack=2, learning_rate=1e-3, tau=1e-6), DiscreteAction(3)),
        (DQN(frame_stack=2, dueling=True, learning_rate=1e-3, tau=1e-6), DiscreteAction(3)),
        (SAC(frame_stack=2, learning_rate=1e-3, tau=1e-6), BoxAction((-1.0,), (1.0,), (1,))),
    ],
)
def test_loss_falls_on_a_fixed_batch_of_images(algorithm: Any, action: Any) -> None:
    spec = replace(IMAGES, action=action)
    core, rng = algorithm.make_updater(spec, "cpu", 0), np.random.default_rng(0)
    batch = Batch.allocate(16, algorithm.stacked_spec(spec))
    batch.obs[:], batch.next_obs[:] = images(16), images(16)[::-1]
    batch.action[:] = rng.integers(0, 2, batch.action.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=16), 0.0, 1.0
    core.update(batch)
    first = core.metrics()["train/loss"]
    for _ in range(60):
        core.update(batch)
    assert core.metrics()["train/loss"] < 0.3 * first


def test_state_of_a_convolutional_learner_goes_on_to_the_same_numbers() -> None:
    algorithm = DQN(frame_stack=2, dueling=True)
    batch = Batch.allocate(8, algorithm.stacked_spec(IMAGES))
    batch.obs[:], batch.next_obs[:], batch.action[:] = images(8), images(8), 1
    batch.reward[:], batch.discount[:], batch.weight[:] = 1.0, 0.9, 1.0
    first, second = (algorithm.make_updater(IMAGES, "cpu", seed) for seed in (0, 1))
    first.update(batch)
    second.load_state_dict(first.state_dict())
    for core in (first, second):
        core.update(batch)
    written = [np.empty(core.weight_count, np.float32) for core in (first, second)]
    for core, out in zip((first, second), written, strict=True):
        core.write_weights(out)
    np.testing.assert_array_equal(*written)


def flat_factory(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


def shaped_factory(inputs: int, outputs: int, observation_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, observation_shape), nn.Flatten(), nn.Linear(inputs, outputs))


def test_a_users_factory_gets_flat_rows_and_the_shape_where_it_asks() -> None:
    for factory in (flat_factory, shaped_factory):
        algorithm = DQN(frame_stack=2, network=factory)
        policy = pickle.loads(pickle.dumps(algorithm.make_policy(IMAGES)))
        assert policy.q_values(images(3)).shape == (3, 3)
        assert algorithm.own_network is factory
    assert DQN(network=(7, 5)) == DQN(hidden_sizes=(7, 5), network="mlp")
    assert DQN(network=None).network == "auto" and DQN().own_network is None
    with pytest.raises(
        ValueError, match="network must be one of auto, mlp, small, nature, impala, got 'resnet'"
    ):
        DQN(network="resnet")


def test_bytes_stay_bytes_until_the_learners_device() -> None:
    core = PPO(frame_stack=2).make_updater(IMAGES, "cpu", 0)
    assert core._rollout_of(2, 4).x.dtype == torch.uint8
    staged = StagedBatch(4, IMAGES.stacked(2), torch.device("meta"))
    assert staged._bytes is not None and staged._bytes.dtype == torch.uint8
    assert staged.rows.shape == (8, 882) and staged._host.numel() == 4 * (3 + 2) + 2, "no float32 on the host"


@pytest.mark.parametrize("name", ["small", "impala"])
def test_no_pixel_is_left_out(name: Any) -> None:
    """Convolutions with strides may not cover the last rows and columns."""
    for side in (8, 21, 33):
        image = Image(1, side, side, 1, False)
        module = ConvolutionalNetwork(name, image)(image.values, 1)
        rows = torch.rand(4, image.values, requires_grad=True)
        (gradient,) = torch.autograd.grad(module(rows).sum(), rows)
        assert (gradient.abs().sum(dim=0) > 0).all()
