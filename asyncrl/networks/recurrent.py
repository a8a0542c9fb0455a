"""Recurrent networks over segments: the rows of B streams cut into pieces that belong to one episode each.

A piece begins at a segment's first row, with the stored state, or where an episode begins, with a state of zeros. All
pieces go through the cell side by side, padded behind their ends, so that it takes as many steps as the longest piece
has rows, and no mask is needed within. `RecurrentModule.run` over each piece alone gives the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from asyncrl.acting.recurrent_module import RecurrentModule


class Pieces(NamedTuple):
    """Where the R rows of B streams stand among n pieces of at most L rows.

    Attributes:
        rows: `[L * n]` int64, the row at each place of the padded pieces; any row behind a piece's end.
        places: `[R]` int64, the place of each row.
        streams: `[n]` int64, of which stream each piece is.
        stored: `[n, 1]` float32, 1 where a piece begins with the stream's stored state, 0 where an episode begins.
    """

    rows: Tensor
    places: Tensor
    streams: Tensor
    stored: Tensor


def cut_pieces(
    begins: NDArray[np.bool_], rows: NDArray[np.int64] | None = None, device: torch.device | str = "cpu"
) -> Pieces:
    """Cut B streams of T rows into pieces.

    Args:
        begins: `[B, T]`, whether an episode begins in a row: it is behind a RESET row.
        rows: `[B, T]`, where each row stands among all R = B T; None is stream-major.
        device: of the result.
    """
    streams, length = begins.shape
    if rows is None:
        rows = np.arange(streams * length).reshape(streams, length)
    starts = begins.copy()
    starts[:, 0] = True
    first = np.flatnonzero(starts)
    piece = np.cumsum(starts) - 1
    offset = np.arange(streams * length) - first[piece]
    count = first.size
    padded = np.zeros((int(offset.max()) + 1, count), np.int64)
    padded[offset, piece] = rows.reshape(-1)
    places = np.empty(streams * length, np.int64)
    places[rows.reshape(-1)] = offset * count + piece
    stored = (~begins.reshape(-1)[first]).astype(np.float32)[:, None]
    arrays = padded.reshape(-1), places, first // length, stored
    return Pieces(*(torch.from_numpy(array).to(device) for array in arrays))


def unroll(module: RecurrentModule, x: Tensor, state: Tensor, pieces: Pieces) -> Tensor:
    """The cell's outputs `[R, H]`, in the rows' order; autograd goes through.

    Args:
        module: encoder and cell.
        x: `[R, inputs]`.
        state: `[B, state_size]` before the first row of each stream.
        pieces: of the streams.
    """
    encoded = module.encoder(x).index_select(0, pieces.rows)
    begin = state[pieces.streams] * pieces.stored
    out, _ = module.run(encoded.view(-1, begin.shape[0], encoded.shape[1]), begin)
    return out.flatten(0, 1).index_select(0, pieces.places)


@torch.no_grad()
def state_behind(module: RecurrentModule, x: Tensor, state: Tensor, begins: NDArray[np.bool_]) -> Tensor:
    """The state `[B, state_size]` behind the rows `x` `[B, L, inputs]` of B streams, without a graph.

    Only the rows since an episode began last count, so each stream is one piece that ends at row L.

    Args:
        module: encoder and cell.
        x: at least one row.
        state: `[B, state_size]` before the first row of each stream.
        begins: `[B, L]`, whether an episode begins in a row.
    """
    streams, length = begins.shape
    first = np.where(begins.any(axis=1), length - 1 - begins[:, ::-1].argmax(axis=1), 0)
    stored = torch.from_numpy(~begins[np.arange(streams), first]).to(x.device)[:, None]
    rows = np.minimum(first + np.arange(length)[:, None], length - 1)
    at = torch.from_numpy(rows + np.arange(streams) * length).to(x.device)
    encoded = module.encoder(x.flatten(0, 1))[at]
    pieces = pack_padded_sequence(encoded, torch.from_numpy(length - first), enforce_sorted=False)
    return module.run(pieces, state * stored)[1]
