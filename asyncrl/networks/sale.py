"""The other networks of TD7 as torch modules: the encoder of states and actions, and the critics.

Fujimoto et al. 2023    For SALE: state-action representation learning for deep reinforcement learning
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asyncrl.acting.sale_module import Beside, StateEncoder, perceptron


class PairEncoder(nn.Module):
    """g: the embedding of a state and an action, which predicts that of the next state; `[R, E]`."""

    def __init__(self, actions: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.layers = perceptron((embedding + actions, *hidden, embedding), nn.ELU)

    def forward(self, z: Tensor, action: Tensor) -> Tensor:
        """Embeddings `[R, E]`; `z` `[R, E]` are those of the states."""
        pair: Tensor = self.layers(torch.cat((z, action), dim=1))
        return pair


class Encoders(nn.Module):
    """The encoders f (`states`) and g (`pairs`)."""

    def __init__(self, inputs: int, actions: int, hidden: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.states = StateEncoder(inputs, hidden, embedding)
        self.pairs = PairEncoder(actions, hidden, embedding)


class SaleNetworks(nn.Module):
    """All networks of a learner: head of the actor, encoders, critics, in this order in a flat vector.

    Args:
        inputs, actions: values of an observation and of an action.
        hidden, embedding: widths of the hidden layers of encoders and head, and of an embedding.
        critic_hidden: widths of the critics' hidden layers.
        copies: number of critics.
    """

    def __init__(
        self,
        inputs: int,
        actions: int,
        hidden: tuple[int, ...],
        critic_hidden: tuple[int, ...],
        embedding: int,
        copies: int,
    ) -> None:
        super().__init__()
        self.head = Beside(inputs, actions, hidden, embedding, nn.ReLU)
        self.encoders = Encoders(inputs, actions, hidden, embedding)
        self.critics = nn.ModuleList(
            Beside(inputs + actions, 1, critic_hidden, 2 * embedding, nn.ELU) for _ in range(copies)
        )

    def values(self, x: Tensor, z: Tensor, pair: Tensor) -> Tensor:
        """Values `[C, R, 1]` of all critics.

        Args:
            x: `[R, inputs + d]`, observations, and behind them actions.
            z: embeddings of the observations `[R, E]`.
            pair: embeddings g(z, a) `[R, E]`.
        """
        return torch.stack([critic(x, pair, z) for critic in self.critics])
