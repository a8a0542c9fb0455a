"""Mixers of VDN and QMIX: modules from the agents' action values and the state to the value of the joint action."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SumMixer(nn.Module):
    """Sum of the agents' values (Sunehag et al. 2018, eq. 3); it has no parameters and ignores the state."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Joint values `[B, 1]` of the agents' values `[B, N]`."""
        return q.sum(dim=1, keepdim=True)


class MonotoneMixer(nn.Module):
    """Mixer of QMIX (Rashid et al. 2018, section 4.2 and figure 2).

        h     = ELU(|W_1(s)|^T q + b_1(s))
        Q_tot = |w_2(s)|^T h + V(s)

    The absolute values of the weights and the monotone ELU make Q_tot monotone in every agent's value. W_1, w_2 and b_1
    are hypernetworks of the state s; V is a network with one hidden layer.

    Args:
        agents: N.
        state_size: number of values of s.
        size: M, width of h.
        hypernet_size: width of a hidden layer of W_1 and w_2; None makes them linear.
    """

    def __init__(self, agents: int, state_size: int, size: int, hypernet_size: int | None) -> None:
        super().__init__()
        self._shape = agents, size
        self.w_1 = _hypernet(state_size, agents * size, hypernet_size)
        self.b_1 = nn.Linear(state_size, size)
        self.w_2 = _hypernet(state_size, size, hypernet_size)
        self.v = nn.Sequential(nn.Linear(state_size, size), nn.ReLU(), nn.Linear(size, 1))

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Joint values `[B, 1]` of the agents' values `[B, N]` in states `[B, state_size]`."""
        w_1 = self.w_1(state).abs().unflatten(1, self._shape)
        hidden = F.elu((q.unsqueeze(2) * w_1).sum(dim=1) + self.b_1(state))
        mixed: Tensor = (hidden * self.w_2(state).abs()).sum(dim=1, keepdim=True) + self.v(state)
        return mixed


def _hypernet(inputs: int, outputs: int, hidden: int | None) -> nn.Module:
    if hidden is None:
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
