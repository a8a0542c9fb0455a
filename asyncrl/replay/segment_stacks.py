"""Frame stacks of segments: k consecutive observations of one episode for every row of a segment.

Segments of a ring are taken in order, and the rows before a segment may be overwritten. So the last k - 1 observations
of each segment are kept for the first rows of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET


class SegmentStacks:
    """Frame stacks of the consecutive segments of one ring.

    At the start of an episode its first observation is repeated; no stack holds observations of two episodes. An
    episode begins after a RESET row, which includes the first row of an actor's new life, or at the ring's first row.

    Args:
        frames: k, at least 2.
        num_envs: E.
        shape: shape of one observation.
        dtype: dtype of the observations.
    """

    STATE = ("_tail", "_age")

    def __init__(self, frames: int, num_envs: int, shape: tuple[int, ...], dtype: str) -> None:
        self._frames = frames
        self._tail: NDArray[Any] = np.zeros((num_envs, frames - 1, *shape), dtype)
        # Number of newest observations in the tail that belong to the episode continued by the next segment.
        self._age = np.zeros(num_envs, np.int64)

    def cut(
        self, obs: NDArray[Any], last_obs: NDArray[Any], flags: NDArray[np.uint8]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Stacks of the next segment, as new arrays.

        To be called once per segment: a second call would put the segment's own tail before its first row.

        Args:
            obs: `[E, T, *shape]`.
            last_obs: `[E, *shape]`, observation after the last row.
            flags: `[E, T]`.

        Returns:
            `[E, T, k, *shape]` and `[E, k, *shape]`, oldest observation first.
        """
        before, (envs, length) = self._frames - 1, flags.shape
        known = np.concatenate((self._tail, obs, last_obs[:, None]), axis=1)
        row = np.arange(length + 1)
        begins = np.zeros((envs, length + 1), np.bool_)
        begins[:, 1:] = (flags & RESET) != 0
        # First row of each row's episode, relative to the segment's first row; negative in the tail.
        first = np.maximum.accumulate(np.where(begins, row, -self._age[:, None]), axis=1)
        wanted = row[:, None] - np.arange(before, -1, -1)
        at = np.maximum(wanted[None], first[:, :, None]) + before
        stacks = known[np.arange(envs)[:, None, None], at]
        self._age = np.minimum(before, length - first[:, -1])
        self._tail = known[:, length : length + before].copy()
        return stacks[:, :-1], stacks[:, -1]
