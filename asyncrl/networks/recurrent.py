"""Recurrent networks over segments: the rows of B streams are cut into pieces that belong to one episode each.

A piece begins at the first row of a segment, with the stored state, or at the start of an episode, with a state of
zeros. The cell processes all pieces as one batch, padded at the end, so it makes as many steps as the longest piece has
rows, and needs no mask. `RecurrentModule.run` over each piece alone gives the same outputs.
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
    """Index maps between the R rows of B streams and n padded pieces of at most L rows.

    Attributes:
        rows: `[L * n]` int64, the row at each position of the padded pieces; row 0 at a padded position.
        places: `[R]` int64, the position of each row in the padded pieces.
        streams: `[n]` int64, the stream of each piece.
        stored: `[n, 1]` float32, 1 if the piece begins with the stream's stored state, 0 if with an episode.
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
        begins: `[B, T]`, whether an episode begins at a row: it follows a RESET row.
        rows: `[B, T]`, index of each row among all R = B T; None for stream-major order.
        device: device of the result.
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
    """Return the cell's outputs `[R, H]`, in the order of the rows; differentiable.

    Args:
        module: encoder and cell.
        x: `[R, inputs]`.
        state: `[B, state_size]` before the first row of each stream.
        pieces: pieces of the streams.
    """
    encoded = module.encoder(x).index_select(0, pieces.rows)
    begin = state[pieces.streams] * pieces.stored
    out, _ = module.run(encoded.view(-1, begin.shape[0], encoded.shape[1]), begin)
    return out.flatten(0, 1).index_select(0, pieces.places)


@torch.no_grad()
def state_behind(module: RecurrentModule, x: Tensor, state: Tensor, begins: NDArray[np.bool_]) -> Tensor:
    """Return the states `[B, state_size]` after the rows `x` `[B, L, inputs]` of B streams, without a graph.

    Only the rows of a stream's last episode matter, so each stream is one piece that ends at row L.

    Args:
        module: encoder and cell.
        x: at least one row.
        state: `[B, state_size]` before the first row of each stream.
        begins: `[B, L]`, whether an episode begins at a row.
    """
    streams, length = begins.shape
    first = np.where(begins.any(axis=1), length - 1 - begins[:, ::-1].argmax(axis=1), 0)
    stored = torch.from_numpy(~begins[np.arange(streams), first]).to(x.device)[:, None]
    rows = np.minimum(first + np.arange(length)[:, None], length - 1)
    at = torch.from_numpy(rows + np.arange(streams) * length).to(x.device)
    encoded = module.encoder(x.flatten(0, 1))[at]
    pieces = pack_padded_sequence(encoded, torch.from_numpy(length - first), enforce_sorted=False)
    return module.run(pieces, state * stored)[1]
