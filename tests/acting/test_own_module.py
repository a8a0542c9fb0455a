"""The check of a user-defined module: what is refused, and with which text."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from asyncrl.acting.own_module import check_module
from asyncrl.algorithms.dqn import DQN
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.sac import SAC
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec
from asyncrl.networks.architecture import Architecture

Factory = Callable[[int, int], Any]
SPEC = EnvSpec("t", (4,), "float32", DiscreteAction(3))


class Through(nn.Module):
    """A linear layer and a function of its outputs."""

    def __init__(self, inputs: int, outputs: int, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(inputs, outputs), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x))


def with_buffer(inputs: int, outputs: int) -> nn.Module:
    module = nn.Linear(inputs, outputs)
    module.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    return module


class Drawn(nn.Module):
    """A linear layer behind random signs: drawn by every call, in a buffer of integers or in a plain attribute."""

    def __init__(self, inputs: int, outputs: int, buffer: torch.dtype | None) -> None:
        super().__init__()
        self.layer, signs = nn.Linear(inputs, outputs), torch.randn(20).sign()
        if buffer is None:
            self.signs = signs
        else:
            self.register_buffer("signs", signs.to(buffer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.signs @ (2 ** torch.arange(20)).to(self.signs.dtype)


class Restless(nn.Linear):
    """Draws in evaluation mode too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(())


class Shifted(nn.Linear):
    """Subtracts from its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 0.5
        return super().forward(x)


class Averaging(nn.Linear):
    """Replaces a running statistic."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mean", torch.zeros(inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return super().forward(x - self.mean)


REFUSED: list[tuple[Factory, str]] = [
    (lambda i, o: lambda x: x, r"network\(4, 3\) must return a torch.nn.Module, got function"),
    (lambda i, o: nn.Linear(i, o).double(), "must be float32, and weight is float64"),
    (lambda i, o: nn.Linear(i, o).bfloat16(), "must be float32, and weight is bfloat16"),
    (with_buffer, "must be float32, and scale is float64"),
    (lambda i, o: nn.LazyLinear(o), "must have parameters of known shape, and weight of it is lazy"),
    (
        lambda i, o: nn.Linear(i, o + 1),
        r"must map float32 \[2, 4\] to float32 \[2, 3\], got float32 \[2, 4\]",
    ),
    (lambda i, o: Through(i, o, torch.Tensor.double), r"to float32 \[2, 3\], got float64 \[2, 3\]"),
    (lambda i, o: Through(i, o, lambda out: (out, None)), "must be one tensor, got tuple"),
    (lambda i, o: nn.Linear(5, o), "failed for two rows of 4 zeros: RuntimeError: (addmm: )?mat1 and mat2"),
    (Shifted, r"network\(4, 3\) must not write into its input"),
    (lambda i, o: nn.Sequential(nn.Dropout(inplace=True), nn.Linear(i, o)), "must not write into its input"),
    (Averaging, "must change its buffers in place, and replaces mean"),
    (lambda i, o: nn.Linear(i, o).requires_grad_(False), "depend on none"),
    (lambda i, o: Through(i, o, torch.Tensor.detach), "depend on none"),
    (
        lambda i, o: Drawn(i, o, torch.int64),
        "must return the same module at every call, but for the values of",
    ),
    (lambda i, o: Drawn(i, o, None), "must return the same module at every call, but for the values of"),
    (
        lambda i, o: nn.Sequential(nn.Linear(i, n := int(torch.randint(1, 10**4, ()))), nn.Linear(n, o)),
        "must return the same module at every call",
    ),
]


@pytest.mark.parametrize(("network", "text"), REFUSED)
def test_modules_that_cannot_be_run_are_refused_before_a_run(network: Factory, text: str) -> None:
    for algorithm in (DQN(network=network), PPO(network=network)):
        with pytest.raises(ConfigurationError, match=text):
            algorithm.make_policy(SPEC)
    with pytest.raises(ConfigurationError, match=text):
        Architecture((4, 3), network=network)


def test_a_frozen_encoder_before_a_cell_will_do() -> None:
    def frozen(inputs: int, outputs: int) -> nn.Module:
        return nn.Linear(inputs, outputs).requires_grad_(False)

    ppo = PPO(network=frozen, recurrent="gru", recurrent_size=5)
    ppo.make_policy(SPEC)
    ppo.make_updater(SPEC, "cpu", 0)


@pytest.mark.parametrize("network", [lambda i, o: Drawn(i, o, torch.float32), Restless])
def test_what_is_drawn_may_be_a_buffer_of_floats_or_noise(network: Factory) -> None:
    DQN(network=network).make_policy(SPEC)
    Architecture((4, 3), network=network)


def test_critics_are_checked_with_the_rows_that_they_see() -> None:
    sac = SAC(network=lambda inputs, outputs: nn.Linear(4, outputs))
    spec = EnvSpec("t", (4,), "float32", BoxAction((-1.0,) * 2, (1.0,) * 2, (2,)))
    sac.make_policy(spec)
    with pytest.raises(ConfigurationError, match=r"network\(6, 1\) failed for two rows of 6 zeros"):
        sac.make_updater(spec, "cpu", 0)


def test_the_module_is_not_changed() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    check_module(module, 4, 3)
    assert module.training and module[2].training and not module[1].training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
