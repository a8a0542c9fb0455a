"""Perceptrons with batch normalisation: the layer, and the passes by hand beside those by autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asyncrl.networks.batch_norm import EPS, BatchNormPass, BatchRenorm, NormalisedMLP, folded, normalised_mlp
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.module import ModuleNetwork, ModulePass

ROWS, INPUTS, OUTPUTS = 24, 5, 3


def test_layers_alternate() -> None:
    kinds = [type(layer).__name__ for layer in normalised_mlp(3, 2, hidden=(4,), momentum=0.9)]
    assert kinds == ["BatchRenorm", "Linear", "ReLU", "BatchRenorm", "Linear"]


def test_renormalisation_is_ioffes() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = BatchRenorm(4, eps=EPS, momentum=0.1)
    layer.renormalises = True
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5, 1.0]))
        layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 2.0]))
        layer.running_mean.copy_(torch.tensor([0.1, 2.0, 900.0, -0.2]))  # type: ignore[union-attr]
        layer.running_var.copy_(torch.tensor([1.0, 4.0, 1.0, 1e4]))  # type: ignore[union-attr]
    mean, var = (b.double().clone() for b in (layer.running_mean, layer.running_var))  # type: ignore[union-attr]
    x = torch.randn(64, 4, generator=generator) * torch.tensor([1.2, 1.5, 50.0, 1.0])
    x.requires_grad_(True)
    upstream = torch.randn(64, 4, generator=generator)
    found = layer(x)
    found.backward(upstream)
    ours = x.grad, layer.weight.grad, layer.bias.grad

    slow = x.detach().double().requires_grad_(True)
    gamma, beta = (p.detach().double().requires_grad_(True) for p in (layer.weight, layer.bias))
    batch_mean, sigma = slow.mean(dim=0), (slow.var(dim=0, correction=0) + EPS).sqrt()
    r = (sigma / (var + EPS).sqrt()).clamp(1 / 3, 3).detach()
    d = ((batch_mean - mean) / (var + EPS).sqrt()).clamp(-5, 5).detach()
    assert r[3] == pytest.approx(1 / 3) and d[2] == -5 and r[2] == 3 and 0 < abs(d[0]) < 5 and 0.5 < r[0] < 2
    expected = ((slow - batch_mean) / sigma * r + d) * gamma + beta
    expected.backward(upstream.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    for own, twin in zip(ours, (slow.grad, gamma.grad, beta.grad), strict=True):
        torch.testing.assert_close(own.double(), twin, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
    torch.testing.assert_close(layer.running_mean.double(), 0.9 * mean + 0.1 * batch_mean.detach())  # type: ignore[union-attr]


def test_where_nothing_is_clipped_renormalisation_is_evaluation_mode() -> None:
    layer = BatchRenorm(3, eps=EPS, momentum=0.01)
    layer.renormalises = True
    x = 1.5 * torch.randn(32, 3, generator=torch.Generator().manual_seed(1)) + 0.5
    expected = layer.eval()(x)
    torch.testing.assert_close(layer.train()(x), expected)


class Twins:
    """The same networks twice, with running statistics of their own: one for passes by hand, one for autograd."""

    def __init__(self, copies: int, hidden: tuple[int, ...], training: bool, renormalises: bool) -> None:
        generator = torch.Generator().manual_seed(copies)
        torch.manual_seed(copies)
        modules = [normalised_mlp(INPUTS, OUTPUTS, hidden, 0.9) for _ in range(copies)]
        size = sum(
            t.numel() for m in modules for t in (*m.parameters(), *m.buffers()) if t.is_floating_point()
        )
        self.x = 2.0 * torch.randn(ROWS, INPUTS, generator=generator) + 1.0
        self.networks, self.gradients = [], [torch.full((size,), 9.0) for _ in range(2)]
        for module in modules:
            for layer in module.modules():
                if isinstance(layer, BatchRenorm):
                    layer.weight.data.uniform_(0.5, 2.0, generator=generator)
                    layer.bias.data.normal_(generator=generator)
                    layer.running_mean.normal_(generator=generator)  # type: ignore[union-attr]
                    layer.running_var.uniform_(0.1, 20.0, generator=generator)  # type: ignore[union-attr]
                    layer.renormalises = renormalises
        for _ in range(2):
            # A parameter takes part in no inference tensor, so the flat vectors are made from the modules' values.
            own = [copy.deepcopy(module).train(training) for module in modules]
            flat = torch.cat([t.detach().reshape(-1) for t in self.tensors(own)])
            self.networks.append(ModuleNetwork(own, flat, ensemble=copies > 1))

    @staticmethod
    def tensors(modules: list[nn.Sequential]) -> list[Tensor]:
        """In the order of a flat vector."""
        buffers = [b for m in modules for b in m.buffers() if b.is_floating_point()]
        return [p for m in modules for p in m.parameters()] + buffers

    def passes(self, gradient: bool, numpy: bool, options: Any) -> tuple[BatchNormPass, ModulePass]:
        """The pass by hand and its twin."""
        ours, theirs = self.gradients if gradient else (None, None)
        by_hand, twin = self.networks
        made = BatchNormPass(by_hand.modules, self.x, by_hand.ensemble, ours, {**options, "numpy": numpy})
        return made, twin.make_pass(self.x, theirs, **options)


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("renormalises", [False, True])
@pytest.mark.parametrize("rows", [ROWS, ROWS // 2])
@pytest.mark.parametrize(("copies", "hidden"), [(1, (7,)), (2, (8, 6)), (3, ())])
def test_passes_by_hand_are_those_of_autograd(
    copies: int, hidden: tuple[int, ...], rows: int, renormalises: bool, numpy: bool
) -> None:
    twins = Twins(copies, hidden, True, renormalises)
    ours, theirs = twins.passes(True, numpy, {"weight_rows": rows})
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):  # the second and third with other running statistics, and the buffers used before
        twins.x.copy_(torch.randn(twins.x.shape, generator=generator) * 3.0 - 0.5)
        torch.testing.assert_close(ours.forward(), theirs.forward(), rtol=1e-4, atol=1e-4)
        grad = torch.randn(*theirs.output.shape[:-2], rows, OUTPUTS, generator=generator)
        ours.backward(grad)
        theirs.backward(grad)
        torch.testing.assert_close(*twins.gradients, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(twins.networks[0].flat, twins.networks[1].flat, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize(("copies", "hidden"), [(1, (7,)), (2, (8, 6))])
def test_evaluation_and_its_gradient_at_the_input_are_those_of_autograd(
    copies: int, hidden: tuple[int, ...], numpy: bool
) -> None:
    twins = Twins(copies, hidden, False, False)
    before = twins.networks[0].flat.clone()
    ours, theirs = twins.passes(False, numpy, {"input_rows": ROWS, "input_columns": 2})
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        twins.x.copy_(torch.randn(twins.x.shape, generator=generator))
        torch.testing.assert_close(ours.forward(), theirs.forward(), rtol=1e-4, atol=1e-4)
        grad = torch.randn(theirs.output.shape, generator=generator)
        torch.testing.assert_close(ours.backward(grad), theirs.backward(grad), rtol=1e-4, atol=1e-4)
    assert torch.equal(before, twins.networks[0].flat), "evaluation changes no running statistics"


def test_a_folded_network_is_a_plain_perceptron() -> None:
    twins = Twins(1, (8, 6), False, False)
    ours, _ = twins.passes(False, False, {})
    plain = FlatMLP((INPUTS, 8, 6, OUTPUTS), torch.zeros(5 * 8 + 8 + 8 * 6 + 6 + 6 * 3 + 3))
    (module,) = twins.networks[0].modules
    assert isinstance(module, NormalisedMLP)
    plain.load_state_dict(folded(module))
    torch.testing.assert_close(plain.make_pass(twins.x).forward(), ours.forward(), rtol=1e-4, atol=1e-4)


def test_nan_goes_through() -> None:
    twins = Twins(1, (8,), True, False)
    ours, _ = twins.passes(True, False, {"weight_rows": ROWS})
    twins.x[3, 1] = float("nan")
    assert ours.forward().isnan().all()
    ours.backward(torch.ones(ROWS, OUTPUTS))
    assert twins.gradients[0][:INPUTS].isnan().any()
