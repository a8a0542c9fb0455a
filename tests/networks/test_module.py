"""A user-defined module in the engine, against `FlatMLP` with the same weights."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl import PPO, TD3
from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.policies import QLayout
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.module import ModuleNetwork
from asyncrl.networks.optimizer import FlatAdam


def perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, outputs))


def normalised(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))


@pytest.mark.parametrize("rows", [(6, 0), (6, 4), (0, 10)])
@pytest.mark.parametrize("copies", [None, 2])
def test_passes_are_those_of_a_perceptron(copies: int | None, rows: tuple[int, int]) -> None:
    plain, general = Architecture((4, 6, 2), copies), Architecture((4, 6, 2), copies, network=perceptron)
    assert plain.size == general.size
    module = general.on(general.initial(torch.Generator()))
    net = plain.on(torch.zeros(plain.size))
    layers = {"0": "0", "2": "1"}  # of the Sequential, of the perceptron
    named = {}
    for name, tensor in module.state_dict().items():
        *copy, layer, kind = name.split(".")
        named[".".join([*copy, layers[layer], kind])] = tensor
    net.load_state_dict(named)
    x, (seen, judged) = torch.randn(10, 4), rows
    columns = 2 if judged else 0
    gradients = [torch.full_like(n.flat, torch.nan) if seen else None for n in (net, module)]
    passes = [
        n.make_pass(x, g, weight_rows=seen, input_rows=judged, input_columns=columns)
        for n, g in zip((net, module), gradients, strict=True)
    ]
    with torch.no_grad():
        torch.testing.assert_close(passes[0].forward(), passes[1].forward())
        grad_output = torch.randn(*([2] if copies else []), seen + judged, 2)
        inputs = [run.backward(grad_output) for run in passes]
    torch.testing.assert_close(*inputs)
    if gradients[1] is not None:
        ours = ModuleNetwork(module.modules, gradients[1], module.ensemble).state_dict()  # type: ignore[attr-defined]
        theirs = net.on(gradients[0]).state_dict()  # type: ignore[arg-type]
        assert sum(float(g.abs().sum()) for g in ours.values()) == pytest.approx(
            sum(float(g.abs().sum()) for g in theirs.values()), rel=1e-5
        )


def test_the_flat_vector_is_the_module() -> None:
    arch = Architecture((3, 5), network=normalised)
    net = arch.on(arch.initial(torch.Generator()))
    x = torch.randn(8, 3)
    with torch.no_grad():
        before = net.make_pass(x).forward()
        net.flat[6:21].zero_()  # weights of the linear layer, after batch normalisation's scale and shift
        after = net.make_pass(x).forward()
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, net.flat[21:26].expand(8, 5))
    assert net.flat[-6:].abs().sum() > 0, "running statistics lie at the end"


class Drawn(nn.Linear):
    """A linear layer behind a shift that each call draws, in a buffer that torch does not save."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("shift", torch.randn(inputs), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.shift)


@pytest.mark.parametrize("copies", [None, 2])
def test_a_state_has_every_buffer_of_floats(copies: int | None) -> None:
    arches = [Architecture((3, 5), copies, network=Drawn, seed=seed) for seed in range(2)]
    first, second = (arch.on(arch.initial(torch.Generator())) for arch in arches)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.flat, second.flat)


def test_the_same_seed_makes_the_same_module_whatever_torch_drew_before() -> None:
    torch.manual_seed(5)
    first = Architecture((3, 5), network=perceptron, seed=1).initial(torch.Generator())
    state = torch.get_rng_state()
    second = Architecture((3, 5), network=perceptron, seed=1).initial(torch.Generator())
    assert torch.equal(first, second) and torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, Architecture((3, 5), network=perceptron, seed=2).initial(torch.Generator()))


def test_learners_that_begin_at_the_same_time_draw_their_own_values() -> None:
    meeting = threading.Barrier(2, timeout=0.2)

    def network(inputs: int, outputs: int) -> nn.Module:
        layers = []
        for _ in range(3):
            layers.append(nn.Linear(inputs, inputs))
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait()  # in vain, unless another thread makes its module now
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))

    def initial(seed: int) -> Tensor:
        return Architecture((3, 5), network=network, seed=seed).initial(torch.Generator())

    wanted = [initial(seed) for seed in range(2)]
    meeting.reset()
    with ThreadPoolExecutor(2) as threads:
        assert all(map(torch.equal, threads.map(initial, range(2)), wanted))


def test_acting_and_learning_agree() -> None:
    spec = EnvSpec("t", (2, 2), "uint8", DiscreteAction(3))
    arch = Architecture((4, 3), network=normalised)
    net = arch.on(arch.initial(torch.Generator()))
    assert isinstance(net, ModuleNetwork)
    layout = QLayout(4, (), 3, network=normalised)
    acting = ModuleActingNetwork(spec, layout, normalised)
    acting.load(net.flat.numpy())
    obs = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    net.modules[0].eval()
    with torch.no_grad():
        wanted = net.make_pass(torch.from_numpy(obs.reshape(2, 4).astype(np.float32) / 255)).forward()
    np.testing.assert_allclose(acting(obs), wanted.numpy(), rtol=1e-5)
    acting.weights[:] = 0.0
    assert not acting(obs).any()
    with pytest.raises(ValueError, match="weights must have shape"):
        acting.load(np.zeros(2, np.float32))


class Pretrained(nn.Module):
    """A frozen layer with statistics, then a trained one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(inputs, 6).requires_grad_(False), nn.Linear(6, outputs)
        self.register_buffer("mean", torch.full((inputs,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trained(self.frozen(x - self.mean).relu())


@pytest.mark.parametrize("copies", [None, 2])
def test_frozen_layers_and_buffers_get_no_gradient(copies: int | None) -> None:
    arch = Architecture((4, 2), copies, network=Pretrained)
    net = arch.on(arch.initial(torch.Generator()))
    gradient = torch.zeros_like(net.flat)
    assert net.flat.dtype == torch.float32
    run = net.make_pass(torch.randn(5, 4), gradient, weight_rows=5)
    with torch.no_grad():
        run.backward(torch.ones_like(run.forward()))
    found = ModuleNetwork(net.modules, gradient, copies is not None).state_dict()  # type: ignore[attr-defined]
    for name, values in found.items():
        assert bool(values.any()) == ("trained" in name), name
    before = net.flat.clone()
    FlatAdam(net.flat, gradient).step(0.1)
    assert torch.equal(net.flat != before, gradient != 0.0), "only what has a gradient moves"


class Sliced(nn.Module):
    """The first columns of a wider layer's outputs: rows that are not contiguous."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.outputs = nn.Linear(inputs, outputs + 2), outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[:, : self.outputs]


@pytest.mark.parametrize("copies", [None, 2])
def test_outputs_are_contiguous_for_the_kernels_that_read_them(copies: int | None) -> None:
    arch = Architecture((4, 2), copies, network=Sliced)
    net = arch.on(arch.initial(torch.Generator()))
    for seen in (0, 5):
        run = net.make_pass(torch.randn(5, 4), torch.zeros_like(net.flat) if seen else None, weight_rows=seen)
        assert run.forward().is_contiguous()
    spec = EnvSpec("t", (4,), "float32", DiscreteAction(2))
    acting = ModuleActingNetwork(spec, QLayout(4, (), 2, network=Sliced), Sliced)
    assert acting(np.zeros((5, 4), np.float32)).flags.c_contiguous


@pytest.mark.parametrize(
    ("record", "width", "wanted"),
    [(PPO, 3, r"2, 4\] to float32 \[2, 1"), (TD3, 1, r"2, 5\] to float32 \[2, 1")],
)
def test_the_networks_of_values_are_checked_too(record: Any, width: int, wanted: str) -> None:
    action = BoxAction((-1.0,), (1.0,), (1,)) if record is TD3 else DiscreteAction(3)
    spec = EnvSpec("t", (4,), "float32", action)
    algorithm = record(network=lambda inputs, outputs: nn.Linear(inputs, width if inputs == 4 else 2))
    algorithm.make_policy(spec)
    with pytest.raises(ConfigurationError, match=rf"must map float32 \[{wanted}\], got"):
        algorithm.make_updater(spec, "cpu", 0)
