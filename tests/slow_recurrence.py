"""Slow recurrent networks: one row of one stream at a time, by torch's cells, reset by hand."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from asyncrl.acting.recurrent_module import RecurrentModule


def slow_features(
    module: RecurrentModule, x: torch.Tensor, state: torch.Tensor, begins: np.ndarray
) -> torch.Tensor:
    """Outputs of the cell `[B, T, H]`, with gradients to the module's parameters.

    Args:
        module: encoder and cell.
        x: `[B, T, inputs]`.
        state: `[B, state_size]` before the first row.
        begins: `[B, T]`, whether an episode begins in a row.
    """
    cell, made = module.cell, (nn.GRUCell if isinstance(module.cell, nn.GRU) else nn.LSTMCell)
    one = made(cell.input_size, cell.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        delattr(one, name)
        setattr(one, name, getattr(cell, f"{name}_l0"))
    outputs = []
    for b in range(x.shape[0]):
        own, rows = state[b : b + 1], []
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
