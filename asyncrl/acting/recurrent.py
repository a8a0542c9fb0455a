"""Recurrent networks of policies: an encoder, a GRU or LSTM cell, a linear head. NumPy and numba, never torch.

The order of the numbers is that of torch's modules: for each layer of the encoder its weights `[outputs, inputs]` and
biases, then the cell's input weights `[gates * size, inputs]`, recurrent weights `[gates * size, size]` and the biases
of both, then the head's weights and biases. Gates stand in torch's order: reset, update, new (GRU); input, forget,
cell, output (LSTM).

    Cho et al. 2014               Learning phrase representations using RNN encoder-decoder (GRU)
    Hochreiter, Schmidhuber 1997  Long short-term memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.kernels import tanh_in_place
from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.network import ActingLayout, ActingNetwork
from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.protocols import Memory
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.views import matrix


@dataclass(frozen=True)
class Cell:
    """Kind and size of a recurrent cell.

    Attributes:
        kind: GRU or LSTM.
        size: H, its outputs.
    """

    kind: Literal["gru", "lstm"]
    size: int

    @property
    def gates(self) -> int:
        """Blocks of H rows in its weights."""
        return 3 if self.kind == "gru" else 4

    @property
    def state_size(self) -> int:
        """Numbers of its state: the outputs h, of an LSTM then the cell state c."""
        return self.size if self.kind == "gru" else 2 * self.size

    @property
    def field(self) -> FieldSpec:
        """What a row carries: the state before the row's observation was seen."""
        return FieldSpec("state", (self.state_size,), "float32")

    def count(self, inputs: int) -> int:
        """Its parameters."""
        return self.gates * self.size * (inputs + self.size + 2)


def recurrent_count(sizes: Sequence[int], cell: Cell) -> int:
    """Parameters of a network with a perceptron as encoder; `sizes` are `(inputs, *hidden, outputs)`."""
    return parameter_count(sizes[:-1]) + cell.count(sizes[-2]) + (cell.size + 1) * sizes[-1]


def memory_of(policy: object) -> Memory | None:
    """The policy's recurrent state; None where it has none."""
    memory: Memory | None = getattr(policy, "memory", None)
    return memory


def next_states(
    zeros: NDArray[np.float32], state: NDArray[Any] | None, episode_start: Any
) -> NDArray[np.float32]:
    """States `[B, state_size]` before the next observation, for a caller that keeps them; a fresh array.

    Args:
        zeros: `[B, state_size]`, those of episodes that begin.
        state: what the caller has kept, with or without an axis of one stream; None where all episodes begin.
        episode_start: `[B]` or one bool, which episodes begin; None is none.

    Raises:
        ValueError: `state` has another shape.
    """
    if state is None:
        return zeros.copy()
    given = np.array(state, np.float32)
    if given.shape != zeros.shape and given.shape != zeros.shape[1:]:
        raise ValueError(
            f"state must be what the last predict returned, of shape {zeros.shape}, got {given.shape}"
        )
    states = given.reshape(zeros.shape)
    began = np.asarray(False if episode_start is None else episode_start, np.bool_)
    states[np.broadcast_to(began, zeros.shape[:1])] = 0
    return states


@inlined(fastmath={"reassoc", "contract"})
def linear(x, w, bias, y):  # type: ignore[no-untyped-def]
    """Fill `y` `[outputs]` with `w @ x + bias`; `w` is `[outputs, inputs]`."""
    for j in range(w.shape[0]):
        total = bias[j]
        for k in range(w.shape[1]):
            total += x[k] * w[j, k]
        y[j] = total


@inlined(fastmath={"reassoc", "contract"})
def sigmoid_in_place(y):  # type: ignore[no-untyped-def]
    """Logistic function of every value of `y` `[n]`."""
    for j in range(y.shape[0]):
        y[j] *= np.float32(0.5)
    tanh_in_place(y)
    for j in range(y.shape[0]):
        y[j] = np.float32(0.5) + np.float32(0.5) * y[j]


@inlined(fastmath={"reassoc", "contract"})
def gru_cell(gates, recurrent, state, after):  # type: ignore[no-untyped-def]
    """Fill `after` `[H]` from `state` `[H]` and the gates' sums over input and state, `[3 H]` each; changes `gates`."""
    size = state.shape[0]
    for j in range(2 * size):
        gates[j] += recurrent[j]
    sigmoid_in_place(gates[: 2 * size])
    for j in range(2 * size, 3 * size):
        gates[j] += gates[j - 2 * size] * recurrent[j]
    tanh_in_place(gates[2 * size :])
    for j in range(size):
        new = gates[2 * size + j]
        after[j] = new + gates[size + j] * (state[j] - new)


@inlined(fastmath={"reassoc", "contract"})
def lstm_cell(gates, recurrent, state, after):  # type: ignore[no-untyped-def]
    """Fill `after` `[2 H]` from `state` `[2 H]` and the gates' sums, `[4 H]` each; changes `gates`."""
    size = state.shape[0] // 2
    for j in range(4 * size):
        gates[j] += recurrent[j]
    sigmoid_in_place(gates[: 2 * size])
    tanh_in_place(gates[2 * size : 3 * size])
    sigmoid_in_place(gates[3 * size :])
    for j in range(size):
        after[size + j] = gates[size + j] * state[size + j] + gates[j] * gates[2 * size + j]
        after[j] = after[size + j]
    tanh_in_place(after[:size])
    for j in range(size):
        after[j] *= gates[3 * size + j]


@kernel(
    "void(float32[:, ::1], float32[:, ::1], float32[::1], int64[::1], boolean, boolean, float32[:, ::1],"
    "float32[:, ::1], float32[:, ::1])",
    fastmath={"reassoc", "contract"},
    cold=True,
)
def recurrent_forward(x, state, flat, sizes, relu, lstm, scratch, after, out):  # type: ignore[no-untyped-def]
    """Fill the next states `after` and the head's values `out` of one row of every stream.

    Args:
        x: `[R, inputs]`.
        state: `[R, state_size]`.
        flat: parameters, see the module's text.
        sizes: `(inputs, *hidden, H, outputs)`.
        relu: ReLU after every layer of the encoder, else tanh.
        lstm: an LSTM, else a GRU.
        scratch: `[4, at least the widest layer and all gates]`.
        after: `[R, state_size]`, filled.
        out: `[R, outputs]`, filled.
    """
    layers = sizes.shape[0] - 3
    size, outputs = sizes[layers + 1], sizes[layers + 2]
    rows = 4 * size if lstm else 3 * size
    for r in range(x.shape[0]):
        start = 0
        source = x[r]
        for layer in range(layers):
            n_in, n_out = sizes[layer], sizes[layer + 1]
            bias = start + n_in * n_out
            y = scratch[layer % 2, :n_out]
            linear(source, matrix(flat, start, n_out, n_in), flat[bias : bias + n_out], y)
            if relu:
                for j in range(n_out):
                    y[j] = max(y[j], np.float32(0.0))
            else:
                tanh_in_place(y)
            start, source = bias + n_out, y
        features = sizes[layers]
        gates, recurrent = scratch[2, :rows], scratch[3, :rows]
        own = start + rows * features
        bias = own + rows * size
        linear(source, matrix(flat, start, rows, features), flat[bias : bias + rows], gates)
        bias += rows
        linear(state[r, :size], matrix(flat, own, rows, size), flat[bias : bias + rows], recurrent)
        if lstm:
            lstm_cell(gates, recurrent, state[r], after[r])
        else:
            gru_cell(gates, recurrent, state[r], after[r])
        start = bias + rows
        bias = start + size * outputs
        linear(after[r, :size], matrix(flat, start, outputs, size), flat[bias : bias + outputs], out[r])


class RecurrentActingNetwork(ActingNetwork):
    """A recurrent network that acts, with a state for each of its rows. Implements `Memory`.

    Every call takes one observation of each stream and advances the states. It pickles with its states.

    Args:
        spec: the environment; uint8 observations are scaled to 0..1.
        layout: sizes, `(inputs, *hidden, outputs)`, and length of the block.
        cell: between the last hidden layer and the head.
        relu, statistics: see `ActingNetwork`.

    Attributes:
        state: `[E, state_size]` float32 before the next observation: a fresh array after every call.
    """

    def __init__(
        self,
        spec: EnvSpec,
        layout: ActingLayout,
        cell: Cell,
        relu: bool = True,
        statistics: tuple[slice, slice] | None = None,
    ) -> None:
        self._cell = cell
        self.state: NDArray[np.float32] = np.zeros((0, cell.state_size), np.float32)
        super().__init__(spec, layout, relu, statistics)
        self._sizes = np.array((*layout.sizes[:-1], cell.size, layout.sizes[-1]), np.int64)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        self._row_scratch = np.empty((4, max(self._widest, self._cell.gates * self._cell.size)), np.float32)

    def forget(self, rows: int) -> None:
        """Begin episodes in `rows` streams, which are all there are."""
        self.state = np.zeros((rows, self._cell.state_size), np.float32)

    def begin(self, streams: Any) -> None:
        """Begin episodes in `streams`, an index, or a list or array of them."""
        self.state[streams] = 0

    def _forward(self) -> NDArray[np.float32]:
        rows, before = self._x.shape[0], self.state
        if before.shape[0] != rows:
            raise ValueError(f"obs must have {before.shape[0]} rows, one per assigned stream, got {rows}")
        after, out = np.empty_like(before), np.empty((rows, self._outputs), np.float32)
        self._advance(before, after, out)
        self.state = after
        return out

    def _advance(
        self, before: NDArray[np.float32], after: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """Fill the states behind the network's input and the head's values."""
        lstm, scratch = self._cell.kind == "lstm", self._row_scratch
        recurrent_forward(self._x, before, self.weights, self._sizes, self._relu, lstm, scratch, after, out)
