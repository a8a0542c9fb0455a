"""Heads of action-value perceptrons: views of their weights, and the mask of a dueling head."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.acting.policies import QLayout
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.noisy import NoisyMLP


def heads_of(layout: QLayout, vector: Tensor) -> list[Tensor]:
    """Views of the head's weights in a flat vector and, for a noisy network, of their standard deviations."""
    if not layout.noisy:
        return [FlatMLP(layout.sizes, vector).head]
    net = NoisyMLP(layout.sizes, vector)
    return [net.mean.head, net.sigma.head]


def dueling_mask(layout: QLayout, stream: int) -> Tensor:
    """Mask `[outputs, inputs]` of a dueling head: value from the first stream, advantages from the second."""
    mask = torch.ones(layout.sizes[-1], layout.sizes[-2])
    mask[: layout.atoms, stream:] = 0.0
    mask[layout.atoms :, :stream] = 0.0
    return mask


def write_mean_head(layout: QLayout, flat: Tensor, acting: FlatMLP) -> None:
    """Copy the network `layout` in `flat` into `acting`, which outputs the mean of each action's atoms."""
    own, atoms = FlatMLP(layout.sizes, flat), layout.atoms
    count = acting.flat.numel() - acting.head.numel() - acting.head_bias.numel()
    acting.flat[:count].copy_(own.flat[:count])
    acting.head.copy_(own.head.unflatten(1, (-1, atoms)).mean(dim=2))
    acting.head_bias.copy_(own.head_bias.unflatten(2, (-1, atoms)).mean(dim=3))
