"""Contract of every acting kernel: it equals torch's formula of its network or distribution, compiled and in Python.

A kernel of `asyncrl.acting` that no contract here runs fails `test_every_kernel_has_a_contract`.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asyncrl.acting
from asyncrl.acting.kernels import (
    add_squashing,
    draw_choices,
    draw_gaussian,
    epsilon_greedy,
    mlp_forward,
    noisy_mlp_forward,
)
from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.recurrent import Cell, recurrent_count, recurrent_forward
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.networks.distributions import categorical, diagonal_gaussian, log_tanh_slope
from asyncrl.networks.parameters import MLPParameters
from asyncrl.shm.kernel import declared

Pairs = Iterator[tuple[str, Any, Any]]
"""What an array is, as the kernel gives it, and as the formula does."""
SIZES = [(3, 2), (4, 7, 3), (5, 9, 4, 6)]
"""Inputs of 3 to 9 values: the kernels take four at a time, and what is left one by one."""


def draw(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def layers(sizes: tuple[int, ...], flat: np.ndarray) -> list[tuple[Tensor, Tensor]]:
    """Weights `[outputs, inputs]` and biases of each layer, as the learner reads them from the flat block."""
    named = MLPParameters(sizes, torch.from_numpy(flat)).state_dict()
    return [(named[f"{i}.weight"], named[f"{i}.bias"]) for i in range(len(sizes) - 1)]


def mlp_pairs(
    call: Any, rng: np.random.Generator, sizes: tuple[int, ...], relu: bool, layer_norm: bool
) -> Pairs:
    rows = 5
    x, flat = draw(rng, rows, sizes[0]), draw(rng, parameter_count(sizes, layer_norm=layer_norm))
    scratch, out = np.empty((2, rows, max(sizes)), np.float32), np.empty((rows, sizes[-1]), np.float32)
    call(x, flat, np.array(sizes), relu, layer_norm, scratch, out)
    y = torch.from_numpy(x)
    named = MLPParameters(sizes, torch.from_numpy(flat), layer_norm=layer_norm).state_dict()
    *hidden, head = [(named[f"{i}.weight"], named[f"{i}.bias"]) for i in range(len(sizes) - 1)]
    for i, (w, b) in enumerate(hidden):
        y = torch.nn.functional.linear(y, w, b)
        if layer_norm:
            y = torch.nn.functional.layer_norm(
                y, (sizes[i + 1],), named[f"{i}.norm.weight"], named[f"{i}.norm.bias"]
            )
        y = y.relu() if relu else y.tanh()
    yield "outputs", out, torch.nn.functional.linear(y, *head)


def noisy_pairs(call: Any, rng: np.random.Generator, sizes: tuple[int, ...]) -> Pairs:
    rows, means = 3, parameter_count(sizes)
    x, flat = draw(rng, rows, sizes[0]), draw(rng, means + parameter_count(sizes[1:]), scale=0.5)
    normal = draw(rng, rows, sum(a + b for a, b in itertools.pairwise(sizes[1:])))
    out, scratch = np.empty((rows, sizes[-1]), np.float32), np.empty((4, max(sizes)), np.float32)
    call(x, flat, np.array(sizes), means, normal.copy(), scratch, out)
    noise, wanted = torch.from_numpy(normal), []
    sigmas = [None, *layers(sizes[1:], flat[means:])]
    for row in range(rows):
        y, at = torch.from_numpy(x[row]), 0
        for (w, b), sigma in zip(layers(sizes, flat[:means]), sigmas, strict=True):
            if sigma is not None:
                e = noise[row, at : at + w.shape[1] + w.shape[0]]
                f_in, f_out = (e.sign() * e.abs().sqrt()).split((w.shape[1], w.shape[0]))
                w, b, at = w + sigma[0] * f_out[:, None] * f_in, b + sigma[1] * f_out, at + len(e)
                y = y.relu()
            y = torch.nn.functional.linear(y, w, b)
        wanted.append(y)
    yield "outputs", out, torch.stack(wanted)


def recurrent_pairs(call: Any, rng: np.random.Generator, kind: Any, relu: bool) -> Pairs:
    cell, rows = Cell(kind, 6), 4
    sizes = (3, 7, 5, 2)
    module = RecurrentModule(cell, sizes, "relu" if relu else "tanh")
    flat = draw(rng, recurrent_count(sizes, cell))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat), module.parameters())
    x, state = draw(rng, rows, sizes[0]), draw(rng, rows, cell.state_size)
    after, out = np.empty_like(state), np.empty((rows, sizes[-1]), np.float32)
    scratch = np.empty((4, cell.gates * cell.size), np.float32)
    widths = np.array((*sizes[:-1], cell.size, sizes[-1]))
    call(x, state, flat, widths, relu, kind == "lstm", scratch, after, out)
    with torch.no_grad():
        wanted, next_state = module(torch.from_numpy(x), torch.from_numpy(state))
    yield "outputs", out, wanted
    yield "next states", after, next_state


def choice_pairs(call: Any, rng: np.random.Generator, choices: tuple[int, ...], scale: float) -> Pairs:
    rows = 40
    logits, uniform = draw(rng, rows, sum(choices), scale=scale), rng.random((rows, len(choices)))
    action, log_prob = np.empty((rows, len(choices)), np.int64), np.empty(rows, np.float32)
    exploration = call(logits, np.array(choices), uniform, action, log_prob)
    likeliest = []
    for i, own in enumerate(torch.from_numpy(logits).double().split_with_sizes(list(choices), dim=1)):
        p = own.softmax(dim=1)
        drawn = torch.searchsorted(
            p.cumsum(dim=1), torch.from_numpy(uniform[:, i : i + 1].copy()), right=True
        )
        yield f"choice {i}", action[:, i], drawn[:, 0].clamp(max=choices[i] - 1)
        likeliest.append(p.max(dim=1).values)
    yield (
        "log-probability",
        log_prob,
        categorical(torch.from_numpy(logits), torch.from_numpy(action), choices)[0],
    )
    yield "exploration", np.array(exploration), 1 - torch.stack(likeliest).mean()


def allowed_choice(mask: np.ndarray, share: np.ndarray) -> np.ndarray:
    """For each row the allowed action at the fraction `share` `[R]` of those in its `mask` `[R, n]`."""
    rank = np.minimum(share * mask.sum(axis=1), mask.sum(axis=1) - 1).astype(np.int64)
    return (mask.cumsum(axis=1) > rank[:, None]).argmax(axis=1)


def greedy_pairs(call: Any, rng: np.random.Generator, repeat: int, masked: bool) -> Pairs:
    """Several rows of the same streams, since a run of one action goes on; the formula is over whole arrays."""
    streams, n = 40, 3
    rates = np.linspace(0.0, 1.0, streams)
    held, left, action = (np.zeros(streams, np.int64) for _ in range(3))
    own_held, own_left = held.copy(), left.copy()
    for step in range(8):
        values, uniform = np.round(draw(rng, streams, n)), rng.random((2 if repeat == 1 else 3, streams))
        mask = np.ones((streams, n), np.bool_)
        if masked:
            mask = rng.random((streams, n)) < 0.6
            mask[np.arange(streams), rng.integers(0, n, streams)] = True
            values[~mask] = -np.inf
        call(values, uniform, rates, repeat, held, left, action)
        begins, choice = (uniform[0] < rates) & (own_left == 0), allowed_choice(mask, uniform[1])
        own_held = np.where(begins, choice, own_held)
        own_left = np.where(begins, 1 if repeat == 1 else 1 + uniform[-1] * repeat, own_left).astype(np.int64)
        runs = (own_left > 0) & mask[np.arange(streams), own_held]
        wanted = np.where(runs, own_held, values.argmax(axis=1))
        own_left = np.maximum(own_left - 1, 0)
        yield f"actions of step {step}", action, torch.from_numpy(wanted)
        yield f"steps left after step {step}", left, torch.from_numpy(own_left)


def gaussian_pairs(call: Any, rng: np.random.Generator, values: int) -> Pairs:
    rows = 6
    mean, log_std, normal = draw(rng, rows, values, scale=3.0), draw(rng, values), draw(rng, rows, values)
    action, log_prob = normal.copy(), np.empty(rows, np.float32)
    call(mean, log_std, np.empty(values), action, log_prob)
    yield (
        "action",
        action,
        torch.from_numpy(mean) + torch.from_numpy(log_std).exp() * torch.from_numpy(normal),
    )
    tensors = (torch.from_numpy(array) for array in (mean, action, log_std))
    yield "log-density", log_prob, diagonal_gaussian(*tensors)[0]


def squashing_pairs(call: Any, rng: np.random.Generator, values: int) -> Pairs:
    latent, log_prob = draw(rng, 12, values, scale=5.0), draw(rng, 12)
    ours = log_prob.copy()
    call(latent, ours)
    yield (
        "log-density",
        ours,
        torch.from_numpy(log_prob) - log_tanh_slope(torch.from_numpy(latent)).sum(dim=1),
    )


CONTRACTS: list[tuple[Any, Callable[..., Pairs], list[dict[str, Any]]]] = [
    (
        mlp_forward,
        mlp_pairs,
        [
            {"sizes": sizes, "relu": relu, "layer_norm": layer_norm}
            for sizes in SIZES
            for relu in (True, False)
            for layer_norm in (False, True)
        ],
    ),
    (noisy_mlp_forward, noisy_pairs, [{"sizes": sizes} for sizes in SIZES[1:]]),
    (
        recurrent_forward,
        recurrent_pairs,
        [{"kind": kind, "relu": relu} for kind in ("gru", "lstm") for relu in (True, False)],
    ),
    (
        draw_choices,
        choice_pairs,
        [{"choices": choices, "scale": scale} for choices in ((2,), (3, 2, 5)) for scale in (1.0, 30.0)],
    ),
    (
        epsilon_greedy,
        greedy_pairs,
        [{"repeat": repeat, "masked": masked} for repeat in (1, 4) for masked in (False, True)],
    ),
    (draw_gaussian, gaussian_pairs, [{"values": values} for values in (1, 4)]),
    (add_squashing, squashing_pairs, [{"values": values} for values in (1, 4)]),
]


def test_every_kernel_has_a_contract() -> None:
    for module in pkgutil.iter_modules(asyncrl.acting.__path__, "asyncrl.acting."):
        importlib.import_module(module.name)
    acting = {k.py_func.__name__ for k in declared() if k.py_func.__module__.startswith("asyncrl.acting.")}
    assert {kernel.py_func.__name__ for kernel, _, _ in CONTRACTS} == acting, "write one for a new kernel"


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize(
    ("kernel", "pairs", "variant"),
    [
        pytest.param(
            kernel, pairs, v, id=" ".join([kernel.py_func.__name__, *(f"{k}={x}" for k, x in v.items())])
        )
        for kernel, pairs, variants in CONTRACTS
        for v in variants
    ],
)
def test_kernel_is_its_formula(
    kernel: Any, pairs: Callable[..., Pairs], variant: dict[str, Any], compiled: bool
) -> None:
    for seed in range(3):
        call = kernel if compiled else kernel.py_func
        for what, ours, theirs in pairs(call, np.random.default_rng(seed), **variant):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=what)
