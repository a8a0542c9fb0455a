"""Prioritized replay of transitions, stored in the rings.

`find_frames` gives the indices of a batch's observations in a copy of the rings, for a learner that gathers them on
another device (`learning/mirror.py`). The copy holds the observations of all rings, one ring after the other, in the
layout of the rings: row `p` of environment e of ring r is at index `(r E + e) S + (p & (S - 1))`. The rows of a frame
stack and of the bootstrap are found by the functions that gather a batch on the CPU, so that both ways give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch, SequenceShape
from asyncrl.replay import sampling
from asyncrl.replay import tables as table
from asyncrl.replay.gather import first_of_stack
from asyncrl.replay.handles import address_of, int32s, uint8s
from asyncrl.replay.priority_rules import PriorityRules
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.sum_tree import on_pages
from asyncrl.replay.tables import (
    AFTER,
    AT,
    FLAGS,
    INCARNATION,
    NUM_ENVS,
    NUM_SLOTS,
    STACK,
    BatchTable,
    Words,
    split_id,
)
from asyncrl.shm import RingReader
from asyncrl.shm.kernel import kernel


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

        Axis 0 is obs and next_obs; frames are in order, oldest first.
        """
        assert places.shape == (2, batch.size, self.frame_stack)
        find_frames(self._table, self._state, batch.ids, self._batches[id(batch)][1].work, places)

    def _draw(self, to: BatchTable, beta: float) -> None:
        sampling.sample(*self._tree, beta, to.addresses, to.uniforms, to.rest, to.work)


@kernel("void(int64[:,::1], int64[::1], int64[::1], int64[:,::1], int64[:,:,::1])")
def find_frames(
    rings: Words,
    state: Words,
    ids: Words,
    work: Words,
    places: NDArray[np.int64],
) -> None:
    """Fill `places` `[2, B, k]` with the indices of the frames of `obs` and of `next_obs`, newest last."""
    slots, envs, frames = state[NUM_SLOTS], state[NUM_ENVS], state[STACK]
    for i in range(ids.shape[0]):
        ring, position, env = split_id(state, ids[i])
        here, stream = np.uintp(ring), env * slots
        flags, incarnation = uint8s(rings[here, FLAGS], slots * envs), int32s(rings[here, INCARNATION], slots)
        ahead = (work[AFTER, i] - work[AT, i]) & (slots - 1)
        start = (ring * envs + env) * slots
        for which in range(2):
            newest = position + which * ahead
            oldest = first_of_stack(flags, incarnation, stream, newest, frames)
            for frame in range(frames):
                row = max(oldest, newest - (frames - 1) + frame)
                places[which, i, frame] = start + (row & (slots - 1))
