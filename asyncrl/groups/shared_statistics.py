"""Statistics that groups share, such as means and deviations of observations, as values of a message.

Each group sends the statistics of its new data and merges those of the others. So all groups normalise by the data of
all, as one learner would, except for messages that are still in transit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.networks.flat_vector import Shareable


class SharedStatistics:
    """Shared statistics of one learner; learner's thread only, except `merged`.

    Args:
        parts: the statistics to share. The first message covers their data from here on.

    Attributes:
        size: K, number of float32 values in a message; two per float64 value, the second the first's rounding error.
    """

    def __init__(self, parts: Sequence[Shareable]) -> None:
        self._parts = tuple(parts)
        ends = np.cumsum([0, *(part.size for part in self._parts)]).tolist()
        self._at = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._values = int(ends[-1])
        self.size = 2 * self._values
        self.tell()

    def tell(self) -> Tensor:
        """Return the message `[K]`: statistics of the data since the last call."""
        return self._packed([part.tell() for part in self._parts])

    def hear(self, told: Tensor) -> None:
        """Merge another learner's message `[K]` into the statistics."""
        values = self._unpacked(told)
        for part, at in zip(self._parts, self._at, strict=True):
            part.hear(values[at])

    def merged(self, first: Tensor, second: Tensor) -> Tensor:
        """Merge two messages into one; any thread."""
        one, other = self._unpacked(first), self._unpacked(second)
        return self._packed(
            [part.merged(one[at], other[at]) for part, at in zip(self._parts, self._at, strict=True)]
        )

    def _packed(self, told: Sequence[NDArray[np.float64]]) -> Tensor:
        values = np.concatenate(told) if told else np.zeros(0)
        high = values.astype(np.float32)
        low = np.zeros_like(high)
        np.subtract(values, high, out=low, where=np.isfinite(high), casting="same_kind")
        return torch.from_numpy(np.concatenate((high, low)))

    def _unpacked(self, told: Tensor) -> NDArray[np.float64]:
        values = told.numpy().astype(np.float64)
        result: NDArray[np.float64] = values[: self._values] + values[self._values :]
        return result
