"""The actor of TD7 as a torch module. `sale.py` is the same network in NumPy.

Fujimoto et al. 2023    For SALE: state-action representation learning for deep reinforcement learning
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asyncrl.acting.layouts import AVG_L1_EPS


def avg_l1_norm(x: Tensor) -> Tensor:
    """Divide the rows of `x` `[R, n]` by the mean of their absolute values."""
    return x / x.abs().mean(dim=-1, keepdim=True).clamp(min=AVG_L1_EPS)


def perceptron(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers of these widths with activations between them."""
    layers: list[nn.Module] = []
    for inputs, width in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, width), activation()]
    return nn.Sequential(*layers[:-1])


class StateEncoder(nn.Module):
    """f: the embedding z of a state, `[R, inputs]` to `[R, E]`."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.layers = perceptron((inputs, *hidden, embedding), nn.ELU)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings `[R, E]`."""
        return avg_l1_norm(self.layers(x))


class Beside(nn.Module):
    """A perceptron over [AvgL1Norm(W x), embeddings]: head of the actor, or a critic.

    Args:
        inputs: values of a row x.
        outputs: values of the last layer.
        hidden: widths of the hidden layers; the first is that of W as well.
        embeddings: values of all embeddings.
        activation: activation between the layers.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: tuple[int, ...],
        embeddings: int,
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden[0])
        self.layers = perceptron((hidden[0] + embeddings, *hidden, outputs), activation)

    def forward(self, x: Tensor, *embeddings: Tensor) -> Tensor:
        """Outputs `[R, outputs]`."""
        out: Tensor = self.layers(torch.cat((avg_l1_norm(self.first(x)), *embeddings), dim=1))
        return out


class SaleActor(nn.Module):
    """The network that acts: encoder and head, `[R, inputs]` to `[R, outputs]`; the action is tanh of the outputs."""

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.encoder = StateEncoder(inputs, hidden, embedding)
        self.head = Beside(inputs, outputs, hidden, embedding, nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for rows of observations."""
        out: Tensor = self.head(x, self.encoder(x))
        return out
