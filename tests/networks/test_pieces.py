"""Sequences in pieces against cells that go row by row and are reset by hand."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.acting.recurrent import Cell
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.networks.recurrent import cut_pieces, unroll


def slowly(module: RecurrentModule, x: torch.Tensor, state: torch.Tensor, begins: np.ndarray) -> torch.Tensor:
    """The cell's outputs `[B, T, H]`, one row of one stream at a time, by torch's cells.

    Args:
        module: encoder and cell.
        x: `[B, T, inputs]`.
        state: `[B, state_size]`.
        begins: `[B, T]`.
    """
    cell, made = module.cell, (nn.GRUCell if isinstance(module.cell, nn.GRU) else nn.LSTMCell)
    one = made(cell.input_size, cell.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        delattr(one, name)  # the same parameters, so that gradients go there
        setattr(one, name, getattr(cell, f"{name}_l0"))
    outputs = []
    for b in range(x.shape[0]):
        own = state[b : b + 1]
        rows = []
        for t in range(x.shape[1]):
            if begins[b, t]:
                own = torch.zeros_like(own)
            encoded = module.encoder(x[b, t : t + 1])
            if isinstance(one, nn.GRUCell):
                h = own = one(encoded, own)
            else:
                h, c = one(encoded, tuple(own.chunk(2, dim=1)))
                own = torch.cat((h, c), dim=1)
            rows.append(h)
        outputs.append(torch.cat(rows))
    return torch.stack(outputs)


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
    wanted = slowly(module, x, state, begins)
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


def test_orthogonal_initialisation() -> None:
    module = RecurrentModule(Cell("lstm", 6), (5, 6, 3), "tanh")
    torch.manual_seed(0)
    module.initialise_orthogonally(0.01)
    for weight in (module.cell.weight_ih_l0, module.cell.weight_hh_l0):
        torch.testing.assert_close(weight.T @ weight, torch.eye(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        module.head.weight @ module.head.weight.T, 1e-4 * torch.eye(3), atol=1e-7, rtol=0
    )
    for name, tensor in module.named_parameters():
        assert "bias" not in name or not tensor.any()
