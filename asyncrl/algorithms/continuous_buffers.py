"""Inputs and results of an update of actor and critics, and the description of their networks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from asyncrl.acting.box import BoxLayout
from asyncrl.acting.modules import NetworkFactory
from asyncrl.algorithms.continuous import CriticLoss
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import Batch


class Shape(NamedTuple):
    """Networks of an algorithm.

    Attributes:
        num_critics: C.
        critic_outputs: number of outputs of a critic.
        has_targets: whether there are target critics.
        has_target_policy: whether there is a target policy.
        networks: factories of the policy and of a critic that replace the record's, or None.
    """

    num_critics: int
    critic_outputs: int = 1
    has_targets: bool = True
    has_target_policy: bool = False
    networks: tuple[NetworkFactory | None, NetworkFactory | None] | None = None


class Learned(NamedTuple):
    """Results of an update other than the gradient.

    Attributes:
        critic: loss and errors of the critics.
        q: values of the batch's actions, for the metrics.
        actor_loss: scalar; None if the actor was not updated.
    """

    critic: CriticLoss
    q: Tensor
    actor_loss: Tensor | None = None


class Split:
    """Views of consecutive parts of a network's output, cached while the output is the same tensor.

    Args:
        size: number of rows of a part.
        dim: axis of the rows.
    """

    def __init__(self, size: int, dim: int) -> None:
        self._size, self._dim = size, dim
        self._of: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def __call__(self, output: Tensor) -> tuple[Tensor, ...]:
        """The parts of `output`."""
        if output is not self._of:
            self._of, self._parts = output, output.split(self._size, self._dim)
        return self._parts


class Buffers:
    """Inputs of an update for one batch size; an algorithm adds its passes.

    Args:
        batch: batch on the device.
        layout: layout of the actor.

    Attributes:
        size: B.
        batch: as given.
        obs, next_obs: `[B, inputs]`, views of the batch.
        x: `[3 B, inputs + d]`, inputs of the critics: (obs, action), (obs, own action), (next_obs, own action).
        own_action, next_action: `[B, d]`, views of the last columns of `x`.
    """

    def __init__(self, batch: StagedBatch, layout: BoxLayout) -> None:
        self.batch, self.size = batch, batch.size
        self.obs, self.next_obs = batch.rows.split(self.size)
        inputs = layout.inputs
        self.x = batch.rows.new_zeros(3 * self.size, inputs + layout.action_values)
        taken, self.own_action, self.next_action = self.x[:, inputs:].split(self.size)
        self._copies = [
            (self.x[: self.size, :inputs], self.obs),
            (self.x[self.size :, :inputs], batch.rows),
            (taken, batch.action),
        ]

    def stage(self, batch: Batch) -> None:
        """Copy the batch; no reference to it is kept."""
        self.batch.stage(batch)
        for into, source in self._copies:
            into.copy_(source)
