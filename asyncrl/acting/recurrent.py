"""Recurrent networks of policies: an encoder, a GRU or LSTM cell, a linear head. NumPy and numba, never torch.

The order of the parameters is that of torch's modules: the weights `[outputs, inputs]` and biases of each encoder
layer, then the cell's input weights `[gates * size, inputs]`, recurrent weights `[gates * size, size]` and the biases
of both, then the head's weights and biases. Order of the gates: reset, update, new (GRU); input, forget, cell, output
(LSTM).

    Cho et al. 2014               Learning phrase representations using RNN encoder-decoder (GRU)
    Hochreiter, Schmidhuber 1997  Long short-term memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.kernels import linear, tanh_in_place
from asyncrl.acting.layouts import NetworkLayout, parameter_count
from asyncrl.acting.network import ActingNetwork
from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.protocols import Memory
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.views import matrix


@dataclass(frozen=True)
class Cell:
    """Kind and size of a recurrent cell.

    Attributes:
        kind: GRU or LSTM.
        size: H, number of outputs.
    """

    kind: Literal["gru", "lstm"]
    size: int

    @property
    def gates(self) -> int:
        """Number of gates: blocks of H rows in the weights."""
        return 3 if self.kind == "gru" else 4

    @property
    def state_size(self) -> int:
        """Number of values of the state: the outputs h, and for an LSTM then the cell state c."""
        return self.size if self.kind == "gru" else 2 * self.size

    @property
    def field(self) -> FieldSpec:
        """Extra field of a row: the state before the row's observation."""
        return FieldSpec("state", (self.state_size,), "float32")

    def count(self, inputs: int) -> int:
        """Number of parameters for this number of inputs."""
        return self.gates * self.size * (inputs + self.size + 2)


def recurrent_count(sizes: Sequence[int], cell: Cell) -> int:
    """Number of parameters of a network with a perceptron as encoder; `sizes` is `(inputs, *hidden, outputs)`."""
    return parameter_count(sizes[:-1]) + cell.count(sizes[-2]) + (cell.size + 1) * sizes[-1]


def memory_of(policy: object) -> Memory | None:
    """Return the policy's `Memory`, which holds the recurrent state; None if the policy has none."""
    memory: Memory | None = getattr(policy, "memory", None)
    return memory


def next_states(
    zeros: NDArray[np.float32], state: NDArray[Any] | None, begins: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Return states `[B, state_size]` before the next observation, for a caller that keeps them; a fresh array.

    Args:
        zeros: `[B, state_size]`, states at the start of an episode.
        state: the states of the last call, `[B, state_size]` or, for one stream, `[state_size]`; None where all
            episodes begin.
        begins: `[B]`, whether an episode begins.

    Raises:
        ValueError: `state` has another shape.
    """
    if state is None:
        return zeros.copy()
    given = np.array(state, np.float32)
    if given.size != zeros.size or given.shape[-1:] != zeros.shape[1:]:
        raise ValueError(
            f"state must be what the last predict returned, of shape {zeros.shape}, got {given.shape}"
        )
    states = given.reshape(zeros.shape)
    states[begins] = 0
    return states


@inlined(fastmath={"reassoc", "contract"})
def sigmoid_in_place(y):  # type: ignore[no-untyped-def]
    """Logistic function of every value of `y` `[n]`, in place."""
    for j in range(y.shape[0]):
        y[j] *= np.float32(0.5)
    tanh_in_place(y)
    for j in range(y.shape[0]):
        y[j] = np.float32(0.5) + np.float32(0.5) * y[j]


@inlined(fastmath={"reassoc", "contract"})
def gru_cell(gates, recurrent, state, after):  # type: ignore[no-untyped-def]
    """Fill `after` `[H]` from `state` `[H]` and the gates' input and state sums, `[3 H]` each; overwrites `gates`."""
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
    """Fill `after` `[2 H]` from `state` `[2 H]` and the gates' sums, `[4 H]` each; overwrites `gates`."""
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
    """Fill the next states `after` and the head's values `out` for one row of every stream.

    Args:
        x: `[R, inputs]`.
        state: `[R, state_size]`.
        flat: parameters, in the order of the module's docstring.
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
    """A recurrent acting network with one state per row. Implements `Memory`.

    Every call takes one observation of each stream and advances the states. A pickle contains the states.

    Args:
        spec: the environment; bytes of images are scaled to 0..1.
        layout: sizes, `(inputs, *hidden, outputs)`, and length of the block.
        cell: recurrent cell between the last hidden layer and the head.
        relu: see `ActingNetwork`.

    Attributes:
        state: `[E, state_size]` float32 before the next observation; a fresh array after every call.
    """

    def __init__(self, spec: EnvSpec, layout: NetworkLayout, cell: Cell, relu: bool = True) -> None:
        self._cell = cell
        self.state: NDArray[np.float32] = np.zeros((0, cell.state_size), np.float32)
        super().__init__(spec, layout, relu)
        self._sizes = np.array((*layout.sizes[:-1], cell.size, layout.sizes[-1]), np.int64)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        self._row_scratch = np.empty((4, max(self._widest, self._cell.gates * self._cell.size)), np.float32)

    def forget(self, rows: int) -> None:
        """Set the number of streams to `rows` and begin episodes in all of them."""
        self.state = np.zeros((rows, self._cell.state_size), np.float32)

    def begin(self, streams: Any) -> None:
        """Begin episodes in `streams`, an index, a list or an array."""
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
        """Fill the states `after` the input buffer's row of each stream, and the head's values `out`."""
        lstm, scratch = self._cell.kind == "lstm", self._row_scratch
        recurrent_forward(self._x, before, self.weights, self._sizes, self._relu, lstm, scratch, after, out)
