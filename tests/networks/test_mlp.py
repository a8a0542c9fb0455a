from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from asyncrl.acting.policies import QLayout
from asyncrl.networks.mlp import FlatMLP, MLPPass, initial_weights, orthogonal_weights, split


def module_of(net: FlatMLP, activation: str = "relu") -> nn.Sequential:
    """The same network as a torch module, built from the named tensors."""
    between = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    named, layers = net.named(), []
    for i in range(len(net.blocks)):
        outputs, inputs = named[f"{i}.weight"].shape
        layer = nn.Linear(inputs, outputs)
        layer.load_state_dict({"weight": named[f"{i}.weight"], "bias": named[f"{i}.bias"]})
        layers += [layer, between()]
    return nn.Sequential(*layers[:-1])


def network(layout: QLayout, seed: int = 0) -> FlatMLP:
    return FlatMLP(layout.blocks, initial_weights(layout.blocks, torch.Generator().manual_seed(seed)))


def with_ones(x: Tensor) -> Tensor:
    return torch.cat((x, torch.ones(x.shape[0], 1)), dim=1)


LAYOUTS = [
    QLayout(4, (8, 6), 3),
    QLayout(1, (5,), 2),
    QLayout(7, (9, 8, 5), 1),
    QLayout(3, (4, 4), 2, dueling=True),
]


ACTIVATIONS: tuple[Literal["relu", "tanh"], ...] = ("relu", "tanh")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward_is_that_of_a_module(layout: QLayout, activation: Literal["relu", "tanh"]) -> None:
    net, x = network(layout), torch.randn(10, layout.inputs)
    assert net.flat.shape == (layout.weight_count,)
    run, expected = (
        MLPPass(net, with_ones(x), activation=activation),
        module_of(net, activation)(x).detach(),
    )
    for _ in range(2):  # the column of ones must stand for the second call too
        torch.testing.assert_close(run.forward(), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [6, 10])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward_is_that_of_autograd(
    layout: QLayout, rows: int, activation: Literal["relu", "tanh"]
) -> None:
    net, x = network(layout), torch.randn(10, layout.inputs)
    gradient = FlatMLP(layout.blocks, torch.full_like(net.flat, torch.nan))
    run = MLPPass(net, with_ones(x), gradient, rows, activation)
    module = module_of(net, activation)
    for seed in range(2):  # twice: the second call must not see the first one's buffers
        torch.manual_seed(seed)
        grad_output = torch.randn(rows, layout.sizes[-1])
        run.forward()
        run.backward(grad_output)
        module.zero_grad()
        module(x[:rows]).backward(grad_output)
        ours = gradient.named()
        for i, layer in enumerate(m for m in module if isinstance(m, nn.Linear)):
            torch.testing.assert_close(ours[f"{i}.weight"], layer.weight.grad)
            torch.testing.assert_close(ours[f"{i}.bias"], layer.bias.grad)


def test_forward_uses_the_weights_as_they_stand() -> None:
    layout = LAYOUTS[0]
    net, x = network(layout), torch.randn(4, layout.inputs)
    run = MLPPass(net, with_ones(x))
    before = run.forward().clone()
    net.flat.mul_(2.0)
    after = run.forward()
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, module_of(net)(x).detach())


def test_initial_weights_are_spread_as_in_a_linear_module() -> None:
    net = network(QLayout(100, (400, 25), 4))
    named = net.named()
    for i, inputs in enumerate((100, 400, 25)):
        for kind in ("weight", "bias"):
            bound = inputs**-0.5
            assert named[f"{i}.{kind}"].abs().max() <= bound
        assert named[f"{i}.weight"].std() == pytest.approx(inputs**-0.5 / 3**0.5, rel=0.1)
    assert torch.equal(net.flat, network(QLayout(100, (400, 25), 4)).flat), "same seed, same weights"
    assert not torch.equal(net.flat, network(QLayout(100, (400, 25), 4), seed=1).flat)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_orthogonal_weights(layout: QLayout) -> None:
    flat = orthogonal_weights(layout.blocks, torch.Generator().manual_seed(0), 0.01)
    *hidden, head = split(flat, layout.blocks)
    for weights, bias, gain in (
        *((w[:-1], w[-1], 2**0.5) for w in hidden),
        (head[:, :-1], head[:, -1], 0.01),
    ):
        assert not bias.any()
        fewer = weights if weights.shape[0] <= weights.shape[1] else weights.t()
        square = torch.eye(fewer.shape[0]) * gain**2
        torch.testing.assert_close(fewer @ fewer.t(), square, rtol=1e-5, atol=1e-6 * gain**2)
    assert torch.equal(flat, orthogonal_weights(layout.blocks, torch.Generator().manual_seed(0), 0.01))
    assert not torch.equal(flat, orthogonal_weights(layout.blocks, torch.Generator().manual_seed(1), 0.01))


def test_load_refuses_other_names_and_shapes_and_writes_nothing() -> None:
    net = network(LAYOUTS[0])
    before = net.flat.clone()
    with pytest.raises(ValueError, match="weights must be named"):
        net.load({"0.weight": torch.zeros(8, 4)})
    wrong = {name: torch.zeros_like(value) for name, value in net.named().items()}
    wrong["2.weight"] = torch.zeros(3, 7)
    with pytest.raises(ValueError, match=r"2\.weight must have shape \(3, 6\), got \(3, 7\)"):
        net.load(wrong)
    assert torch.equal(net.flat, before)


def test_named_tensors_round_trip() -> None:
    source, target = network(LAYOUTS[0]), network(LAYOUTS[0], seed=1)
    named = source.named()
    assert {name: tuple(value.shape) for name, value in named.items()} == {
        "0.weight": (8, 4),
        "1.weight": (6, 8),
        "2.weight": (3, 6),
        "0.bias": (8,),
        "1.bias": (6,),
        "2.bias": (3,),
    }
    target.load(named)
    assert torch.equal(source.flat, target.flat)
    named["0.weight"].zero_()
    assert torch.equal(source.flat, target.flat), "named tensors are copies"
