"""Noisy layers: weights of a draw, their gradient, and the sequence of the noise."""

import itertools

import torch

from asyncrl.acting.layouts import parameter_count
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.noisy import NoiseSource, NoisyMLP, noise_count, noisy_size

SIZES = (4, 9, 8, 6)


def network(sigma: float = 0.5) -> NoisyMLP:
    net = NoisyMLP(SIZES, torch.zeros(noisy_size(SIZES)))
    net.mean.initialise(torch.Generator().manual_seed(0))
    net.initialise_sigma(sigma)
    return net


def test_noise_is_factorised_and_spares_the_first_layer() -> None:
    net = network()
    factors, x = torch.randn(noise_count(SIZES)), torch.randn(5, 4)
    assert noise_count(SIZES) == 9 + 8 + 8 + 6
    net.draw(factors)
    named = net.mean.state_dict()
    (hidden_in, hidden_out, head_in, head_out) = factors.split([9, 8, 8, 6])
    for layer, e_in, e_out in ((1, hidden_in, hidden_out), (2, head_in, head_out)):
        sigma = 0.5 / len(e_in) ** 0.5
        named[f"{layer}.weight"] += sigma * torch.outer(e_out, e_in)
        named[f"{layer}.bias"] += sigma * e_out
    expected = FlatMLP(SIZES, torch.zeros(parameter_count(SIZES)))
    expected.load_state_dict(named)
    run = net.make_pass(x)
    torch.testing.assert_close(run.forward(), expected.make_pass(x).forward())
    before = run.output.clone()
    net.draw(torch.randn(noise_count(SIZES)))
    assert not torch.equal(before, run.forward()), "the pass sees the next draw"


def test_gradients_are_those_of_autograd() -> None:
    net, x, grad_output = network(), torch.randn(5, 4), torch.randn(5, 6)
    factors = torch.randn(noise_count(SIZES))
    net.draw(factors)
    gradient = torch.full_like(net.flat, torch.nan)
    run = net.make_pass(x, gradient, weight_rows=5)
    run.forward()
    run.backward(grad_output)
    leaves = {name: tensor.requires_grad_() for name, tensor in net.state_dict().items()}
    out, start = x, 0
    for layer, (a, b) in enumerate(itertools.pairwise(SIZES)):
        weight, bias = leaves[f"{layer}.weight"], leaves[f"{layer}.bias"]
        if layer:
            e_in, e_out = factors[start : start + a], factors[start + a : start + a + b]
            start += a + b
            weight = weight + leaves[f"sigma.{layer}.weight"] * torch.outer(e_out, e_in)
            bias = bias + leaves[f"sigma.{layer}.bias"] * e_out
        out = torch.nn.functional.linear(out, weight, bias)
        out = out.relu() if layer < 2 else out
    out.backward(grad_output)
    ours = net.on(gradient).state_dict()
    assert set(ours) == set(leaves)
    for name, leaf in leaves.items():
        torch.testing.assert_close(ours[name], leaf.grad)


def test_tensors_round_trip_by_name() -> None:
    net, other = network(), network(0.1)
    other.load_state_dict(net.state_dict())
    assert torch.equal(net.flat, other.flat)


def test_factors_are_signed_roots_of_normal_numbers_and_differ_by_network() -> None:
    sizes = (1, 50_000, 1)
    nets = [NoisyMLP(sizes, torch.zeros(noisy_size(sizes))) for _ in range(2)]
    source = NoiseSource(nets, 0)
    state, factors = source.generator.get_state(), source.factors().clone()
    assert factors.shape == (2, 50_001) and not torch.equal(factors[0], factors[1])
    normal = factors.sign() * factors.square()
    assert abs(normal.mean().item()) < 0.02 and abs(normal.std().item() - 1) < 0.02
    assert not torch.equal(source.factors(), factors), "every draw is another"
    source.generator.set_state(state)
    assert torch.equal(source.factors(), factors)
