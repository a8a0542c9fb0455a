"""Statistics that groups share, such as means and deviations of observations, as values of a message.

Each group sends the statistics of its new data and merges those of the others. So all groups normalise by the data of
all, as one learner would, except for messages that are still in transit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
        self.take_message()

    def take_message(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Write the message `[K]`, statistics of the data since the last call, into `out` or a new array; return it."""
        message = np.empty(self.size, np.float32) if out is None else out
        self._pack([part.take_message() for part in self._parts], message)
        return message

    def merge(self, message: NDArray[np.float32]) -> None:
        """Merge another learner's message `[K]` into the statistics."""
        values = self._unpacked(message)
        for part, at in zip(self._parts, self._at, strict=True):
            part.merge(values[at])

    def merged(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
        """Merge two messages into a new one; any thread."""
        one, other = self._unpacked(first), self._unpacked(second)
        message = np.empty(self.size, np.float32)
        parts = zip(self._parts, self._at, strict=True)
        self._pack([part.merged(one[at], other[at]) for part, at in parts], message)
        return message

    def _pack(self, values: Sequence[NDArray[np.float64]], out: NDArray[np.float32]) -> None:
        if not values:
            return
        joined = values[0] if len(values) == 1 else np.concatenate(values)
        high, low = out[: self._values], out[self._values :]
        high[:] = joined
        low.fill(0.0)
        np.subtract(joined, high, out=low, where=np.isfinite(high), casting="same_kind")

    def _unpacked(self, message: NDArray[np.float32]) -> NDArray[np.float64]:
        result: NDArray[np.float64] = np.add(
            message[: self._values], message[self._values :], dtype=np.float64
        )
        return result
