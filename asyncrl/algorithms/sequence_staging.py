"""Batch of sequences on the learner's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import NetworkInputs
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.recurrent import Pieces, cut_pieces
from asyncrl.sequences import SequenceBatch, SequenceShape


class StagedSequences:
    """Arrays of a `SequenceBatch` as tensors for B sequences; rows are ordered sequence by sequence.

    Args:
        size: B.
        shape: shape of the sequences.
        spec: the environment. Observations in bytes are scaled to 0..1.
        device: device of the tensors.
        reward_scale: factor on the rewards.
        bounds: bounds of bootstrapped values, extended by every batch.
        statistics: observation statistics, updated by every batch; None without normalisation.

    Attributes:
        size: B.
        state: `[B, state_size]`, the stored state.
        burn_in: `[B, burn_in, inputs]`, observations before the trained rows.
        burn_in_begins: bool `[B, burn_in]` on the host, True where an episode begins.
        x: `[B (T + n), inputs]`, observations of the trained rows and of the n rows used only to bootstrap.
        pieces: pieces of `x`.
        bootstrap: `[B T]` int64, row of `x` from whose value each row bootstraps.
        action: `[B T, 1]` int64.
        reward, discount, weight, trained: `[B T, 1]` float32; weight is 0 in rows that are not trained on, and divided
            by B T elsewhere.
        low, high: scalars, the bounds, including this batch.
        next_mask: `[B T, A]` bool, actions that are allowed in the bootstrap rows; None without action masks.
    """

    state: Tensor
    burn_in: Tensor
    burn_in_begins: NDArray[np.bool_]
    x: Tensor
    pieces: Pieces
    bootstrap: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    weight: Tensor
    trained: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        size: int,
        shape: SequenceShape,
        spec: EnvSpec,
        device: torch.device,
        reward_scale: float,
        bounds: ValueBounds,
        statistics: ObservationStatistics | None,
    ) -> None:
        self.size, self._shape, self._device = size, shape, device
        self._reward_scale, self._bounds, self._statistics = np.float32(reward_scale), bounds, statistics
        self._inputs, self._mask = NetworkInputs(spec), mask_reader(spec)
        self._rows = np.empty((size * shape.rows, spec.observation_values), np.float32)
        self._first = np.arange(size)[:, None] * (shape.rows - shape.burn_in) - shape.burn_in
        self._returned = np.empty(size, np.float32)
        self.next_mask: Tensor | None = None

    def stage(self, batch: SequenceBatch) -> None:
        """Copy the batch; no reference to it is kept."""
        burn_in = self._shape.burn_in
        seen, normalisation = self._inputs.rows(batch.obs, self._rows), None
        if self._statistics is not None:
            self._statistics.observe(seen)
            normalisation = self._statistics.normalisation
        self._inputs.fill(seen, self._rows, normalisation)
        rows = self._rows.reshape(self.size, self._shape.rows, -1)
        self.burn_in, self.x = self._on_device(rows[:, :burn_in]), self._on_device(rows[:, burn_in:])
        self.x = self.x.flatten(0, 1)
        self.state = self._on_device(batch.extras["state"])
        self.burn_in_begins = batch.begins[:, :burn_in].copy()
        self.pieces = cut_pieces(batch.begins[:, burn_in:], device=self._device)
        bootstrap = (self._first + batch.bootstrap).reshape(-1)
        self.bootstrap = self._on_device(bootstrap)
        if self._mask is not None:
            obs = batch.obs[:, burn_in:].reshape(-1, *batch.obs.shape[2:])
            self.next_mask = self._on_device(self._mask(obs[bootstrap]))
        self.action = self._column(batch.action)
        reward = (batch.reward * self._reward_scale).reshape(-1)
        self._bounds.extend(reward, batch.discount.reshape(-1))
        self.low, self.high = self._on_device(self._bounds.values)
        self.reward, self.discount = self._column(reward), self._column(batch.discount)
        self.trained = self._column(batch.trained.astype(np.float32))
        self.weight = self._column(batch.trained * (batch.weight / np.float32(batch.trained.size))[:, None])

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _column(self, array: NDArray[Any]) -> Tensor:
        return self._on_device(array.reshape(-1, 1))

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        np.copyto(self._returned, values.view(-1).cpu().numpy())
        return self._returned
