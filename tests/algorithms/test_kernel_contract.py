"""Contract of every fused kernel of the learner: agreement with its torch formula, compiled and as a Python function.

A kernel of `asyncrl.algorithms` or `asyncrl.networks` that no contract here runs fails
`test_every_kernel_has_a_contract`. Inputs are random and cross every clip of the formula.
"""

from __future__ import annotations

import importlib
import itertools
import math
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from q_rig import filled_batch, make
from torch import Tensor

import asyncrl.algorithms
import asyncrl.networks
from asyncrl.acting.box import LOG_STD_MAX, LOG_STD_MIN
from asyncrl.acting.modules import tensors_of
from asyncrl.acting.sale_module import avg_l1_norm
from asyncrl.algorithms import (
    c51_kernel,
    continuous_kernel,
    dqn_kernel,
    on_policy_kernel,
    qrdqn_kernel,
    sac,
    td3,
    tqc,
    tqc_kernel,
)
from asyncrl.algorithms.continuous import deterministic_actor_loss
from asyncrl.algorithms.continuous_kernel import ActorKernel, CriticKernel, DrawKernel
from asyncrl.algorithms.impala import impala_loss
from asyncrl.algorithms.maximum_entropy_update import squashed_draw
from asyncrl.algorithms.on_policy_kernel import LossKernel
from asyncrl.algorithms.ppo import _k3, ppo_loss
from asyncrl.algorithms.tqc_kernel import MeanActorKernel, TruncatedCriticKernel
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.networks import batch_norm, hidden_layer, normalized_layer, sale
from asyncrl.networks.batch_norm import BatchNormPass, BatchRenorm, normalised_mlp
from asyncrl.networks.distributions import categorical, diagonal_gaussian
from asyncrl.networks.gradients import output_gradients, vector_jacobian_product
from asyncrl.networks.hidden_layer import HiddenLayer
from asyncrl.networks.module import ModuleNetwork
from asyncrl.networks.normalized_layer import NormalizedLayer
from asyncrl.networks.parameters import PassOptions
from asyncrl.shm.kernel import declared

Pairs = Iterator[tuple[str, Any, Any]]
"""What a tensor is, as the kernel gives it, and as the formula does."""


@dataclass(frozen=True)
class Contract:
    """Kernels, and both sides of the equation that they satisfy.

    Attributes:
        module: where the kernels stand.
        kernels: their names.
        pairs: what both sides give, by seed, rows of a batch, and a variant.
        variants: options of `pairs`.
        rtol, atol: largest difference.
    """

    module: ModuleType
    kernels: tuple[str, ...]
    pairs: Callable[..., Pairs]
    variants: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    rtol: float = 1e-4
    atol: float = 1e-6


# --- DQN's family ---

Q_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dqn": [{"huber_delta": 0.7}, {"huber_delta": None, "bound_targets": False}],
    "c51": [{}, {"num_atoms": 51, "v_min": -0.5, "v_max": 1.0}, {"num_atoms": 2}],
    "qrdqn": [{"huber_delta": 0.7}, {"huber_delta": None, "bound_targets": False}, {"num_quantiles": 1}],
}


def q_variants(name: str) -> list[dict[str, Any]]:
    shapes = [{"double": d, "dueling": v} for d, v in itertools.product((False, True), repeat=2)]
    return [
        {"actions": actions, **shape, **options}
        for actions, shape, options in itertools.product((1, 2, 5), shapes, Q_OPTIONS[name])
    ]


def q_core(name: str, actions: int = 3, **options: Any) -> Any:
    spec = EnvSpec("test", (4,), "float32", DiscreteAction(actions))
    return make(name, **options).make_updater(spec, "cpu", 0)


def q_buffers(core: Any, size: int, scale: float = 1.0, seed: int = 0) -> Any:
    """Buffers of `core` with random outputs, and a batch whose targets cross every clip."""
    rng = np.random.default_rng(seed)
    buffers = core._make_buffers(core._staged(size))
    batch = filled_batch(size, seed)
    batch.action[:] = rng.integers(0, core.spec.action.n, size)
    batch.reward[:] = np.where(rng.random(size) < 0.3, rng.integers(-2, 3, size), batch.reward)
    core.bounds.values[:] = 0
    buffers.batch.stage(batch)
    buffers.batch.limits[:] = torch.tensor([-1.0, 1.5])
    for run in (buffers.online, buffers.target):
        run.output.copy_(torch.from_numpy(rng.normal(0, scale, run.output.shape)))
    return buffers


def by_q_kernel(core: Any, buffers: Any) -> tuple[Tensor, Tensor]:
    """Gradient and priorities by the kernel."""
    buffers.grad.fill_(math.nan)
    buffers.priorities.fill_(math.nan)
    core._kernel(buffers.online.output.numpy(), buffers.target.output.numpy(), *buffers.arrays)
    return buffers.grad, buffers.priorities


def q_pairs(seed: int, size: int, name: str, **options: Any) -> Pairs:
    core, scale = q_core(name, **options), (0.1, 1.0, 10.0)[seed]
    buffers = q_buffers(core, size, scale, seed)
    out, *rest = buffers.loss_arguments()
    result, (expected,) = output_gradients(core._loss_of, (out,), *rest)
    grad, priorities = by_q_kernel(core, buffers)
    unit = max(scale, 1.0)
    yield "priorities", priorities / (10 * unit), result.priorities / (10 * unit)
    yield "gradient", grad, expected


def softmax_pairs(seed: int, size: int) -> Pairs:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 10.0**seed
    p = torch.empty(size)
    total = c51_kernel.softmax(logits.numpy(), p.numpy())
    yield "probabilities", p, logits.softmax(0)
    yield "logarithm of the sum", torch.tensor(float(total)), logits.logsumexp(0)


# --- PPO and IMPALA ---

KINDS: dict[str, tuple[int, ...]] = {"two": (2,), "four": (4,), "several": (3, 2, 5), "gaussian": ()}
RANGES: list[dict[str, Any]] = [
    {"clip_range": 0.2},
    {"clip_range": 0.2, "value_clip_range": 0.1, "vf_coef": 0.7},
    {"clip_range": 0.1, "value_clip_range": 0.5, "ent_coef": 0.3},
]
PADDING = 5


def items(kind: str, seed: int, size: int) -> SimpleNamespace:
    """Random outputs, actions and columns, with ratios and values on both sides of every clip; the last are padding."""
    choices, generator = KINDS[kind], torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    out, log_std = draw(size, sum(choices) or 3) * 1.5, draw(0 if choices else 3) * 0.3
    action = draw(size, 3) * 1.5
    if choices:
        action = torch.stack([torch.randint(n, (size,), generator=generator) for n in choices], dim=1)
    value = draw(size)
    made = SimpleNamespace(
        outputs=(out, value, log_std), action=action, choices=choices, count=size - PADDING
    )
    log_prob = distribution(made, out, log_std)[0]
    weight = torch.rand(size, generator=generator) / size
    weight[made.count :] = 0.0
    made.columns = torch.stack(
        (
            log_prob + 0.3 * draw(size),
            draw(size).exp(),
            draw(size),
            draw(size),
            value + 0.5 * draw(size),
            weight,
        )
    )
    return made


def distribution(made: SimpleNamespace, out: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    if made.choices:
        return categorical(out, made.action, made.choices)
    return diagonal_gaussian(out, made.action, log_std)


def by_loss_kernel(made: SimpleNamespace, *loss: float) -> Any:
    kernel = LossKernel(made.action, made.choices, made.outputs[0].shape[1])
    return kernel(made.outputs, made.columns, made.count, loss)  # type: ignore[arg-type]


def ppo_pairs(seed: int, size: int, kind: str, **ranges: Any) -> Pairs:
    made = items(kind, seed, size)
    found, expected = output_gradients(
        lambda out, value, log_std: ppo_loss(distribution(made, out, log_std), value, made.columns, **ranges),
        made.outputs,
    )
    ratio, clip = found.log_ratio.exp(), ranges["clip_range"]
    held = ranges.get("value_clip_range", math.inf)
    off = (made.outputs[1] - made.columns[4]).abs()
    if size >= 64:
        assert (ratio > 1 + clip).any() and (ratio < 1 - clip).any() and ((ratio - 1).abs() < clip).any()
        assert held == math.inf or ((off > held).any() and (off < held).any())
    loss = clip, held, ranges.get("vf_coef", 0.5), ranges.get("ent_coef", 0.0)
    divergence, gradients = by_loss_kernel(made, *loss)
    assert not gradients[0][made.count :].any() and not gradients[1][made.count :].any()
    yield "divergence", torch.tensor(divergence).float(), _k3(found.log_ratio[: made.count].detach())
    yield from zip(("outputs", "values", "log_std"), gradients, expected, strict=True)


def impala_pairs(seed: int, size: int, kind: str) -> Pairs:
    made = items(kind, seed, size)
    out, _, log_std = made.outputs
    _, _, advantage, target, _, weight = made.columns
    _, expected = output_gradients(
        lambda out, value, log_std: impala_loss(
            distribution(made, out, log_std), value, advantage, target, weight, vf_coef=0.7, ent_coef=0.3
        ),
        made.outputs,
    )
    made.columns[0], made.columns[1] = distribution(made, out, log_std)[0], 1.0
    _, gradients = by_loss_kernel(made, math.inf, math.inf, 0.7, 0.3)
    yield from zip(("outputs", "values", "log_std"), gradients, expected, strict=True)


# --- DDPG, TD3 and SAC ---


def continuous_items(seed: int, size: int, critics: int) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Action values (a strided view), those of the next actions, log-densities, and columns of a batch."""
    torch.manual_seed(seed)
    reward, discount, weight = torch.randn(3, size, 1)
    batch = SimpleNamespace(size=size, reward=reward, discount=discount, weight=weight)
    q = torch.randn(critics, 2 * size, 1)[:, :size]
    return q, torch.randn(critics, size, 1), torch.randn(size, 1), batch


def critic_pairs(seed: int, size: int, critics: int) -> Pairs:
    q, next_q, log_prob, batch = continuous_items(seed, size, critics)
    kernel: Any = CriticKernel(batch, critics)
    for spoilt in (False, True):
        if spoilt:
            next_q[-1, 2], next_q[0, 4] = math.nan, math.nan
        for loss, rest in (
            (td3.critic_loss, (next_q, batch)),
            (sac.critic_loss, (next_q, log_prob, torch.tensor(0.7), batch)),
        ):
            expected, (grad,) = output_gradients(loss, (q,), *rest)
            ours, (our_grad,) = kernel((q,), *rest)
            assert ours.td.isnan().any(dim=0)[:, 0].nonzero().flatten().tolist() == [2, 4] * spoilt
            yield "errors", ours.td, expected.td
            yield "gradient", our_grad, grad
            yield "loss", ours.loss[0], expected.loss.detach()


def actor_pairs(seed: int, size: int, critics: int) -> Pairs:
    q, _, log_prob, _ = continuous_items(seed, size, critics)
    cases: list[tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]] = [
        (sac.actor_loss, (q, log_prob), (torch.tensor(0.7),))
    ]
    if critics == 1:
        cases.append((deterministic_actor_loss, (q,), ()))
    for loss, leaves, rest in cases:
        expected, grads = output_gradients(loss, leaves, *rest)
        ours, our_grads = ActorKernel(size, critics)(leaves, *rest)
        yield "loss", ours.loss[0], expected.loss.detach()
        yield from zip(("at q", "at log_prob"), our_grads, grads, strict=False)


def truncated_pairs(seed: int, size: int, critics: int, atoms: int, dropped: int) -> Pairs:
    """Losses of TQC; errors are within, at and beyond the Huber loss's threshold of 1."""
    _, _, log_prob, batch = continuous_items(seed, size, critics)
    theta = torch.randn(critics, 2 * size, atoms)[:, :size] * 10.0 ** (seed - 1)
    next_theta, alpha = torch.randn(critics, size, atoms), torch.tensor(0.7)
    batch.reward[3], batch.discount[3], theta[0, 3, 0] = 1.0, 0.0, 0.0
    kernel: Any = TruncatedCriticKernel(batch, critics, atoms, dropped)
    for spoilt in (False, True):
        if spoilt:
            theta[-1, 2, 0], batch.reward[4, 0] = math.nan, math.nan
        rest = next_theta, log_prob, alpha, batch
        expected, (grad,) = output_gradients(partial(tqc.critic_loss, dropped=dropped), (theta,), *rest)
        ours, (our_grad,) = kernel((theta,), *rest)
        assert ours.td.isnan().any(dim=0)[:, 0].nonzero().flatten().tolist() == [2, 4] * spoilt
        yield "errors", ours.td, expected.td
        yield "gradient", our_grad, grad
        yield "loss", ours.loss[0], expected.loss.detach()
    leaves = theta.nan_to_num(), log_prob
    expected_actor, grads = output_gradients(tqc.actor_loss, leaves, alpha)
    our_actor, our_grads = MeanActorKernel(size, critics, atoms)(leaves, alpha)
    yield "actor's loss", our_actor.loss[0], expected_actor.loss.detach()
    yield from zip(("at theta", "at log_prob"), our_grads, grads, strict=True)


def outputs_of_a_policy(seed: int, rows: int, values: int) -> tuple[Tensor, Tensor]:
    """Means up to far saturation and log standard deviations within, at, just within and beyond their limits; noise."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(rows, 2 * values, generator=generator)
    out[: rows // 4, :values] *= 20
    out[rows // 2 :, values:] -= 2
    out[0, values:], out[1, values:], out[2, values:], out[3, values] = 2.5, -21.0, LOG_STD_MAX, LOG_STD_MIN
    out[4, values:], out[5, values:] = 1.9999999, -19.999998
    return out, torch.randn(rows, values, generator=generator)


def draw_pairs(seed: int, size: int, values: int) -> Pairs:
    out, noise = outputs_of_a_policy(seed, size, values)
    (action, log_prob), expected_back = vector_jacobian_product(squashed_draw, out, noise)
    (ours, our_log_prob), back = DrawKernel(size, values)(out, noise)
    yield "action", ours, action
    yield "log_prob", our_log_prob, log_prob
    grads = torch.randn(size, values), torch.randn(size, 1)
    ours, expected = back(*grads), expected_back(*grads)
    limit = torch.ones(1, requires_grad=True)
    if torch.autograd.grad(limit.clamp(max=1.0).sum(), limit)[0] == 0.0:  # torch 2.15; it is 1 in 2.13
        at_limit = (out == LOG_STD_MAX) | (out == LOG_STD_MIN)
        ours, expected = ours.masked_fill(at_limit, 0.0), expected.masked_fill(at_limit, 0.0)
    yield "gradient", ours, expected


# --- hidden layers ---


def layer_pairs(seed: int, size: int, activation: Any, outputs: int) -> Pairs:
    """Forward and backward of two perceptrons, below a head with `outputs` outputs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    y, bias, grad_output, head, grad = (
        draw(2, size, 7), draw(2, 1, 7), draw(2, size, outputs), draw(2, outputs, 7), draw(2, size, 7)
    )  # fmt: skip
    found = []
    for kernels in (True, False):
        own_y, own_grad, grad_bias = y.clone(), grad.clone(), torch.empty(2, 1, 7)
        head_bias = torch.empty(2, 1, outputs)
        layer = HiddenLayer(own_y, bias, activation, kernels)
        layer.prepare_backward(own_grad, grad_bias, size - 2)
        layer.bind(grad_output, head, grad_output[:, : size - 2], head_bias)
        layer.activate()
        layer.sum_rows()
        if outputs == 1:
            layer.backward_from_head()
        else:
            layer.backward()
        found.append((own_y, own_grad, grad_bias, head_bias))
    yield from zip(("output", "gradient", "bias", "head's bias"), *found, strict=True)


def normalized_pairs(seed: int, size: int, activation: Any) -> Pairs:
    """Forward and backward of two perceptrons with layer normalisation, all but two rows summed for the parameters."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    y, bias, gain, shift, grad = (
        draw(2, size, 7),
        draw(2, 1, 7),
        draw(2, 1, 7),
        draw(2, 1, 7),
        draw(2, size, 7),
    )
    found = []
    for kernels in (True, False):
        own_y, own_grad, grad_bias = y.clone(), grad.clone(), torch.empty(2, 1, 7)
        grad_norm = torch.empty(2, 1, 7), torch.empty(2, 1, 7)
        layer = NormalizedLayer(own_y, bias, activation, kernels, norm=(gain, shift))
        layer.prepare_backward(own_grad, grad_bias, size - 2)
        layer.fill_norm(grad_norm)
        layer.activate()
        layer.backward()
        found.append((own_y, own_grad, grad_bias, *grad_norm))
    yield from zip(("output", "gradient", "bias", "gain", "shift"), *found, strict=True)


def batch_norm_pairs(seed: int, size: int, training: bool, renormalises: bool) -> Pairs:
    """Passes of two perceptrons with batch normalisation, the gradient over half of the rows or at the input."""
    torch.manual_seed(seed)
    modules = [normalised_mlp(5, 1, (7, 6), 0.9).train(training) for _ in range(2)]
    for layer in [
        layer for module in modules for layer in module.modules() if isinstance(layer, BatchRenorm)
    ]:
        layer.renormalises = renormalises
        for tensor in (layer.weight.data, layer.running_var):
            tensor.uniform_(0.5, 20.0)  # type: ignore[union-attr]
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors_of(modules)])
    x, grad_output = 2.0 * torch.randn(size, 5) + 1.0, torch.randn(2, size // 2 if training else size, 1)
    options: PassOptions = (
        {"weight_rows": size // 2} if training else {"input_rows": size, "input_columns": 2}
    )
    found = []
    for by_hand in (True, False):
        network = ModuleNetwork(modules, flat.clone(), ensemble=True)
        gradient = torch.zeros_like(flat) if training else None
        if by_hand:
            one: Any = BatchNormPass(network.modules, x, True, gradient, options)
        else:
            one = network.make_pass(x, gradient, **options)
        output, at_input = one.forward().clone(), one.backward(grad_output)
        found.append((output, at_input, network.flat, flat.new_zeros(1) if gradient is None else gradient))
    yield from zip(("output", "gradient at the input", "statistics", "gradient"), *found, strict=True)


def activation_pairs(seed: int, size: int, kind: int) -> Pairs:
    """A layer with one of `sale`'s activations, whose slope at 0 of an ELU is 1."""
    generator = torch.Generator().manual_seed(seed)
    y, grad = torch.randn(2, size, 7, generator=generator).unbind()
    bias = torch.randn(7, generator=generator)
    y[0] = torch.tensor([0.0, -0.0, -40.0, 40.0, -1e-4, -7.0, -16.0]) - bias
    leaves = (y.requires_grad_(), bias.requires_grad_())
    after = (y + bias, torch.relu(y + bias), torch.nn.functional.elu(y + bias))[kind]
    expected = (after.detach(), *torch.autograd.grad(after, leaves, grad))
    own, own_grad, grad_bias = y.detach().clone(), grad.clone(), torch.full((7,), math.nan)
    sale.activate(own.numpy(), bias.detach().numpy(), kind)
    sale.activation_gradient(own_grad.numpy(), own.numpy(), grad_bias.numpy(), kind)
    yield from zip(("output", "gradient", "bias"), (own, own_grad, grad_bias), expected, strict=True)


def avg_l1_pairs(seed: int, size: int) -> Pairs:
    """AvgL1Norm into the first columns of a wider array, of a row of zeros and of tiny values among others."""
    generator = torch.Generator().manual_seed(seed)
    h, grad = torch.randn(size, 7, generator=generator), torch.randn(size, 9, generator=generator)
    h[0], h[1] = 0.0, 1e-12 * h[1]
    grad[:2] *= 1e-8
    expected = avg_l1_norm(h.requires_grad_())
    (at_input,) = torch.autograd.grad(expected, h, grad[:, :7])
    y, factors, own = torch.full((size, 11), math.nan), torch.empty(size), torch.full((size, 7), math.nan)
    sale.avg_l1_norm(h.detach().numpy(), y.numpy(), factors.numpy())
    sale.avg_l1_norm_gradient(grad.numpy(), y.numpy(), factors.numpy(), own.numpy())
    yield "output", y[:, :7], expected.detach()
    yield "gradient", own, at_input
    yield "other columns", y[:, 7:].isnan(), torch.ones(size, 4, dtype=torch.bool)


CONTRACTS = {
    "dqn": Contract(dqn_kernel, ("dqn_kernel",), partial(q_pairs, name="dqn"), q_variants("dqn")),
    "c51": Contract(c51_kernel, ("c51_kernel", "of_action"), partial(q_pairs, name="c51"), q_variants("c51")),
    "qrdqn": Contract(
        qrdqn_kernel, ("quantile_kernel", "of_action"), partial(q_pairs, name="qrdqn"), q_variants("qrdqn")
    ),
    "softmax": Contract(c51_kernel, ("softmax",), softmax_pairs, rtol=1e-5),
    "ppo": Contract(
        on_policy_kernel,
        ("categorical_kernel", "gaussian_kernel"),
        ppo_pairs,
        [{"kind": kind, **ranges} for kind in KINDS for ranges in RANGES],
        rtol=2e-4,
    ),
    "impala": Contract(
        on_policy_kernel,
        ("categorical_kernel", "gaussian_kernel"),
        impala_pairs,
        [{"kind": kind} for kind in KINDS],
        rtol=2e-4,
    ),
    "critic": Contract(
        continuous_kernel, ("critic_kernel",), critic_pairs, [{"critics": n} for n in (1, 2, 3)], 1e-5, 1e-5
    ),
    "actor": Contract(
        continuous_kernel, ("actor_kernel",), actor_pairs, [{"critics": n} for n in (1, 2, 3)], 1e-5
    ),
    "truncated": Contract(
        tqc_kernel,
        ("truncated_kernel", "mean_actor_kernel"),
        truncated_pairs,
        [
            {"critics": c, "atoms": m, "dropped": d}
            for c, m, d in ((1, 1, 0), (1, 5, 0), (2, 25, 4), (3, 7, 6))
        ],
        atol=1e-5,
    ),
    "draw": Contract(
        continuous_kernel,
        ("draw_kernel", "draw_gradient_kernel"),
        draw_pairs,
        [{"values": n} for n in (1, 3, 70)],
        atol=1e-4,
    ),
    "layer": Contract(
        hidden_layer,
        ("add_bias_relu", "add_bias_tanh", "relu_gradient", "tanh_gradient", "head_gradient", "sum_rows"),
        layer_pairs,
        [{"activation": a, "outputs": n} for a in ("relu", "tanh") for n in (1, 3)],
        atol=1e-5,
    ),
    "normalized layer": Contract(
        normalized_layer,
        ("normalised_forward", "normalised_gradient"),
        normalized_pairs,
        [{"activation": a} for a in ("relu", "tanh")],
        rtol=1e-4,
        atol=2e-5,
    ),
    "batch norm": Contract(
        batch_norm,
        ("batch_norm", "batch_norm_gradient", "running_norm", "running_norm_gradient"),
        batch_norm_pairs,
        [{"training": t, "renormalises": r} for t, r in ((True, False), (True, True), (False, False))],
        rtol=1e-3,
        atol=1e-4,
    ),
    "activation": Contract(
        sale,
        ("activate", "activation_gradient"),
        activation_pairs,
        [{"kind": kind} for kind in range(3)],
        atol=5e-6,
    ),
    "avg l1": Contract(sale, ("avg_l1_norm", "avg_l1_norm_gradient"), avg_l1_pairs, atol=1e-5),
}
HELD_ELSEWHERE = {"vtrace_kernel": "test_returns.py", "_extend": "test_value_bounds.py"}
"""Kernels that replace no formula in torch: the test file that holds them to a slow twin."""


def kernels_of_the_learner() -> set[str]:
    for package in (asyncrl.algorithms, asyncrl.networks):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    rooms = "asyncrl.algorithms.", "asyncrl.networks."
    return {k.py_func.__name__ for k in declared() if k.py_func.__module__.startswith(rooms)}


def test_every_kernel_has_a_contract() -> None:
    held = {name for contract in CONTRACTS.values() for name in contract.kernels}
    assert held | set(HELD_ELSEWHERE) == kernels_of_the_learner(), "write a contract for a new kernel"
    for name, file in HELD_ELSEWHERE.items():
        assert f"{name}.py_func" in Path(__file__).with_name(file).read_text()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, v, id=" ".join([name, *(f"{k}={x}" for k, x in v.items())]))
        for name, contract in CONTRACTS.items()
        for v in contract.variants
    ],
)
def test_kernel_is_its_formula(
    name: str, variant: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = CONTRACTS[name]
    if not compiled:
        for kernel in contract.kernels:
            monkeypatch.setattr(contract.module, kernel, getattr(contract.module, kernel).py_func)
    for seed in range(3 if compiled else 1):
        for what, ours, theirs in contract.pairs(seed, 64 if compiled else 24, **variant):
            torch.testing.assert_close(
                ours,
                theirs,
                rtol=contract.rtol,
                atol=contract.atol,
                equal_nan=True,
                msg=lambda m, w=what: f"{w}: {m}",
            )


# --- NaN and infinity ---


@pytest.mark.parametrize(("name", "options"), [(name, o) for name, all_ in Q_OPTIONS.items() for o in all_])
def test_nan_shows_in_priorities(name: str, options: dict[str, Any]) -> None:
    core = q_core(name, **options)
    for spoil in ("reward", "outputs"):
        buffers = q_buffers(core, 8)
        clean = by_q_kernel(core, buffers)[1].clone()
        if spoil == "reward":
            buffers.batch.reward[3] = math.nan
        else:
            buffers.online.output[3] = math.nan
        priorities = by_q_kernel(core, buffers)[1]
        assert priorities[3].isnan()
        others = torch.arange(8) != 3
        assert torch.equal(priorities[others], clean[others])


def test_far_logits_stay_finite_and_nan_propagates() -> None:
    made = items("several", 0, 64)
    made.outputs[0].mul_(1e4)
    assert all(
        torch.isfinite(gradient).all() for gradient in by_loss_kernel(made, 0.2, math.inf, 0.5, 0.1)[1]
    )
    for kind in ("four", "gaussian"):
        made = items(kind, 0, 64)
        made.columns[2:4, 0] = math.nan
        by_out, by_value, _ = by_loss_kernel(made, 0.2, math.inf, 0.5, 0.1)[1]
        assert by_out[0].isnan().all() and by_value[0].isnan() and torch.isfinite(by_out[1:]).all()
