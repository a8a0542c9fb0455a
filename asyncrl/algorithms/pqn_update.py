"""Update of PQN: its network, the rows of an iteration, and RAdam."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.policies import QLayout
from asyncrl.algorithms.on_policy_update import OnPolicyUpdate
from asyncrl.algorithms.rollout import Part, Rollout, RowBatch, forbid
from asyncrl.algorithms.segment_networks import SegmentNetworks
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.optimizer import BETA2

_FIRST_RECTIFIED = 6
"""First step at which RAdam uses its second moment, for the usual beta2 of 0.999."""


class PQNUpdate(OnPolicyUpdate):
    """Learner of PQN. See `OnPolicyUpdate`."""

    def _make_nets(self, config: Any, spec: EnvSpec, device: str, seed: int) -> ActionValues:
        return ActionValues(config, spec, device, seed)

    def _make_rollout(self, streams: int, length: int) -> ActionValueRollout:
        assert isinstance(self.nets, ActionValues)
        return ActionValueRollout(self.nets, streams, length, self.config.rollout_columns)


def rectification(step: int) -> float:
    """Factor of RAdam on the learning rate of step 1, 2, ... of Adam (Liu et al. 2020, algorithm 2).

    The first five steps have the factor of the sixth, where RAdam uses the first moment alone: they are as small.
    """
    step = max(step, _FIRST_RECTIFIED)
    longest = 2.0 / (1.0 - BETA2) - 1.0
    decay = BETA2**step
    rho = longest - 2.0 * step * decay / (1.0 - decay)
    return math.sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))


class ActionValues(SegmentNetworks):
    """One network of action values, without a target network. See `SegmentNetworks`.

    Args:
        config: hyper-parameters, a `PQN`.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights, the same on every device: orthogonal with gain sqrt(2), in the head with 1.
    """

    STATE = ("_network", "_steps", *SegmentNetworks.STATE)

    def __init__(self, config: Any, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        layout: QLayout = config.layout(spec)
        architecture = Architecture(
            layout.sizes, network=layout.network, seed=seed, layer_norm=layout.layer_norm
        )
        start = architecture.initial(torch.Generator().manual_seed(seed), head_gain=1.0)
        super().__init__(config, spec, layout, (start,), device)
        self._network = architecture.on(self.parameters)
        self._steps = 0
        self.vector = self._make_vector(self._network.buffers())

    def make_pass(self, rows: int, gradient: bool) -> ActionValuePass:
        """See `SegmentNetworks`."""
        network = self._network if gradient else self._network.evaluated()
        return ActionValuePass(network, rows, self.layout.inputs, self.gradient if gradient else None)

    def action_buffer(self, rows: int) -> Tensor:
        """See `SegmentNetworks`."""
        return torch.zeros(rows, dtype=torch.int64)

    @property
    def outputs(self) -> int:
        """See `SegmentNetworks`."""
        actions: int = self.layout.num_actions
        return actions

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next step of RAdam, and count it."""
        self._steps += 1
        super().set_learning_rate(learning_rate * rectification(self._steps))


class ActionValuePass:
    """Pass of the network over R rows.

    Attributes:
        x: `[R, inputs]`, written by the caller.
    """

    def __init__(self, network: Network, rows: int, inputs: int, gradient: Tensor | None) -> None:
        self.x = torch.zeros(rows, inputs, device=network.flat.device)
        self._pass = network.make_pass(self.x, gradient, weight_rows=0 if gradient is None else rows)

    def forward(self) -> Tensor:
        """The action values `[R, A]`, without a graph; valid until the next call."""
        return self._pass.forward()

    def backward(self, grad_q: Tensor) -> None:
        """Fill the gradient, given the loss's gradient at the values of the last `forward`."""
        self._pass.backward(grad_q)


class ActionValueRollout(Rollout):
    """Rows of an iteration of PQN. See `Rollout`."""

    def greatest_values(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Greatest values of allowed actions, `[S, T]`, and `[S]` of the observations after the last rows.

        Waits for the device. The arrays are on the host and overwritten by the next evaluation.
        """
        for own in self._chunks():
            q = self._prepared(own).forward()[: self.action[own].shape[0]]
            self._value[own] = forbid(q, self.mask, own).max(dim=1).values.cpu()
        values, count = self._value.numpy(), self.flags.size
        return values[:count].reshape(self.shape), values[count:]

    def minibatch(self, size: int) -> ActionValueBatch:
        """See `Rollout`."""
        return ActionValueBatch(self._nets, self, size)


class ActionValueBatch(RowBatch):
    """Buffers of a gradient step of PQN. See `RowBatch`.

    Attributes:
        q: `[R, A]`, action values at the last `forward`.
    """

    q: Tensor

    def forward(self, rollout: Rollout, part: Part, rows: Tensor) -> None:
        """See `RowBatch`."""
        super().forward(rollout, part, rows)
        self.q = self._pass.forward()

    def backward(self, gradients: Tensor) -> None:
        """Fill the network's gradient, given the loss's gradient `[R, A]` at `q`."""
        self._pass.backward(gradients)
