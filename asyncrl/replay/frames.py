"""Indices of a batch's observations in a copy of the rings, for a learner that gathers them on another device.

The copy holds the observations of all rings, one ring after the other, in the layout of the rings: row `p` of
environment e of ring r is at index `(r E + e) S + (p & (S - 1))`. The rows of a frame stack and of the bootstrap are
found by the functions that gather a batch on the CPU, so that both ways give the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.replay.gather import first_of_stack
from asyncrl.replay.handles import int32s, uint8s
from asyncrl.replay.tables import AFTER, AT, FLAGS, INCARNATION, NUM_ENVS, NUM_SLOTS, STACK, split_id
from asyncrl.shm.kernel import kernel


@kernel("void(int64[:,::1], int64[::1], int64[::1], int64[:,::1], int64[:,:,::1])")
def find_frames(
    rings: NDArray[np.int64],
    state: NDArray[np.int64],
    ids: NDArray[np.int64],
    work: NDArray[np.int64],
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
