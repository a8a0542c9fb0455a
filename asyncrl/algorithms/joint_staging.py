"""Joint transitions and joint sequences of a team on the learner's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.central_state import state_values
from asyncrl.algorithms.normalization import NormalisingMoments, ObservationStatistics
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.sequence_pass import SequenceRows
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import EnvSpec, JointBatch, JointSequenceBatch, SequenceShape


def of_state(config: Any, spec: EnvSpec) -> tuple[int, NormalisingMoments | None]:
    """Arguments `state_values` and `state_statistics` of a `JointStage` for an algorithm's options."""
    values = state_values(config, spec)
    return values, NormalisingMoments(values) if values and config.normalize_observations else None


def team_returns(
    reward: NDArray[np.float32], discount: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return and discount of the team, `[B, 1, ...]`, of those of its agents, `[B, N, ...]`.

    The return is the sum of the agents'. The discount is the smallest of the agents that go on, which is gamma^k of the
    environment's k steps, and 0 if none goes on.
    """
    goes_on = discount > 0
    common = np.where(goes_on, discount, np.float32(np.inf)).min(axis=1, keepdims=True)
    common[~goes_on.any(axis=1, keepdims=True)] = 0.0
    return reward.sum(axis=1, keepdims=True), common


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
        discount: `[B, 1]`, factor of the joint value of s'; see `team_returns`.
        weight: `[B, 1]`, divided by B.
        low, high: scalars, the bounds, including this batch.
        next_mask: `[B N, A]` bool, actions that are allowed at next_obs; None without action masks.
    """

    def __init__(
        self,
        size: int,
        spec: EnvSpec,
        device: torch.device,
        reward_scale: RewardFactor,
        bounds: ValueBounds,
        statistics: ObservationStatistics | None,
        scaling: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        state_values: int = 0,
        state_statistics: NormalisingMoments | None = None,
    ) -> None:
        self.size, self._device, self._bounds = size, device, bounds
        self._reward_scale = reward_scale
        self._each = StagedBatch(size * spec.num_agents, spec, device, scaling, statistics=statistics)
        self.rows, self.action = self._each.rows, self._each.action
        self._has_state, self._state_statistics = state_values > 0, state_statistics
        observed = self.rows.view(2, size, -1)
        self.state, self.next_state = (
            torch.zeros(2, size, state_values, device=device) if state_values else observed
        )
        self._returned = np.empty(size, np.float32)

    def by_item(self, values: Tensor) -> Tensor:
        """Values `[B, N]` of those of all agents' rows, `[B N, 1]`."""
        return values.view(self.size, -1)

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
        reward, discount = team_returns(batch.reward, batch.discount)
        return self._reward_scale.scaled(reward), discount

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
        return self._reward_scale.scaled(batch.reward), batch.discount


class JointSequenceStage:
    """Arrays of a `JointSequenceBatch` as tensors on the device, for one batch size.

    The sequences of all agents are B N sequences to the agents' network (`rows`). To mixer and loss an item is a row of
    all agents of a sequence: B T of them, sequence by sequence, T trained rows of each.

    Args:
        size: B.
        shape: shape of the sequences.
        spec, device, reward_scale, bounds, statistics, state_values, state_statistics: see `JointStage`.

    Attributes:
        size: B.
        rows: the B N sequences; agents of an item are consecutive.
        state, next_state: `[B T, state_values]`, or `[B T, N inputs]`, see `JointStage`.
        action: `[B N T, 1]` int64, in the order of `rows`.
        acts, goes_on: `[B T, N]` float32, see `JointStage`.
        reward, discount: `[B T, 1]`, see `JointStage`; 0 in rows that are not trained on.
        trained: `[B T, 1]` float32, 1 in rows in which an agent acts, else 0.
        weight: `[B T, 1]`, 0 in rows that are not trained on, and divided by B T elsewhere.
        low, high: scalars, the bounds, including this batch.
        next_mask: `[B N T, A]` bool, actions that are allowed in the bootstrap rows; None without action masks.
    """

    def __init__(
        self,
        size: int,
        shape: SequenceShape,
        spec: EnvSpec,
        device: torch.device,
        reward_scale: RewardFactor,
        bounds: ValueBounds,
        statistics: ObservationStatistics | None,
        state_values: int = 0,
        state_statistics: NormalisingMoments | None = None,
    ) -> None:
        self.size, self._device, self._bounds = size, device, bounds
        self._shape, self._agents = shape, spec.num_agents
        self._reward_scale = reward_scale
        self._has_state, self._state_statistics = state_values > 0, state_statistics
        self.rows = SequenceRows(size * spec.num_agents, shape, spec, device, statistics)
        self._returned = np.empty(size, np.float32)

    @property
    def action(self) -> Tensor:
        """See the class docstring."""
        return self.rows.action

    @property
    def next_mask(self) -> Tensor | None:
        """See the class docstring."""
        return self.rows.next_mask

    def by_item(self, values: Tensor) -> Tensor:
        """Values `[B T, N]`, or `[B T, N V]`, of those of all agents' trained rows, `[B N T, V]`."""
        of_row = values.view(self.size, self._agents, self._shape.length, -1).transpose(1, 2)
        return of_row.reshape(self.size * self._shape.length, -1)

    def stage(self, batch: JointSequenceBatch) -> None:
        """Copy the batch; no reference to it is kept."""
        self.rows.stage(batch.by_agent())
        if self._has_state:
            self._stage_states(batch)
        else:
            of_sequence = self.rows.x.unflatten(0, (self.rows.size, -1))
            self.state = self.by_item(of_sequence[:, : self._shape.length].flatten(0, 1))
            self.next_state = self.by_item(self.rows.x.index_select(0, self.rows.bootstrap))
        reward, discount = team_returns(batch.reward, batch.discount)
        reward = self._reward_scale.scaled(reward)
        self._bounds.extend(reward.reshape(-1), discount.reshape(-1))
        self.low, self.high = self._on_device(self._bounds.values)
        self.reward, self.discount = self._column(reward), self._column(discount)
        acts, goes_on = self._on_device(batch.trained), self._on_device(batch.discount > 0)
        self.acts, self.goes_on = self.by_item(acts), self.by_item(goes_on)
        trained: NDArray[np.bool_] = np.any(batch.trained, axis=1)
        self.trained = self._column(trained)
        self.weight = self._column(trained * (batch.weight / np.float32(trained.size))[:, None])

    def _stage_states(self, batch: JointSequenceBatch) -> None:
        """Fill `state` and `next_state`: the latter is that of the row to which the longest return extends."""
        states, statistics = batch.state, self._state_statistics
        if statistics is not None:
            flat = states.reshape(-1, states.shape[2])
            statistics.add(flat)
            states = statistics.normalised(flat).reshape(states.shape)
        first = self._shape.burn_in
        own = states[:, first : first + self._shape.length]
        after = np.take_along_axis(states, batch.bootstrap.max(axis=1)[:, :, None], axis=1)
        self.state, self.next_state = (self._on_device(part).flatten(0, 1) for part in (own, after))

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self._device)

    def _column(self, array: NDArray[Any]) -> Tensor:
        return self._on_device(array.reshape(-1, 1))

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        np.copyto(self._returned, values.view(-1).cpu().numpy())
        return self._returned
