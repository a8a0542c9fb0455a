"""Joint transitions of a team on the learner's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.central_state import state_values
from asyncrl.algorithms.normalization import NormalisingMoments, ObservationStatistics
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import EnvSpec, JointBatch


def of_state(config: Any, spec: EnvSpec) -> tuple[int, NormalisingMoments | None]:
    """Arguments `state_values` and `state_statistics` of a `JointStage` for an algorithm's options."""
    values = state_values(config, spec)
    return values, NormalisingMoments(values) if values and config.normalize_observations else None


class JointStage:
    """Arrays of a `JointBatch` as tensors on the device, for one batch size.

    Args:
        size: B.
        spec: the environment of N agents.
        device: device of the tensors.
        reward_scale: factor on the rewards.
        bounds, statistics: see `StagedBatch`; the bounds are those of the values that are learned.
        scaling: see `StagedBatch`.
        state_values: values of the environment's state; 0 takes the observations of all agents in its place.
        state_statistics: its statistics, updated by every batch; None without normalisation.

    Attributes:
        size: B.
        rows: `[2 B N, inputs]`: obs of all agents, then next_obs; agents of an item are consecutive.
        state, next_state: `[B, state_values]`, or `[B, N inputs]`, views of `rows`.
        action: `[B N, 1]` int64, or `[B N, d]` float32 in -1..1.
        acts, goes_on: `[B, N]` float32, 1 for agents that act in s, and for those whose value in s' is bootstrapped.
        reward: `[B, 1]`, sum of the agents' n-step rewards.
        discount: `[B, 1]`, factor of the joint value of s': the smallest of the agents that go on, which is gamma^k of
            the environment's k steps; 0 if none goes on.
        weight: `[B, 1]`, divided by B.
        low, high: scalars, the bounds, including this batch.
        next_mask: `[B N, A]` bool, actions that are allowed at next_obs; None without action masks.
    """

    def __init__(
        self,
        size: int,
        spec: EnvSpec,
        device: torch.device,
        reward_scale: float,
        bounds: ValueBounds,
        statistics: ObservationStatistics | None,
        scaling: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        state_values: int = 0,
        state_statistics: NormalisingMoments | None = None,
    ) -> None:
        self.size, self._device, self._bounds = size, device, bounds
        self._reward_scale = np.float32(reward_scale)
        self._each = StagedBatch(size * spec.num_agents, spec, device, scaling, statistics=statistics)
        self.rows, self.action = self._each.rows, self._each.action
        self._has_state, self._state_statistics = state_values > 0, state_statistics
        observed = self.rows.view(2, size, -1)
        self.state, self.next_state = (
            torch.zeros(2, size, state_values, device=device) if state_values else observed
        )
        self._returned = np.empty(size, np.float32)

    @property
    def next_mask(self) -> Tensor | None:
        """See the class docstring."""
        return self._each.next_mask

    def stage(self, batch: JointBatch) -> None:
        """Copy the batch; no reference to it is kept."""
        self._each.stage(batch.by_agent())
        if self._has_state:
            self._stage_states(batch)
        reward, discount = self._returns(batch)
        self._bounds.extend(reward.reshape(-1), discount.reshape(-1))
        self.acts, self.goes_on = self._on_device(batch.trained), self._on_device(batch.discount > 0)
        self.low, self.high = self._on_device(self._bounds.values)
        self.reward, self.discount = self._on_device(reward), self._on_device(discount)
        self.weight = self._on_device(batch.weight[:, None] / np.float32(self.size))

    def _stage_states(self, batch: JointBatch) -> None:
        statistics = self._state_statistics
        if statistics is not None:
            statistics.add(batch.state)
        for to, states in ((self.state, batch.state), (self.next_state, batch.next_state)):
            to.copy_(torch.from_numpy(states if statistics is None else statistics.normalised(states)))

    def _returns(self, batch: JointBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """`reward` and `discount`."""
        goes_on = batch.discount > 0
        discount = np.where(goes_on, batch.discount, np.float32(np.inf)).min(axis=1, keepdims=True)
        discount[~goes_on.any(axis=1)] = 0.0
        return batch.reward.sum(axis=1, keepdims=True) * self._reward_scale, discount

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self._device)

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Absolute values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        np.copyto(self._returned, values.abs().view(-1).cpu().numpy())
        return self._returned


class AgentsStage(JointStage):
    """Joint transitions of agents that are paid each for themselves. See `JointStage`.

    Attributes:
        reward, discount: `[B, N]`, n-step reward of each agent, and factor of its own value of s'.
        mask: `[B N, A]` bool, actions that are allowed at obs; None without action masks.
    """

    mask: Tensor | None = None

    def __init__(self, size: int, spec: EnvSpec, *arguments: Any, **options: Any) -> None:
        super().__init__(size, spec, *arguments, **options)
        self._mask = mask_reader(spec)

    def stage(self, batch: JointBatch) -> None:
        """See `JointStage.stage`."""
        super().stage(batch)
        if self._mask is not None:
            allowed = self._mask(batch.obs.reshape(-1, *batch.obs.shape[2:]))
            self.mask = torch.from_numpy(allowed).to(self._device)

    def _returns(self, batch: JointBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return batch.reward * self._reward_scale, batch.discount
