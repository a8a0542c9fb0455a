"""Heads of action-value perceptrons: where their weights lie, and the mask of a dueling one."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.acting.policies import QLayout
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.noisy import NoisyMLP


def heads_of(layout: QLayout, vector: Tensor) -> list[Tensor]:
    """Views of the head's weights in a flat vector, and of their standard deviations in a noisy network's."""
    if not layout.noisy:
        return [FlatMLP(layout.sizes, vector).head]
    net = NoisyMLP(layout.sizes, vector)
    return [net.mean.head, net.sigma.head]


def dueling_mask(layout: QLayout, stream: int) -> Tensor:
    """Ones where a dueling head `[outputs, inputs]` has weights: value by one stream, advantages by the other."""
    mask = torch.ones(layout.sizes[-1], layout.sizes[-2])
    mask[: layout.atoms, stream:] = 0.0
    mask[layout.atoms :, :stream] = 0.0
    return mask


def write_mean_head(layout: QLayout, flat: Tensor, acting: FlatMLP) -> None:
    """Copy the network of `layout` in `flat` into `acting`, whose outputs are the means of the atoms of each action."""
    own, atoms = FlatMLP(layout.sizes, flat), layout.atoms
    count = acting.flat.numel() - acting.head.numel() - acting.head_bias.numel()
    acting.flat[:count].copy_(own.flat[:count])
    acting.head.copy_(own.head.unflatten(1, (-1, atoms)).mean(dim=2))
    acting.head_bias.copy_(own.head_bias.unflatten(2, (-1, atoms)).mean(dim=3))
