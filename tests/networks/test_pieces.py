"""Sequences in pieces against cells that are run row by row and reset by hand."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from slow_recurrence import slow_features
from torch import nn

from asyncrl.acting.recurrent import Cell
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.networks.recurrent import cut_pieces, unroll


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_pieces_are_the_slow_recursion(kind: Literal["gru", "lstm"], share: float) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(2)
    cell = Cell(kind, 5)
    module = RecurrentModule(cell, (3, 4, 2), "tanh")
    x, state = torch.randn(4, 9, 3), torch.randn(4, cell.state_size)
    begins = rng.random((4, 9)) < share
    order = rng.permutation(36).reshape(4, 9)  # where each row stands
    rows = torch.empty(36, 3)
    rows[torch.from_numpy(order.reshape(-1))] = x.reshape(36, 3)
    found = unroll(module, rows, state, cut_pieces(begins, order))[torch.from_numpy(order)]
    wanted = slow_features(module, x, state, begins)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    weights = torch.randn_like(found)
    inner = [*module.encoder.parameters(), *module.cell.parameters()]
    ours, theirs = (torch.autograd.grad((out * weights).sum(), inner) for out in (found, wanted))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, atol=1e-5, rtol=1e-4)
    plain: Any = cut_pieces(begins)
    torch.testing.assert_close(unroll(module, x.reshape(36, 3), state, plain).view(4, 9, 5), found)


def test_pieces_by_hand() -> None:
    begins = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]], np.bool_)
    pieces = cut_pieces(begins)
    assert pieces.streams.tolist() == [0, 0, 1, 2, 2]
    assert pieces.stored.reshape(-1).tolist() == [1, 0, 0, 1, 0]
    table = pieces.rows.view(4, 5)
    assert table[:, 2].tolist() == [4, 5, 6, 7] and table[:2, 1].tolist() == [2, 3]
    assert table[:3, 3].tolist() == [8, 9, 10] and table[0, 4] == 11
    assert (pieces.rows[pieces.places] == torch.arange(12)).all()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_orthogonal_initialisation(kind: Literal["gru", "lstm"]) -> None:
    module = RecurrentModule(Cell(kind, 6), (5, 6, 3), "tanh")
    torch.manual_seed(0)
    module.initialise_orthogonally(0.01)
    for weight in (module.cell.weight_ih_l0, module.cell.weight_hh_l0):
        for gate in weight.split(6):
            torch.testing.assert_close(gate.T @ gate, torch.eye(6), atol=1e-5, rtol=0)
    head = module.head.weight
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(3), atol=1e-7, rtol=0)
    for name, tensor in module.named_parameters():
        assert "bias" not in name or name == "cell.bias_ih_l0" or not tensor.any()
    bias = module.cell.bias_ih_l0.view(-1, 6)
    assert bias[1].tolist() == [1.0] * 6 and bias.sum() == 6.0


def pretrained(inputs: int, outputs: int) -> nn.Module:
    """An encoder without a bias whose values are known."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.constant_(layer.weight, 0.5)
    return layer


def test_an_encoder_of_the_users_own_keeps_its_values() -> None:
    module = RecurrentModule(Cell("gru", 3), (2, 3, 4), "tanh", pretrained)
    module.initialise_orthogonally(0.01)
    assert torch.equal(next(module.encoder.parameters()), torch.full((3, 2), 0.5))
    assert 0 < module.head.weight.norm() < 0.1
