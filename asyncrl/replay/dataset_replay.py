"""Replay of a dataset, alone or beside the rows of the actors.

A dataset is a ring that was written before the run and stays as it is (`storage/dataset.py`), so its replay is that of
any ring. `MixedReplay` fills a share of every batch from it and the rest from the actors' rings: "symmetric sampling"
of Ball et al. 2023, "Efficient online reinforcement learning with offline data" (RLPD, arXiv 2302.02948, section 4.1).
With prioritized replay each of the two has its own priorities, and importance weights that are normalised by the
largest of its own part.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import Batch
from asyncrl.replay.replay import PrioritizedOptions, PrioritizedReplay
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.shm import RingReader


class DatasetReplay(PrioritizedReplay):
    """Replay of the ring of a dataset; no actor writes to it, and no row is retired. See `PrioritizedReplay`.

    Attributes:
        fingerprint: checksum of the dataset, by which a resumed run knows it again.

    Raises:
        ValueError: as `PrioritizedReplay`.
        ConfigurationError: a restored state is that of another dataset (ASYNC017).
    """

    STATE = (*RingReplay.STATE, "_of_rows", "_rng", "fingerprint")

    def __init__(self, ring: RingReader, **options: Unpack[PrioritizedOptions]) -> None:
        super().__init__([ring], **options)
        self.ingest()
        # Without the rows behind the last episode, whose number is that of `n_step`, as is that of the slots.
        rows = int(self.cursors[0, 0]) - options["n_step"]
        self._of_rows = None if self._uniform else self.tree.leaves[:rows]
        self.fingerprint = _checksum(
            *(array[0, :rows] for array in (ring.obs, ring.action, ring.reward, ring.flags))
        )

    def _refuse(self, state: Mapping[str, Any]) -> None:
        if state.get("fingerprint") != self.fingerprint:
            raise ConfigurationError(
                "the dataset must be the one that the run began with, and it holds other steps",
                fix="give that one, if it has moved: dataset=DIR or demonstrations=DIR, on the command line --dataset "
                "DIR or --demonstrations DIR",
            )

    def _restored(self) -> None:
        self.tree.sum_range(0, self.tree.capacity)


def _checksum(*arrays: NDArray[Any]) -> int:
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return total


class MixedReplay(PrioritizedReplay):
    """Replay of the actors' rows, which fills the last items of every batch from demonstrations.

    Args:
        rings: of the actors.
        demonstrations: replay of the dataset, with the same options.
        fraction: share of a batch that comes from it, rounded to whole items, at least one of each kind.
        options: see `PrioritizedReplay`.
    """

    STATE = (*RingReplay.STATE, "demonstrations")

    def __init__(
        self,
        rings: Sequence[RingReader],
        demonstrations: DatasetReplay,
        fraction: float,
        **options: Unpack[PrioritizedOptions],
    ) -> None:
        super().__init__(rings, **options)
        self.demonstrations, self._fraction = demonstrations, fraction
        self._parts: tuple[Batch, Batch, Batch] | None = None

    def sample(self, batch: Batch, beta: float) -> None:
        """See `RingReplay.sample`; the last items are demonstrations."""
        own, shown = self._split(batch)
        super().sample(own, beta)
        self.demonstrations.sample(shown, beta)

    def acted(self, batch: Batch) -> Batch:
        """See `RingReplay.acted`."""
        return self._split(batch)[0]

    def update_priorities(self, ids: NDArray[np.int64], td_abs: NDArray[np.float32]) -> int:
        """See `RingReplay.update_priorities`; `ids` are those of a whole batch, in its order."""
        own = own_items(ids.shape[0], self._fraction)
        self.demonstrations.update_priorities(ids[own:], td_abs[own:])
        return super().update_priorities(ids[:own], td_abs[:own])

    def _split(self, batch: Batch) -> tuple[Batch, Batch]:
        """Views of both parts of a batch; the same objects for the same batch."""
        if self._parts is None or self._parts[0] is not batch:
            own = own_items(batch.size, self._fraction)
            self._parts = (batch, _part(batch, slice(own)), _part(batch, slice(own, None)))
        return self._parts[1:]


def own_items(size: int, fraction: float) -> int:
    """Number of items of a batch of `size`, at least 2, that are not demonstrations."""
    return size - min(max(1, round(fraction * size)), size - 1)


def _part(batch: Batch, items: slice) -> Batch:
    arrays: dict[str, Any] = {
        name: value[items] for name, value in vars(batch).items() if isinstance(value, np.ndarray)
    }
    extras = {name: value[items] for name, value in batch.extras.items()}
    return replace(batch, **arrays, extras=extras)
