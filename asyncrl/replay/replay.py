"""Prioritized replay of transitions, stored in the rings.

`find_frames` gives the indices of a batch's observations in a copy of the rings, for a learner that gathers them on
another device (`learning/mirror.py`). The copy holds the observations of all rings, one ring after the other, in the
layout of the rings: row `p` of environment e of ring r is at index `(r E + e) S + (p & (S - 1))`. The rows of a frame
stack and of the bootstrap are found by the functions that gather a batch on the CPU, so that both ways give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch
from asyncrl.replay import sampling
from asyncrl.replay import tables as table
from asyncrl.replay.gather import first_of_stack
from asyncrl.replay.handles import int32s, uint8s
from asyncrl.replay.hindsight import Hindsight
from asyncrl.replay.ring_replay import TransitionOptions, TransitionReplay
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


class PrioritizedOptions(TransitionOptions, total=False):
    """Options of `PrioritizedReplay`."""

    hindsight: Hindsight | None


class PrioritizedReplay(TransitionReplay[Batch]):
    """Replay of n-step transitions, one per row; see `RingReplay`."""

    WHAT: ClassVar[str] = "row"

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        hindsight: Hindsight | None = None,
        **options: Unpack[TransitionOptions],
    ) -> None:
        """Create a replay; `hindsight` relabels the goals of batches, None leaves them. See `TransitionReplay`."""
        super().__init__(rings, **options)
        self._hindsight = hindsight

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

    def sample(self, batch: Batch, beta: float) -> None:
        """See `RingReplay.sample`; with `hindsight` a share of the items is relabelled."""
        super().sample(batch, beta)
        if self._hindsight is not None:
            to = self._batches[id(batch)][1]
            self._rng.random(out=to.uniforms)
            self._hindsight(self._table, self._state, batch, to.addresses, to.work, to.uniforms)

    def _draw(self, to: BatchTable, beta: float) -> None:
        sampling.sample(*self._tree, beta, to.addresses, to.uniforms, to.rest, to.work)


@kernel("void(int64[:,::1], int64[::1], int64[::1], int64[:,::1], int64[:,:,::1])", cold=True)
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
