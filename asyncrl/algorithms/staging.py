"""Batch of transitions on the learner's device, in one block of memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import NetworkInputs
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec


class StagedBatch:
    """Arrays of a `Batch` as float32 tensors (discrete actions as int64), for one batch size.

    On a GPU a batch is transferred in one copy from a pinned block, which `stage` overwrites only after that copy has
    finished. On the CPU the block itself holds the tensors. All tensors are views of the block and keep their
    addresses. Only observations in bytes are separate on a GPU: they are copied as bytes and converted to float32
    there.

    Args:
        size: B.
        spec: the environment. Bytes of images are scaled to 0..1.
        device: device of the tensors.
        scaling: for real-valued actions, centre and half range, `[d]` each: actions are staged as
            (action - centre) / half range, and as 0 where the range is empty.
        reward_scale: factor on the rewards; None is 1.
        bounds: bounds of bootstrapped values, extended by every batch; None without clipping.
        statistics: observation statistics, updated by every batch; None without normalisation.

    Attributes:
        size: B.
        rows: `[2 B, inputs]`: obs, then next_obs.
        action: `[B, 1]` int64, or `[B, d]` float32 in -1..1.
        columns: `[3, B, 1]`: reward, discount, weight.
        reward, discount, weight: views `[B, 1]` of `columns`; weight is divided by B.
        limits: `[2]`, the bounds, including this batch.
        low, high: scalars, views of `limits`.
        next_mask: `[B, A]` bool, actions that are allowed at next_obs; None without action masks.
    """

    def __init__(
        self,
        size: int,
        spec: EnvSpec,
        device: torch.device,
        scaling: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        reward_scale: RewardFactor | None = None,
        bounds: ValueBounds | None = None,
        statistics: ObservationStatistics | None = None,
    ) -> None:
        self.size, self._statistics, self.bounds = size, statistics, bounds
        width, pinned = spec.observation_values, device.type == "cuda"
        discrete = isinstance(spec.action, DiscreteAction)
        action_width = 2 if discrete else math.prod(spec.action.shape)  # an int64 is as wide as two float32
        plain_bytes = spec.observation_dtype == "uint8" and statistics is None and not spec.leaves
        as_bytes = plain_bytes and device.type != "cpu"
        in_block = 0 if as_bytes else width
        fields = partial(_fields, size=size, action_width=action_width, width=in_block, discrete=discrete)
        self._host = torch.zeros(size * (2 * in_block + 3 + action_width) + 2, pin_memory=pinned)
        self._block = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        self._copied = torch.cuda.Event() if pinned else None
        rows, columns, action, limits = (field.numpy() for field in fields(self._host))
        self._columns, self._action, self._limits = [*columns[:, :, 0]], action, limits
        self.rows, self.columns, self.action, self.limits = fields(self._block)
        self._bytes: Tensor | None = None
        if as_bytes:
            self._bytes = torch.zeros(2 * size, width, dtype=torch.uint8, pin_memory=pinned)
            self.rows, rows = torch.zeros(2 * size, width, device=device), self._bytes.numpy()
        self._obs, self._next_obs = rows[:size], rows[size:]
        self.reward, self.discount, self.weight = self.columns
        self.low, self.high = self.limits
        self._reward_scale = reward_scale or RewardFactor(1.0)
        self._inputs, self._mask = NetworkInputs(spec), mask_reader(spec)
        self.next_mask: Tensor | None = None
        if self._mask is not None and isinstance(spec.action, DiscreteAction):
            self._mask_host = torch.ones(size, spec.action.n, dtype=torch.bool, pin_memory=pinned)
            self.next_mask = self._mask_host if device.type == "cpu" else self._mask_host.to(device)
        self._scaling = None if scaling is None else _shift_and_factor(*scaling)
        self._returned = torch.zeros(size, 1, pin_memory=pinned)
        self._returned_host = self._returned.view(size).numpy()

    def stage(self, batch: Batch) -> None:
        """Copy the batch; no reference to it is kept."""
        if self._copied is not None:
            self._copied.synchronize()
        if batch.source is None:
            self._stage_observations(batch.obs, batch.next_obs)
        reward, discount, weight = self._columns
        np.multiply(batch.reward, np.float32(self._reward_scale.factor), out=reward)
        np.copyto(discount, batch.discount)
        np.divide(batch.weight, self.size, out=weight)
        if self.bounds is not None:
            self.bounds.extend(reward, discount)
            self._limits[:] = self.bounds.values
        action = batch.action.reshape(self._action.shape)
        if self._scaling is None:
            np.copyto(self._action, action)
        else:
            np.subtract(action, self._scaling[0], out=self._action)
            np.multiply(self._action, self._scaling[1], out=self._action)
        if self._block is not self._host:
            self._block.copy_(self._host, non_blocking=True)
        if batch.source is not None:
            batch.source.gather(self.rows)
        elif self._bytes is not None:
            self.rows.copy_(self._bytes, non_blocking=True).mul_(self._inputs.byte_factor)
        if self._copied is not None:
            self._copied.record()

    def _stage_observations(self, obs: NDArray[Any], next_obs: NDArray[Any]) -> None:
        if self._mask is not None and self.next_mask is not None:
            np.copyto(self._mask_host.numpy(), self._mask(next_obs))
            if self.next_mask is not self._mask_host:
                self.next_mask.copy_(self._mask_host, non_blocking=True)
        rows, next_rows = self._inputs.rows(obs, self._obs), self._inputs.rows(next_obs, self._next_obs)
        normalisation = None
        if self._statistics is not None:
            self._statistics.observe(rows)
            normalisation = self._statistics.normalisation
        self._inputs.fill(rows, self._obs, normalisation)
        self._inputs.fill(next_rows, self._next_obs, normalisation)

    def on_host(self, values: Tensor) -> NDArray[np.float32]:
        """Absolute values of a column `[B, 1]`, as an array `[B]` on the host that the next call overwrites."""
        if self._block is self._host:
            torch.abs(values, out=self._returned)
        else:
            self._returned.copy_(values.abs())
        return self._returned_host


def _shift_and_factor(
    centre: NDArray[np.float32], half_range: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    inverse = np.zeros_like(half_range)
    np.divide(1.0, half_range, out=inverse, where=half_range > 0)
    return centre.reshape(-1), inverse.reshape(-1)


def _fields(
    block: Tensor, size: int, action_width: int, width: int, discrete: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of a flat block: observations `[2 B, width]`, columns `[3, B, 1]`, actions and the two bounds.

    The columns are reward, discount and weight. Actions are at the start of the block, aligned to 8 bytes.
    """
    end = action_width * size
    action = block[:end].view(torch.int64).view(size, 1) if discrete else block[:end].view(size, action_width)
    columns = block[end : end + 3 * size].view(3, size, 1)
    rows = block[end + 3 * size : -2].view(2 * size, width)
    return rows, columns, action, block[-2:]
