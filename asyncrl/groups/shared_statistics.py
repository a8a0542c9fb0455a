"""Statistics that groups share, such as means and deviations of observations, as values of a message.

Each group tells what it has seen since it told last, and takes in what the others tell. So all of them normalise by
what all have seen, as one learner would, up to what is still under way.
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
    """The shared statistics of one learner; learner's thread, but for `merged`.

    Args:
        parts: what is shared; from here on it is kept what they have to tell.

    Attributes:
        size: K, float32 values that tell of all parts: two for each of float64, the second what the first one lost.
    """

    def __init__(self, parts: Sequence[Shareable]) -> None:
        self._parts = tuple(parts)
        ends = np.cumsum([0, *(part.size for part in self._parts)]).tolist()
        self._at = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._values = int(ends[-1])
        self.size = 2 * self._values
        self.tell()

    def tell(self) -> Tensor:
        """What is new since the last call, `[K]`."""
        return self._packed([part.tell() for part in self._parts])

    def hear(self, told: Tensor) -> None:
        """Take in what another learner has told, `[K]`."""
        values = self._unpacked(told)
        for part, at in zip(self._parts, self._at, strict=True):
            part.hear(values[at])

    def merged(self, first: Tensor, second: Tensor) -> Tensor:
        """What tells of both; any thread."""
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
