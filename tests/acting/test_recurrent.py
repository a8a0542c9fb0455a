"""Acting of recurrent networks, against torch's GRU and LSTM over whole sequences."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl import IMPALA, PPO
from asyncrl.acting.modules import flat_size, make_acting_network, tensors_of
from asyncrl.acting.recurrent import (
    Cell,
    RecurrentActingNetwork,
    gru_cell,
    lstm_cell,
    memory_of,
    recurrent_forward,
)
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.interfaces import DiscreteAction, EnvSpec

SPEC = EnvSpec("vector", (3,), "float32", DiscreteAction(4))
STREAMS, ROWS = 5, 12

for_both_cells = pytest.mark.parametrize("kind", ["gru", "lstm"])


def layout_of(kind: Any, hidden: tuple[int, ...], **options: Any) -> ActorLayout:
    return ActorLayout(3, hidden, SPEC.action, cell=Cell(kind, 7), **options)


def flat_of(module: nn.Module) -> np.ndarray:
    """Parameters in the order of the module, which is that of the flat block."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors_of([module])]).numpy()


def torchs_own(module: RecurrentModule, x: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Outputs `[T, E, outputs]` of whole sequences `[T, E, inputs]` from states of zeros, and the last state."""
    with torch.no_grad():
        encoded = module.encoder(x.flatten(0, 1)).view(*x.shape[:2], -1)
        if isinstance(module.cell, nn.GRU):
            out, last = module.cell(encoded)
            return module.head(out), last[0].numpy()
        out, (h, c) = module.cell(encoded)
        return module.head(out), torch.cat((h[0], c[0]), dim=1).numpy()


@for_both_cells
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(6,), (9, 5), (4, 8, 6)])
def test_steps_give_what_torch_gives_for_the_sequence(
    kind: Literal["gru", "lstm"], activation: Literal["tanh", "relu"], hidden: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    layout = layout_of(kind, hidden, activation=activation)
    module = RecurrentModule(Cell(kind, 7), layout.sizes, activation)
    assert layout.network_count == layout.weight_count == flat_size([module])
    network = make_acting_network(SPEC, layout, activation == "relu", layout.cell)
    assert isinstance(network, RecurrentActingNetwork)
    network.load(flat_of(module))
    network.forget(STREAMS)
    x = torch.randn(ROWS, STREAMS, 3)
    wanted, last = torchs_own(module, x)
    found = np.stack([network(row) for row in x.numpy()])
    np.testing.assert_allclose(found, wanted.numpy(), atol=2e-6)
    np.testing.assert_allclose(network.state, last, atol=2e-6)


@for_both_cells
def test_kernel_in_python_is_the_compiled_one(kind: Literal["gru", "lstm"]) -> None:
    rng = np.random.default_rng(0)
    layout = layout_of(kind, (4, 2))
    cell = Cell(kind, 7)
    sizes = np.array((3, 4, 2, 7, 4), np.int64)
    flat = rng.normal(size=layout.weight_count).astype(np.float32)
    x, state = (rng.normal(size=(2, n)).astype(np.float32) for n in (3, cell.state_size))
    found = []
    for run in (recurrent_forward, recurrent_forward.py_func):  # type: ignore[attr-defined]
        scratch, after, out = (
            np.empty((4, 28), np.float32),
            np.empty_like(state),
            np.empty((2, 4), np.float32),
        )
        run(x, state, flat, sizes, False, kind == "lstm", scratch, after, out)
        found.append((after, out))
    for compiled, python in zip(*found, strict=True):
        np.testing.assert_allclose(compiled, python, atol=2e-6)


def test_cells_by_hand() -> None:
    """One unit: gates of 0 are sigmoid 1/2 and tanh 0."""
    zeros = np.zeros(3, np.float32)
    after = np.empty(1, np.float32)
    gru_cell(zeros.copy(), zeros, np.array([0.8], np.float32), after)
    assert after[0] == pytest.approx(0.4)  # (1 - z) n + z h with z = 1/2 and n = 0
    after = np.empty(2, np.float32)
    lstm_cell(np.zeros(4, np.float32), np.zeros(4, np.float32), np.array([0.8, 0.6], np.float32), after)
    assert after[1] == pytest.approx(0.3)  # f c + i g with f = 1/2 and g = 0
    assert after[0] == pytest.approx(0.5 * np.tanh(0.3))


@for_both_cells
def test_policy_stamps_the_state_it_acted_with(kind: Literal["gru", "lstm"]) -> None:
    algorithm = PPO(recurrent=kind, recurrent_size=7, hidden_sizes=(6,))
    (stamped,) = (field for field in algorithm.extra_fields(SPEC) if field.name == "state")
    assert stamped.shape == (Cell(kind, 7).state_size,)
    policy = algorithm.make_policy(SPEC)
    rng = np.random.default_rng(0)
    policy.load_weights(rng.normal(size=policy.weight_count).astype(np.float32))
    policy.assign_streams(0, STREAMS, STREAMS)
    memory = memory_of(policy)
    assert memory is not None and memory is policy.memory
    before = np.zeros((STREAMS, *stamped.shape), np.float32)
    for _ in range(3):
        obs = rng.normal(size=(STREAMS, 3)).astype(np.float32)
        _, extras = policy.act(obs, rng, 0)
        assert (extras["state"] == before).all() and extras["state"].dtype == np.float32
        before = memory.state.copy()
        assert (before != 0).any()
    memory.begin(np.array([1, 3]))
    assert (memory.state[[1, 3]] == 0).all() and (memory.state[[0, 2, 4]] == before[[0, 2, 4]]).all()
    assert (extras["state"] != 0).any(axis=1).all(), "what a row was stamped with stays"
    again = pickle.loads(pickle.dumps(policy))
    obs = rng.normal(size=(STREAMS, 3)).astype(np.float32)
    assert (again.outputs(obs) == policy.outputs(obs)).all(), "it pickles with its state"
    policy.assign_streams(0, 2, 2)
    assert memory.state.shape == (2, *stamped.shape) and not memory.state.any()
    with pytest.raises(ValueError, match="obs must have 2 rows, one per assigned stream, got 5"):
        policy.act(obs, rng, 0)


def test_policies_without_a_cell_have_no_memory() -> None:
    policy = PPO().make_policy(SPEC)
    assert policy.memory is None and memory_of(policy) is None and memory_of(object()) is None
    assert [field.name for field in PPO().extra_fields(SPEC)] == ["log_prob"]


@for_both_cells
def test_convolutions_act_by_torch(kind: Literal["gru", "lstm"]) -> None:
    torch.manual_seed(0)
    spec = replace(SPEC, observation_shape=(12, 10), observation_dtype="uint8")
    algorithm = IMPALA(recurrent=kind, recurrent_size=7)
    layout = algorithm.layout(spec)
    module = layout.recurrent_factory(120, 4).eval()
    assert isinstance(module, RecurrentModule)
    policy = algorithm.make_policy(spec)
    assert isinstance(policy, StochasticPolicy)
    policy.load_weights(flat_of(module))
    policy.assign_streams(0, STREAMS, STREAMS)
    obs = np.random.default_rng(0).integers(0, 256, (ROWS, STREAMS, 12, 10), np.uint8)
    wanted, _ = torchs_own(module, torch.from_numpy(obs).view(ROWS, STREAMS, -1).float().div(255))
    found = np.stack([policy.outputs(row) for row in obs])
    np.testing.assert_allclose(found, wanted.numpy(), atol=2e-6)
    again = pickle.loads(pickle.dumps(policy))
    assert (again.outputs(obs[0]) == policy.outputs(obs[0])).all()
