"""Frame stacks of segments: k consecutive observations of one episode for every row of a segment.

Segments of a ring are taken in order, and rows before a segment may be overwritten once it is released. So the last
k - 1 observations of each segment are kept here for the first rows of the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET


class SegmentStacks:
    """Cuts stacks out of the consecutive segments of one ring.

    At an episode's start its first observation is repeated; no stack holds observations of two episodes. An episode
    begins behind a RESET row, the first row of an actor's new life included, or at the ring's first row.

    Args:
        frames: k, at least 2.
        num_envs: E.
        shape: of one observation.
        dtype: of the observations.
    """

    def __init__(self, frames: int, num_envs: int, shape: tuple[int, ...], dtype: str) -> None:
        self._frames = frames
        self._tail: NDArray[Any] = np.zeros((num_envs, frames - 1, *shape), dtype)
        # How many of the newest observations in the tail belong to the episode that the next segment goes on with.
        self._age = np.zeros(num_envs, np.int64)

    def cut(
        self, obs: NDArray[Any], last_obs: NDArray[Any], flags: NDArray[np.uint8]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Stacks of the next segment, as fresh arrays.

        Args:
            obs: `[E, T, *shape]`.
            last_obs: `[E, *shape]`, the observation behind the last row.
            flags: `[E, T]`.

        Returns:
            `[E, T, k, *shape]` and `[E, k, *shape]`, oldest observation first.
        """
        before, (envs, length) = self._frames - 1, flags.shape
        known = np.concatenate((self._tail, obs, last_obs[:, None]), axis=1)
        row = np.arange(length + 1)
        begins = np.zeros((envs, length + 1), np.bool_)
        begins[:, 1:] = (flags & RESET) != 0
        # First row of the episode that each row belongs to, counted from the segment's first row; negative in the tail.
        first = np.maximum.accumulate(np.where(begins, row, -self._age[:, None]), axis=1)
        wanted = row[:, None] - np.arange(before, -1, -1)
        at = np.maximum(wanted[None], first[:, :, None]) + before
        stacks = known[np.arange(envs)[:, None, None], at]
        self._age = np.minimum(before, length - first[:, -1])
        self._tail = known[:, length : length + before].copy()
        return stacks[:, :-1], stacks[:, -1]
