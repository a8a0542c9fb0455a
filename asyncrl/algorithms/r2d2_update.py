"""Update of R2D2: passes of both networks over sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.q_learning import QLearning, QLoss
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.sequence_pass import SequencePass, SequenceRows, module_of, outputs_without_memory
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import EnvSpec, SequenceBatch, SequenceShape


class R2D2Update(QLearningUpdate):
    """Learner of recurrent action values. Implements `SequenceUpdater`. See `QLearningUpdate`.

    Args:
        config, spec, device, seed, loss, values: see `QLearningUpdate`.
        shape: shape of the sequences.
    """

    def __init__(
        self,
        config: QLearning,
        spec: EnvSpec,
        device: str,
        seed: int,
        *,
        shape: SequenceShape,
        loss: Callable[..., QLoss],
        values: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(config, spec, device, seed, loss=loss, values=values)
        self._shape = shape

    def _staged(self, size: int) -> StagedSequences:
        return StagedSequences(
            size,
            self._shape,
            self.spec,
            self.device,
            reward_scale=self.reward_scale,
            bounds=self.bounds,
            statistics=self.statistics,
        )

    def _make_buffers(self, batch: Any) -> Any:
        online = SequencePass(module_of(self._online), batch, self._gradient, self.precision)
        target = SequencePass(module_of(self._target), batch, None, self.precision)
        return SequenceBuffers(batch, online, target, self.config.double)

    @torch.no_grad()
    def action_values(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[R, A]` of `obs` `[R, inputs]`, with zero recurrent state; for tests and diagnostics."""
        assert self.layout.cell is not None
        out = outputs_without_memory(self._online, obs, self.layout.cell.state_size)
        values: NDArray[np.float32] = self._values(self._by_action(out)).cpu().numpy()
        return values


class StagedSequences(SequenceRows):
    """Arrays of a `SequenceBatch` as tensors for B sequences; rows are ordered sequence by sequence.

    Args:
        size, shape, spec, device, statistics: see `SequenceRows`.
        reward_scale: factor on the rewards.
        bounds: bounds of bootstrapped values, extended by every batch.

    Attributes:
        reward, discount, weight, trained: `[B T, 1]` float32; weight is 0 in rows that are not trained on, and divided
            by B T elsewhere.
        low, high: scalars, the bounds, including this batch.
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
    ) -> None:
        super().__init__(size, shape, spec, device, statistics)
        self._reward_scale, self._bounds = reward_scale, bounds
        self._returned = np.empty(size, np.float32)

    def stage(self, batch: SequenceBatch) -> None:
        """Copy the batch; no reference to it is kept."""
        super().stage(batch)
        reward = self._reward_scale.scaled(batch.reward).reshape(-1)
        self._bounds.extend(reward, batch.discount.reshape(-1))
        self.low, self.high = self._on_device(self._bounds.values)
        self.reward, self.discount = self._column(reward), self._column(batch.discount)
        self.trained = self._column(batch.trained.astype(np.float32))
        self.weight = self._column(batch.trained * (batch.weight / np.float32(batch.trained.size))[:, None])

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        np.copyto(self._returned, values.view(-1).cpu().numpy())
        return self._returned


class SequenceBuffers:
    """Buffers of an update for one number of sequences, as `TransitionBuffers`."""

    def __init__(
        self, batch: StagedSequences, online: SequencePass, target: SequencePass, double: bool
    ) -> None:
        self.batch, self.stage, self.online, self.target = batch, batch.stage, online, target
        self._double = double
        self.grad = self.priorities = torch.empty(0)

    def loss_arguments(self) -> tuple[Any, ...]:
        """Outputs for the trained rows; target outputs and selecting outputs for the bootstrap rows; the batch."""
        batch = self.batch
        next_out = self.target.output.index_select(0, batch.bootstrap)
        selector = self.online.output.index_select(0, batch.bootstrap) if self._double else next_out
        return self.online.trained, next_out, selector, batch
