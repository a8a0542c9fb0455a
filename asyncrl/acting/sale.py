"""The actor of TD7 in NumPy: a perceptron over an embedding of the observation beside the observation itself.

    Fujimoto et al. 2023    For SALE: state-action representation learning for deep reinforcement learning

The block holds the encoder f, then the head:

    z = f(s) = AvgL1Norm(W ELU(W ELU(W s)))                 f has the hidden widths, and E outputs
    out = W ReLU(W ReLU(W [AvgL1Norm(W s), z]))             the action is its tanh

AvgL1Norm divides a row by the mean of its absolute values. `sale_module.py` is the same network in torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.layouts import AVG_L1_EPS, ParameterReader, parameter_count

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SaleNetwork:
    """Factory of the actor as a module, and its forward pass in NumPy.

    Attributes:
        hidden: widths of the hidden layers, of the encoder as of the head.
        embedding: E, values of an embedding.
    """

    hidden: tuple[int, ...]
    embedding: int

    def __call__(self, inputs: int, outputs: int) -> Any:
        """Return a `SaleActor`. Imports torch."""
        from asyncrl.acting.sale_module import SaleActor

        return SaleActor(inputs, outputs, self.hidden, self.embedding)

    @property
    def numpy(self) -> SaleNetwork:
        """The network in NumPy: this object."""
        return self

    def encoder_sizes(self, inputs: int) -> tuple[int, ...]:
        """Widths of f."""
        return (inputs, *self.hidden, self.embedding)

    def head_sizes(self, outputs: int) -> tuple[int, ...]:
        """Widths of the head behind its first layer, whose output the embedding follows."""
        return (self.hidden[0] + self.embedding, *self.hidden, outputs)

    def parameter_count(self, inputs: int, outputs: int) -> int:
        """Length of the block."""
        sizes = self.encoder_sizes(inputs), (inputs, self.hidden[0]), self.head_sizes(outputs)
        return sum(map(parameter_count, sizes))

    def noise_count(self, inputs: int, outputs: int) -> int:
        """0: no layer has noise."""
        return 0

    def forward(self, x: Floats, flat: Floats, outputs: int, noise: Floats | None = None) -> Floats:
        """Values of the head `[R, outputs]` for rows `x` `[R, inputs]`; a fresh array. `noise` is not used."""
        left, inputs = ParameterReader(flat), x.shape[1]
        z = avg_l1_norm(_layers(x, left, self.encoder_sizes(inputs), elu=True))
        own = avg_l1_norm(_layers(x, left, (inputs, self.hidden[0]), elu=False))
        return _layers(np.concatenate((own, z), axis=1), left, self.head_sizes(outputs), elu=False)


def avg_l1_norm(x: Floats) -> Floats:
    """Divide the rows of `x` by the mean of their absolute values, in place; return it."""
    x /= np.maximum(np.abs(x).mean(axis=1, keepdims=True), np.float32(AVG_L1_EPS))
    return x


def _layers(x: Floats, left: ParameterReader, sizes: Sequence[int], elu: bool) -> Floats:
    """Linear layers of these widths with ELU or ReLU between them; a fresh array."""
    for i, (inputs, width) in enumerate(itertools.pairwise(sizes)):
        if i > 0:
            x = np.where(x > 0, x, np.expm1(np.minimum(x, 0))) if elu else np.maximum(x, 0, out=x)
        x = x @ left.take(width, inputs).T
        x += left.take(width)
    return x
