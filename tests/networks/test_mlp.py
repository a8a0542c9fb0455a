"""`FlatMLP` against the same network as a torch module, forward and backward."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from asyncrl.acting.layouts import parameter_count
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.mlp import FlatMLP

Activation = Literal["relu", "tanh"]
SHAPES: list[tuple[tuple[int, ...], int | None]] = [
    ((4, 8, 6, 3), None),
    ((1, 5, 2), None),
    ((7, 9, 8, 5, 1), None),
    ((5, 6, 7, 1), 2),
    ((5, 6, 1), 1),
    ((3, 4, 4, 5), 3),
]


def network(
    sizes: tuple[int, ...],
    copies: int | None,
    activation: Activation = "relu",
    seed: int = 0,
    layer_norm: bool = False,
) -> FlatMLP:
    arch, generator = (
        Architecture(sizes, copies, activation, layer_norm=layer_norm),
        torch.Generator().manual_seed(seed),
    )
    net = arch.on(arch.initial(generator))
    assert isinstance(net, FlatMLP)
    for vectors in net.norms:
        for vector in vectors:  # as after training
            vector.add_(torch.empty(vector.shape).normal_(std=0.3, generator=generator))
    return net


def modules_of(net: FlatMLP) -> list[nn.Sequential]:
    """The same networks as torch modules, built from the named tensors."""
    between = {"relu": nn.ReLU, "tanh": nn.Tanh}[net.activation]
    named, found = net.state_dict(), []
    for c in range(net.copies):
        prefix, layers = f"{c}." if net.ensemble else "", []
        for i in range(len(net.sizes) - 1):
            weight, bias = named[f"{prefix}{i}.weight"], named[f"{prefix}{i}.bias"]
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers.append(layer)
            if i < len(net.sizes) - 2 and net.layer_norm:
                norm = nn.LayerNorm(weight.shape[0])
                kinds = ("weight", "bias")
                norm.load_state_dict({kind: named[f"{prefix}{i}.norm.{kind}"] for kind in kinds})
                layers.append(norm)
            layers.append(between())
        found.append(nn.Sequential(*layers[:-1]))
    return found


def outputs_of(net: FlatMLP, modules: list[nn.Sequential], x: Tensor) -> Tensor:
    outs = [module(x) for module in modules]
    return torch.stack(outs) if net.ensemble else outs[0]


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("sizes", "copies"), SHAPES)
def test_forward_is_that_of_modules(
    sizes: tuple[int, ...], copies: int | None, activation: Activation, kernels: bool, layer_norm: bool
) -> None:
    net, x = network(sizes, copies, activation, layer_norm=layer_norm), torch.randn(10, sizes[0])
    assert net.flat.shape == (parameter_count(sizes, copies or 1, layer_norm),)
    run = net.make_pass(x, kernels=kernels)
    for _ in range(2):
        torch.testing.assert_close(run.forward(), outputs_of(net, modules_of(net), x).detach())
        x.mul_(0.5)  # read at each call


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("rows", [(6, 0), (10, 0), (6, 4), (0, 10), (3, 5)])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("sizes", "copies"), SHAPES)
def test_backward_is_that_of_autograd(
    sizes: tuple[int, ...],
    copies: int | None,
    activation: Activation,
    rows: tuple[int, int],
    kernels: bool,
    layer_norm: bool,
) -> None:
    net, x = network(sizes, copies, activation, layer_norm=layer_norm), torch.randn(10, sizes[0])
    seen, judged = rows
    close: dict[str, float] = {"atol": 2e-5, "rtol": 1e-4} if layer_norm else {}
    gradient = torch.full_like(net.flat, torch.nan) if seen else None
    columns = min(2, sizes[0]) if judged else 0
    run = net.make_pass(
        x, gradient, weight_rows=seen, input_rows=judged, input_columns=columns, kernels=kernels
    )
    modules = modules_of(net)
    for seed in range(2):  # twice: the second call must not see the first one's buffers
        torch.manual_seed(seed)
        grad_output = torch.randn(*([net.copies] if net.ensemble else []), seen + judged, sizes[-1])
        run.forward()
        grad_input = run.backward(grad_output)
        leaf = x.clone().requires_grad_()
        out = outputs_of(net, modules, leaf)
        if gradient is not None:
            parameters = [p for module in modules for p in module.parameters()]
            wanted = iter(
                torch.autograd.grad(
                    out[..., :seen, :], parameters, grad_output[..., :seen, :], retain_graph=True
                )
            )
            ours = net.on(gradient).state_dict()
            for c in range(net.copies):
                for i in range(len(sizes) - 1):
                    prefix = f"{c}." if net.ensemble else ""
                    norm = ("norm.weight", "norm.bias") if layer_norm and i < len(sizes) - 2 else ()
                    for kind in ("weight", "bias", *norm):
                        torch.testing.assert_close(ours[f"{prefix}{i}.{kind}"], next(wanted), **close)
        if judged:
            (wanted_input,) = torch.autograd.grad(
                out[..., seen : seen + judged, :], leaf, grad_output[..., seen:, :]
            )
            torch.testing.assert_close(grad_input, wanted_input[seen : seen + judged, -columns:], **close)


def test_the_first_copies_alone() -> None:
    net, x = network((5, 6, 1), 3), torch.randn(4, 5)
    first = net.make_pass(x, copies=1, input_rows=4, input_columns=2)
    assert first.forward().shape == (1, 4, 1)
    torch.testing.assert_close(first.output, net.make_pass(x).forward()[:1])
    assert first.backward(torch.ones(1, 4, 1)).shape == (4, 2)


def test_a_strided_input_and_nan() -> None:
    net, wide = network((3, 4, 2), None), torch.randn(5, 9)
    torch.testing.assert_close(
        net.make_pass(wide[:, 2:5]).forward(), net.make_pass(wide[:, 2:5].clone()).forward()
    )
    for kernels in (True, False):
        x = torch.randn(2, 3)
        x[0, 0] = torch.nan
        out = net.make_pass(x, kernels=kernels).forward()
        assert out[0].isnan().all() and not out[1].isnan().any()


def test_forward_uses_the_weights_as_they_stand() -> None:
    net, x = network((4, 8, 3), None), torch.randn(4, 4)
    run = net.make_pass(x)
    before = run.forward().clone()
    net.flat.mul_(2.0)
    assert not torch.equal(before, run.forward())
    torch.testing.assert_close(run.forward(), modules_of(net)[0](x).detach())


def test_initial_weights_are_spread_as_in_a_linear_module() -> None:
    net = network((100, 400, 25, 4), None)
    for i, inputs in enumerate((100, 400, 25)):
        for kind in ("weight", "bias"):
            assert net.state_dict()[f"{i}.{kind}"].abs().max() <= inputs**-0.5
        assert net.state_dict()[f"{i}.weight"].std() == pytest.approx(inputs**-0.5 / 3**0.5, rel=0.1)
    assert torch.equal(net.flat, network((100, 400, 25, 4), None).flat), "same seed, same weights"
    assert not torch.equal(net.flat, network((100, 400, 25, 4), None, seed=1).flat)


@pytest.mark.parametrize(("sizes", "copies"), SHAPES)
def test_orthogonal_weights(sizes: tuple[int, ...], copies: int | None) -> None:
    arch = Architecture(sizes, copies)
    flat = arch.initial(torch.Generator().manual_seed(0), head_gain=0.01)
    named, last = arch.on(flat).state_dict(), len(sizes) - 2
    for name, value in named.items():
        if name.endswith("bias"):
            assert not value.any()
            continue
        gain = 0.01 if name.split(".")[-2] == str(last) else 2**0.5
        fewer = value if value.shape[0] <= value.shape[1] else value.t()
        square = torch.eye(fewer.shape[0]) * gain**2
        torch.testing.assert_close(fewer @ fewer.t(), square, rtol=1e-5, atol=1e-6 * gain**2)
    assert torch.equal(flat, arch.initial(torch.Generator().manual_seed(0), head_gain=0.01))
    assert not torch.equal(flat, arch.initial(torch.Generator().manual_seed(1), head_gain=0.01))


def test_load_refuses_other_names_and_shapes_and_writes_nothing() -> None:
    net = network((4, 8, 6, 3), None)
    before = net.flat.clone()
    with pytest.raises(ValueError, match="weights must be named"):
        net.load_state_dict({"0.weight": torch.zeros(8, 4)})
    wrong = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    wrong["2.weight"] = torch.zeros(3, 7)
    with pytest.raises(ValueError, match=r"2\.weight must have shape \(3, 6\), got \(3, 7\)"):
        net.load_state_dict(wrong)
    assert torch.equal(net.flat, before)


@pytest.mark.parametrize(("sizes", "copies"), SHAPES)
def test_named_tensors_round_trip(sizes: tuple[int, ...], copies: int | None) -> None:
    source, target = network(sizes, copies), network(sizes, copies, seed=1)
    named = source.state_dict()
    prefix = "0." if copies else ""
    assert tuple(named[f"{prefix}0.weight"].shape) == (sizes[1], sizes[0])
    assert tuple(named[f"{prefix}0.bias"].shape) == (sizes[1],)
    target.load_state_dict(named)
    assert torch.equal(source.flat, target.flat)
    named[f"{prefix}0.weight"].zero_()
    assert torch.equal(source.flat, target.flat), "named tensors are copies"
