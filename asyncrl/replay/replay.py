"""Prioritized replay of transitions, stored in the rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch
from asyncrl.replay import sampling
from asyncrl.replay import tables as table
from asyncrl.replay.frames import find_frames
from asyncrl.replay.handles import address_of
from asyncrl.replay.priority_rules import PriorityRules
from asyncrl.replay.ring_replay import ReplayStatistics as ReplayStatistics
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.sum_tree import on_pages
from asyncrl.replay.tables import BatchTable
from asyncrl.sequences import SequenceShape
from asyncrl.shm import RingReader


class PrioritizedReplay(RingReplay[Batch]):
    """Replay of n-step transitions, one per row; see `RingReplay`."""

    WHAT: ClassVar[str] = "row"

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        n_step: int,
        gamma: float,
        priorities: PriorityRules | None = None,
        frame_stack: int = 1,
        rng: np.random.Generator,
    ) -> None:
        """Create a replay without sampleable rows.

        Args:
            rings: at least one; all of one layout.
            n_step: rewards summed before the bootstrap.
            gamma: discount per step, 0 to 1.
            priorities: rules for priorities; None takes the defaults.
            frame_stack: observations joined along axis 1; 1 means no such axis.
            rng: generator of the draws within the strata.

        Raises:
            ValueError: as `RingReplay`, or `n_step` or `gamma` is out of range.
        """
        shape = SequenceShape(burn_in=0, length=1, period=1, n_step=n_step, gamma=gamma)
        super().__init__(rings, shape=shape, priorities=priorities, frame_stack=frame_stack, rng=rng)
        self._returns = on_pages(np.uint8, self.tree.leaves.size * table.RETURN_BYTES)
        self._state[table.RETURNS] = address_of(self._returns)

    @property
    def frame_stack(self) -> int:
        """k, number of observations joined in a stack."""
        return int(self._state[table.STACK])

    def leave_observations(self) -> None:
        """Do not fill `obs` and `next_obs` of batches from now on: other code gathers them."""
        self._state[table.OBS_BYTES] = 0

    def find_frames(self, batch: Batch, places: NDArray[np.int64]) -> None:
        """Fill `places` `[2, B, k]` with the indices of the batch's observations; called right after its `sample`.

        See `frames.py`. Axis 0 is obs and next_obs; frames are in order, oldest first.
        """
        assert places.shape == (2, batch.size, self.frame_stack)
        find_frames(self._table, self._state, batch.ids, self._batches[id(batch)][1].work, places)

    def _describe(self, batch: Batch) -> BatchTable:
        return BatchTable(batch, self.rings[0], int(self._state[table.STACK]))

    def _draw(self, to: BatchTable, beta: float) -> None:
        sampling.sample(*self._tree, beta, to.addresses, to.uniforms, to.rest, to.work)
