from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asyncrl.networks.ensembles import EnsemblePass, FlatEnsemble, parameter_count
from asyncrl.networks.relu_kernels import add_bias_relu, head_gradient, relu_gradient


def ensemble(count: int, sizes: tuple[int, ...], seed: int = 0) -> FlatEnsemble:
    net = FlatEnsemble(count, sizes, torch.full((parameter_count(count, sizes),), torch.nan))
    net.initialise(torch.Generator().manual_seed(seed))
    return net


def modules_of(net: FlatEnsemble) -> nn.ModuleList:
    """The same networks as torch modules, built from the named tensors."""
    named, critics = net.named(), []
    for c in range(net.count):
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(zip(net.sizes, net.sizes[1:], strict=False)):
            layer = nn.Linear(inputs, outputs)
            layer.load_state_dict({"weight": named[f"{c}.{i}.weight"], "bias": named[f"{c}.{i}.bias"]})
            layers += [layer, nn.ReLU()]
        critics.append(nn.Sequential(*layers[:-1]))
    return nn.ModuleList(critics)


def outputs_of(modules: nn.ModuleList, x: Tensor) -> Tensor:
    return torch.stack([module(x) for module in modules])


SHAPES = [(2, (5, 8, 6, 1)), (1, (3, 7, 1)), (3, (4, 6, 5, 7, 1))]
each_shape = pytest.mark.parametrize(("count", "sizes"), SHAPES)
each_way = pytest.mark.parametrize("kernels", [False, True])


@each_way
@each_shape
def test_forward_is_that_of_modules(count: int, sizes: tuple[int, ...], kernels: bool) -> None:
    net, x = ensemble(count, sizes), torch.randn(10, sizes[0])
    run = EnsemblePass(net, x, kernels=kernels)
    for seed in range(2):  # twice, with other weights and another input
        net.initialise(torch.Generator().manual_seed(seed))
        x.normal_()
        torch.testing.assert_close(run.forward(), outputs_of(modules_of(net), x).detach())


@each_way
@pytest.mark.parametrize("input_rows", [0, 4, 10])
@each_shape
def test_backward_is_that_of_autograd(
    count: int, sizes: tuple[int, ...], input_rows: int, kernels: bool
) -> None:
    net, x, columns = ensemble(count, sizes), torch.randn(10, sizes[0]), 2
    gradient = FlatEnsemble(count, sizes, torch.full_like(net.flat, torch.nan))
    split: dict[str, Any] = {"input_rows": input_rows, "input_columns": columns if input_rows else 0}
    run = EnsemblePass(net, x, gradient, kernels=kernels, **split)
    modules, seen = modules_of(net), 10 - input_rows
    for seed in range(2):  # twice: the second call must not see the first one's buffers
        torch.manual_seed(seed)
        grad_q = torch.randn(count, 10, 1)
        run.forward()
        grad_input = run.backward(grad_q)
        modules.zero_grad()
        outputs_of(modules, x[:seen]).backward(grad_q[:, :seen])
        ours = gradient.named()
        for c, critic in enumerate(modules):
            for i, layer in enumerate(m for m in critic if isinstance(m, nn.Linear)):  # type: ignore[arg-type]
                torch.testing.assert_close(ours[f"{c}.{i}.weight"], layer.weight.grad)
                torch.testing.assert_close(ours[f"{c}.{i}.bias"], layer.bias.grad)
        if input_rows:
            leaf = x[seen:].clone().requires_grad_()
            outputs_of(modules, leaf).backward(grad_q[:, seen:])
            assert leaf.grad is not None
            torch.testing.assert_close(grad_input, leaf.grad[:, -columns:])


@each_way
def test_first_critics_alone_and_no_gradient_of_weights(kernels: bool) -> None:
    net, x = ensemble(3, (4, 6, 5, 1)), torch.randn(7, 4)
    run = EnsemblePass(net, x, critics=1, input_rows=7, input_columns=3, kernels=kernels)
    leaf, grad_q = x.clone().requires_grad_(), torch.randn(1, 7, 1)
    expected = outputs_of(modules_of(net)[:1], leaf)
    torch.testing.assert_close(run.forward(), expected.detach())
    expected.backward(grad_q)
    assert leaf.grad is not None
    torch.testing.assert_close(run.backward(grad_q), leaf.grad[:, 1:])


@each_way
def test_what_is_no_number_stays_none(kernels: bool) -> None:
    net, x = ensemble(2, (3, 5, 4, 1)), torch.randn(4, 3)
    x[1, 0] = torch.nan
    run = EnsemblePass(net, x, input_rows=4, input_columns=1, kernels=kernels)
    assert run.forward().isnan()[:, :, 0].tolist() == [[False, True, False, False]] * 2
    net.weights[1][:, 2, :] = torch.nan
    x[1, 0] = 0.0
    assert run.forward().isnan().any()


def test_initial_weights_are_spread_as_in_a_linear_module() -> None:
    sizes = (100, 400, 25, 1)
    net = ensemble(2, sizes)
    assert net.flat.isfinite().all()
    named = net.named()
    for c in range(2):
        for i, inputs in enumerate(sizes[:-1]):
            for kind in ("weight", "bias"):
                assert named[f"{c}.{i}.{kind}"].abs().max() <= inputs**-0.5
            assert named[f"{c}.{i}.weight"].std() == pytest.approx(inputs**-0.5 / 3**0.5, rel=0.25)
    assert not torch.equal(named["0.1.weight"], named["1.1.weight"]), "critics begin apart"
    assert torch.equal(net.flat, ensemble(2, sizes).flat), "same seed, same weights"
    assert not torch.equal(net.flat, ensemble(2, sizes, seed=1).flat)


def test_named_tensors_round_trip() -> None:
    source, target = ensemble(2, (3, 4, 1)), ensemble(2, (3, 4, 1), seed=1)
    named = source.named()
    assert {name: tuple(value.shape) for name, value in named.items() if name.startswith("1.")} == {
        "1.0.weight": (4, 3),
        "1.0.bias": (4,),
        "1.1.weight": (1, 4),
        "1.1.bias": (1,),
    }
    target.load(named)
    assert torch.equal(source.flat, target.flat)
    named["0.0.weight"].zero_()
    assert torch.equal(source.flat, target.flat), "named tensors are copies"


def test_load_refuses_other_names_and_shapes_and_writes_nothing() -> None:
    net = ensemble(2, (3, 4, 1))
    before, named = net.flat.clone(), {name: value + 1 for name, value in net.named().items()}
    with pytest.raises(ValueError, match="weights must be named"):
        net.load({"0.0.weight": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match=r"1\.1\.weight must have shape \(1, 4\), got \(1, 5\)"):
        net.load({**named, "1.1.weight": torch.zeros(1, 5)})
    assert torch.equal(net.flat, before)


def test_kernels_say_the_same_when_not_compiled() -> None:
    y, grad, head = torch.randn(2, 6, 5), torch.randn(2, 6, 5), torch.randn(2, 1, 5)
    bias, grad_q = torch.randn(2, 1, 5), torch.randn(2, 6, 1)

    def run(compiled: bool) -> list[Tensor]:
        buffers = [y.clone(), grad.clone(), torch.empty(2, 1, 5), torch.empty(2, 6, 5), torch.empty(2, 1, 5)]
        own_y, own_grad, sums, filled, more = (b.numpy() for b in buffers)
        activate, back, head_back = (
            kernel if compiled else kernel.py_func for kernel in (add_bias_relu, relu_gradient, head_gradient)
        )
        activate(own_y, bias.numpy())
        back(own_grad, own_y, sums, 4)
        head_back(grad_q.numpy(), head.numpy(), own_y, filled, more, 4)
        return buffers

    for ours, theirs in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(ours, theirs)
