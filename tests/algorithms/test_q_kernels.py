"""Kernels of the DQN family against the formulas that they replace."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from q_rig import filled_batch, make

from asyncrl.interfaces import DiscreteAction, EnvSpec

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("dqn", {"huber_delta": 0.7}),
    ("dqn", {"huber_delta": None, "bound_targets": False}),
    ("c51", {}),
    ("c51", {"num_atoms": 51, "v_min": -0.5, "v_max": 1.0}),
    ("c51", {"num_atoms": 2}),
    ("qrdqn", {"huber_delta": 0.7}),
    ("qrdqn", {"huber_delta": None, "bound_targets": False}),
    ("qrdqn", {"num_quantiles": 1}),
]


def fill(core: Any, size: int, scale: float, seed: int = 0) -> Any:
    """Buffers of `core` with random outputs, and a batch whose targets cross every clip."""
    rng = np.random.default_rng(seed)
    buffers = core._make_buffers(size)
    batch = filled_batch(size, seed)
    batch.action[:] = rng.integers(0, core._spec.action.n, size)
    batch.reward[:] = np.where(rng.random(size) < 0.3, rng.integers(-2, 3, size), batch.reward)
    core._bounds.values[:] = 0
    buffers.batch.stage(batch)
    buffers.batch.limits[:] = torch.tensor([-1.0, 1.5])
    for run in (buffers.online, buffers.target):
        run.output.copy_(torch.from_numpy(rng.normal(0, scale, run.output.shape)))
    return buffers


def by_formula(core: Any, buffers: Any) -> tuple[torch.Tensor, torch.Tensor]:
    from asyncrl.networks.gradients import output_gradients

    out, *rest = buffers.loss_arguments()
    result, (grad,) = output_gradients(core._loss_of, (out,), *rest)
    return grad, result.priorities


def by_kernel(core: Any, buffers: Any) -> tuple[torch.Tensor, torch.Tensor]:
    buffers.grad.fill_(math.nan)
    buffers.priorities.fill_(math.nan)
    core._kernel(buffers.online.output.numpy(), buffers.target.output.numpy(), *buffers.arrays)
    return buffers.grad, buffers.priorities


@pytest.mark.parametrize(("double", "dueling"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("actions", [1, 2, 5])
def test_kernel_is_the_formula(
    name: str, options: dict[str, Any], double: bool, dueling: bool, actions: int
) -> None:
    spec = EnvSpec("test", (4,), "float32", DiscreteAction(actions))
    core = make(name, double=double, dueling=dueling, **options).make_updater(spec, "cpu", 0)
    for seed, scale in enumerate((0.1, 1.0, 10.0)):
        buffers = fill(core, 64, scale, seed)
        (expected, errors), (grad, priorities) = by_formula(core, buffers), by_kernel(core, buffers)
        torch.testing.assert_close(priorities, errors, rtol=1e-4, atol=1e-5 * max(scale, 1))
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_nan_shows(name: str, options: dict[str, Any]) -> None:
    core = make(name, **options).make_updater(EnvSpec("test", (4,), "float32", DiscreteAction(3)), "cpu", 0)
    for spoil in ("reward", "outputs"):
        buffers = fill(core, 8, 1.0)
        clean = by_kernel(core, buffers)[1].clone()
        if spoil == "reward":
            buffers.batch.reward[3] = math.nan
        else:
            buffers.online.output[3] = math.nan
        priorities = by_kernel(core, buffers)[1]
        assert priorities[3].isnan()
        others = torch.arange(8) != 3
        assert torch.equal(priorities[others], clean[others])
