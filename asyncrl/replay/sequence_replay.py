"""Prioritized replay of sequences, stored in the rings: the replay of R2D2.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019, section 2.3.

A sequence is consecutive rows of a stream, copied once from the ring into the batch. Returns, masks and episode starts
are computed during the gather, not stored per leaf as in `gather.py`: 32 sequences of 65 rows of 4 numbers take 42
microseconds, and the update on them 19 milliseconds (hidden sizes 64 and 64, an LSTM of 64).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from asyncrl.interfaces import SequenceBatch
from asyncrl.replay.gather import (
    begins_episode,
    copy_rows,
    copy_stack,
    cut,
    first_of_stack,
    is_trained,
    leaves_team,
)
from asyncrl.replay.handles import copy_bytes, float32s, int32s, int64s, uint8s
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.sampling import take_leaves
from asyncrl.replay.tables import (
    ACTION,
    ACTION_BYTES,
    AHEAD,
    BURN_IN,
    EXTRA,
    EXTRA_BYTES,
    FLAGS,
    GAMMA,
    INCARNATION,
    JOINT,
    LEAF,
    LENGTH,
    N_STEP,
    NUM_ENVS,
    NUM_EXTRAS,
    NUM_SLOTS,
    OBS,
    OBS_BYTES,
    OF_TEAM,
    REWARD,
    STACK,
    TO_ACTION,
    TO_BEGINS,
    TO_BOOTSTRAP,
    TO_DISCOUNT,
    TO_IDS,
    TO_OBS,
    TO_REWARD,
    TO_STATE,
    TO_TRAINED,
    TO_UPDATES,
    TO_VERSION,
    UPDATES,
    VERSION,
    BatchTable,
    Numbers,
    Words,
    split_id,
)
from asyncrl.replay.tree_kernels import Leaves, Nodes, descend
from asyncrl.shm.kernel import inlined, kernel


class SequenceReplay(RingReplay[SequenceBatch]):
    """Replay of sequences that begin at every `shape.period`-th row of a stream; see `RingReplay`.

    A sequence has one priority, at the leaf of its first row. It can be sampled from the publication of its last row
    until its first row is retired or too stale; later rows are never overwritten before the first. A sequence without a
    trained row is never sampled.
    """

    WHAT: ClassVar[str] = "sequence"

    def _draw(self, to: BatchTable, beta: float) -> None:
        sample_sequences(*self._tree, self._numbers, beta, to.addresses, to.uniforms, to.rest, to.work)


@inlined
def copy_sequence(rings: Words, state: Words, row_id: int, batch: Words, i: int, to_extra: int) -> None:
    """Fill `obs`, `action` and, from the batch's word `to_extra` on, the extra fields of item i."""
    ring, position, env = split_id(state, row_id)
    here, slots, rows = np.uintp(ring), state[NUM_SLOTS], state[AHEAD] + 1
    stream, obs, obs_bytes, frames = env * slots, rings[here, OBS], state[OBS_BYTES], state[STACK]
    to = batch[TO_OBS] + i * rows * frames * obs_bytes
    if frames == 1:
        copy_rows(to, obs, stream, position, rows, obs_bytes, slots)
    else:
        flags = uint8s(rings[here, FLAGS], slots * state[NUM_ENVS])
        incarnation = int32s(rings[here, INCARNATION], slots)
        for row in range(position, position + rows):
            oldest = first_of_stack(flags, incarnation, stream, row, frames)
            copy_stack(to, obs, stream, row, oldest, frames, obs_bytes, slots)
            to += frames * obs_bytes
    length, row_bytes = state[LENGTH], state[ACTION_BYTES]
    to = batch[TO_ACTION] + i * length * row_bytes
    copy_rows(to, rings[here, ACTION], stream, position + state[BURN_IN], length, row_bytes, slots)
    for extra in range(state[NUM_EXTRAS]):
        row_bytes = state[EXTRA_BYTES + extra]
        of = rings[here, EXTRA + extra] + (stream + (position & (slots - 1))) * row_bytes
        copy_bytes(batch[to_extra + extra] + i * row_bytes, of, row_bytes)


@inlined
def cut_sequence(rings: Words, state: Words, gamma: float, row_id: int, batch: Words, i: int) -> None:
    """Fill `begins`, `reward`, `discount`, `bootstrap` and `trained` of item i."""
    ring, position, env = split_id(state, row_id)
    here, slots, rows, length = np.uintp(ring), state[NUM_SLOTS], state[AHEAD] + 1, state[LENGTH]
    stream, steps = env * slots, slots * state[NUM_ENVS]
    rewards, flags = float32s(rings[here, REWARD], steps), uint8s(rings[here, FLAGS], steps)
    incarnation = int32s(rings[here, INCARNATION], slots)
    begins = uint8s(batch[TO_BEGINS] + i * rows, rows)
    begins[0] = 0
    for row in range(1, rows):
        begins[np.uintp(row)] = int(begins_episode(flags, incarnation, stream, position + row))
    reward = float32s(batch[TO_REWARD] + i * length * 4, length)
    discount = float32s(batch[TO_DISCOUNT] + i * length * 4, length)
    bootstrap = int64s(batch[TO_BOOTSTRAP] + i * length * 8, length)
    trained = uint8s(batch[TO_TRAINED] + i * length, length)
    for t in range(length):
        row, k = state[BURN_IN] + t, np.uintp(t)
        total, factor, ahead = 0.0, 0.0, 0
        trains = is_trained(flags, incarnation, stream, position + row)
        if trains:
            total, factor, ahead = cut(
                rewards, flags, incarnation, stream, position + row, state[N_STEP], gamma
            )
            if state[JOINT] == OF_TEAM and leaves_team(flags, state, env, position + row + ahead):
                factor = 0.0
        trained[k], bootstrap[k] = int(trains), row + ahead
        reward[k], discount[k] = total, factor


@inlined
def copy_version(rings: Words, state: Words, row_id: int, batch: Words, i: int) -> None:
    """Fill `version` and `policy_updates` of item i."""
    ring, position, _ = split_id(state, row_id)
    here, slots = np.uintp(ring), state[NUM_SLOTS]
    slot = np.uintp(position & (slots - 1))
    version, updates = int64s(batch[TO_VERSION] + i * 8, 1), int64s(batch[TO_UPDATES] + i * 8, 1)
    version[0] = int64s(rings[here, VERSION], slots)[slot]
    updates[0] = int64s(rings[here, UPDATES], slots)[slot]


_TREE = "float32[::1], float64[:,:,::1], int64[::1]"
_TABLES = "int64[:,::1], int64[::1], float64[::1]"
_BATCH = "int64[::1], float64[::1], float64[::1], int64[:,::1]"


@kernel(f"void({_TREE}, {_TABLES}, float64, {_BATCH})")
def sample_sequences(
    leaves: Leaves,
    nodes: Nodes,
    first: Words,
    rings: Words,
    state: Words,
    numbers: Numbers,
    beta: float,
    batch: Words,
    uniforms: Numbers,
    rest: Numbers,
    work: Words,
) -> None:
    """Sample sequences and gather them into the batch."""
    descend(leaves, nodes, first, uniforms, rest, work[LEAF])
    take_leaves(leaves, nodes, rings, state, beta, batch, rest, work)
    size = work.shape[1]
    ids = int64s(batch[TO_IDS], size)
    for i in range(size):
        copy_sequence(rings, state, ids[i], batch, i, TO_STATE)
        cut_sequence(rings, state, numbers[GAMMA], ids[i], batch, i)
        copy_version(rings, state, ids[i], batch, i)
