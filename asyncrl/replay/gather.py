"""Gathering of n-step transitions and frame stacks from the rings into a batch.

The n-step return of a row sums at most n rewards. It ends early after a TERMINATED row (discount 0), after a TRUNCATED
row (bootstrap from the true final observation, which Gymnasium's NEXT_STEP autoreset puts into the next row), and
before the last row of an actor's life, which has no successor (bootstrap from that row).

Returns are computed once, when a row becomes sampleable, and stored in 16 bytes per leaf, private to the learner:
return and discount as float32, then `(policy_updates << 8) + rows to the bootstrap` as int64. A million steps do not
fit the cache, and the cost of a sample is its cache misses: these 16 bytes are in one line, while reward, flags,
updates and incarnation are in four. The version, 8 bytes for all streams of a row, is read from the ring. Observations,
actions and extras stay in the rings and are copied once, into the batch. `locate` prefetches the lines of an item while
the next items are looked up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, UNTRAINED
from asyncrl.replay.handles import copy_bytes, float32s, int32s, int64s, prefetch, uint8s
from asyncrl.replay.tables import (
    ACTION,
    ACTION_BYTES,
    AFTER,
    AT,
    EXTRA,
    EXTRA_BYTES,
    FLAGS,
    INCARNATION,
    JOINT,
    LEAF,
    N_STEP,
    NUM_AGENTS,
    NUM_ENVS,
    NUM_EXTRAS,
    NUM_SLOTS,
    OBS,
    OBS_BYTES,
    OF_TEAM,
    RETURN_BYTES,
    RETURNS,
    REWARD,
    RING,
    STACK,
    TO_ACTION,
    TO_DISCOUNT,
    TO_EXTRA,
    TO_NEXT_OBS,
    TO_OBS,
    TO_REWARD,
    TO_UPDATES,
    TO_VERSION,
    UPDATES,
    VERSION,
    Words,
    id_of,
    split_id,
)
from asyncrl.shm.kernel import inlined


@inlined
def locate(rings: Words, state: Words, leaf: int, work: Words, i: int) -> int:
    """Store the location of the row of item i in `work` and prefetch its cache lines; returns its id."""
    row_id = id_of(rings, state, leaf)
    ring, position, env = split_id(state, row_id)
    here, slots = np.uintp(ring), state[NUM_SLOTS]
    at = env * slots + (position & (slots - 1))
    prefetch(state[RETURNS] + leaf * RETURN_BYTES)
    prefetch(rings[here, OBS] + at * state[OBS_BYTES])
    prefetch(rings[here, OBS] + (at + state[N_STEP]) * state[OBS_BYTES])
    prefetch(rings[here, ACTION] + at * state[ACTION_BYTES])
    prefetch(rings[here, VERSION] + (at & (slots - 1)) * 8)
    work[LEAF, i], work[RING, i], work[AT, i] = leaf, ring, at
    return row_id


@inlined
def is_trained(flags: NDArray[np.uint8], incarnation: NDArray[np.int32], stream: int, position: int) -> bool:
    """Whether a row may be trained on: it is neither RESET nor FROZEN, and not the last row of an actor's life."""
    mask = incarnation.shape[0] - 1
    slot = position & mask
    goes_on = incarnation[np.uintp(slot)] == incarnation[np.uintp((position + 1) & mask)]
    return goes_on and not flags[np.uintp(stream + slot)] & UNTRAINED


@inlined
def begins_episode(
    flags: NDArray[np.uint8], incarnation: NDArray[np.int32], stream: int, position: int
) -> bool:
    """Whether an episode begins at a row: after a RESET row, or at the first row of an actor's life."""
    mask = incarnation.shape[0] - 1
    before = (position - 1) & mask
    lives_on = incarnation[np.uintp(before)] == incarnation[np.uintp(position & mask)]
    return not lives_on or flags[np.uintp(stream + before)] & RESET != 0


@inlined
def cut(
    reward: NDArray[np.float32],
    flags: NDArray[np.uint8],
    incarnation: NDArray[np.int32],
    stream: int,
    position: int,
    n_step: int,
    gamma: float,
) -> tuple[float, float, int]:
    """N-step return of a row: (sum of rewards, discount of the bootstrap, rows to the bootstrap)."""
    mask = incarnation.shape[0] - 1
    life = incarnation[np.uintp(position & mask)]
    total, discount = 0.0, 1.0
    for j in range(n_step):
        row = position + j
        if incarnation[np.uintp((row + 1) & mask)] != life:
            return total, discount, j
        at = np.uintp(stream + (row & mask))
        total += discount * np.float64(reward[at])
        if flags[at] & TERMINATED:
            return total, 0.0, j + 1
        discount *= gamma
        if flags[at] & TRUNCATED:
            return total, discount, j + 1
    return total, discount, n_step


@inlined
def first_of_stack(
    flags: NDArray[np.uint8], incarnation: NDArray[np.int32], stream: int, position: int, frames: int
) -> int:
    """Oldest row of the stack that ends at `position`: at most `frames - 1` rows back, within one episode."""
    oldest = position
    while oldest > 0 and position - oldest < frames - 1:
        if begins_episode(flags, incarnation, stream, oldest):
            break
        oldest -= 1
    return oldest


@inlined
def copy_rows(to: int, of: int, stream: int, first: int, count: int, row_bytes: int, slots: int) -> None:
    """Copy the rows `first .. first + count - 1` of a stream, at most S, to consecutive addresses from `to`."""
    start = first & (slots - 1)
    head = min(count, slots - start)
    copy_bytes(to, of + (stream + start) * row_bytes, head * row_bytes)
    if count > head:  # the rows wrap around to slot 0
        copy_bytes(to + head * row_bytes, of + stream * row_bytes, (count - head) * row_bytes)


@inlined
def copy_stack(
    to: int, obs: int, stream: int, position: int, oldest: int, frames: int, frame_bytes: int, slots: int
) -> None:
    """Write the stack of rows `oldest .. position` to `to`, newest last; missing rows repeat the oldest."""
    missing = frames - (position - oldest + 1)
    start = oldest & (slots - 1)
    for frame in range(missing):
        copy_bytes(to + frame * frame_bytes, obs + (stream + start) * frame_bytes, frame_bytes)
    to += missing * frame_bytes
    copy_rows(to, obs, stream, oldest, position - oldest + 1, frame_bytes, slots)


@inlined
def leaves_team(flags: NDArray[np.uint8], state: Words, stream: int, after: int) -> bool:
    """Whether an agent is truncated in the row before `after`, while another agent of its environment acts in `after`.

    The agent waits there, and the team's episode goes on without it.
    """
    slots, agents = state[NUM_SLOTS], state[NUM_AGENTS]
    slot, before = after & (slots - 1), (after - 1) & (slots - 1)
    if not flags[np.uintp(stream * slots + before)] & TRUNCATED:
        return False
    first = stream // agents * agents
    acting = False
    for other in range(first, first + agents):
        acting |= not flags[np.uintp(other * slots + slot)] & RESET
    return acting


@inlined
def write_return(
    rings: Words, state: Words, gamma: float, ring: int, position: int, env: int, leaf: int
) -> None:
    """Compute the n-step return of a row and store it for `read_returns`."""
    here, slots = np.uintp(ring), state[NUM_SLOTS]
    steps = slots * state[NUM_ENVS]
    flags = uint8s(rings[here, FLAGS], steps)
    total, discount, ahead = cut(
        float32s(rings[here, REWARD], steps),
        flags,
        int32s(rings[here, INCARNATION], slots),
        env * slots,
        position,
        state[N_STEP],
        gamma,
    )
    if state[JOINT] == OF_TEAM and leaves_team(flags, state, env, position + ahead):
        discount = 0.0
    updates = int64s(rings[here, UPDATES], slots)[np.uintp(position & (slots - 1))]
    stored = state[RETURNS] + leaf * RETURN_BYTES
    float32s(stored, 2)[0], float32s(stored, 2)[1] = total, discount
    int64s(stored, 2)[1] = (updates << 8) + ahead


@inlined
def write_no_return(state: Words, leaf: int) -> None:
    """Store for `read_joint_returns` that an agent waits: no reward, no bootstrap, and no rows to it."""
    stored = state[RETURNS] + leaf * RETURN_BYTES
    float32s(stored, 2)[0], float32s(stored, 2)[1] = 0.0, 0.0
    int64s(stored, 2)[1] = 0


@inlined
def read_returns(rings: Words, state: Words, batch: Words, work: Words) -> None:
    """Fill the batch's `reward`, `discount`, `version` and `policy_updates`, and `work[AFTER]`."""
    size, slots = work.shape[1], state[NUM_SLOTS]
    reward, discount = float32s(batch[TO_REWARD], size), float32s(batch[TO_DISCOUNT], size)
    version, updates = int64s(batch[TO_VERSION], size), int64s(batch[TO_UPDATES], size)
    for i in range(size):
        stored = state[RETURNS] + work[LEAF, i] * RETURN_BYTES
        reward[i], discount[i] = float32s(stored, 2)[0], float32s(stored, 2)[1]
        last = int64s(stored, 2)[1]
        updates[i] = last >> 8
        at = work[AT, i]
        versions = int64s(rings[np.uintp(work[RING, i]), VERSION], slots)
        version[i] = versions[np.uintp(at & (slots - 1))]
        work[AFTER, i] = (at & -slots) + ((at + (last & 255)) & (slots - 1))


@inlined
def copy_field(rings: Words, column: int, row_bytes: int, to: int, work: Words, where: int) -> None:
    """Copy one field of the rows `work[where]` to the array at address `to`."""
    for i in range(work.shape[1]):
        of = rings[np.uintp(work[RING, i]), column] + work[where, i] * row_bytes
        copy_bytes(to + i * row_bytes, of, row_bytes)


@inlined
def copy_stacks(rings: Words, state: Words, ids: Words, batch: Words, work: Words) -> None:
    """Fill `obs` and `next_obs` with frame stacks."""
    slots, steps = state[NUM_SLOTS], state[NUM_SLOTS] * state[NUM_ENVS]
    frames, frame_bytes = state[STACK], state[OBS_BYTES]
    for i in range(work.shape[1]):
        ring, position, env = split_id(state, ids[i])
        here, stream = np.uintp(ring), env * slots
        flags, incarnation = uint8s(rings[here, FLAGS], steps), int32s(rings[here, INCARNATION], slots)
        ahead = (work[AFTER, i] - work[AT, i]) & (slots - 1)
        for column, newest in ((TO_OBS, position), (TO_NEXT_OBS, position + ahead)):
            oldest = first_of_stack(flags, incarnation, stream, newest, frames)
            to = batch[column] + i * frames * frame_bytes
            copy_stack(to, rings[here, OBS], stream, newest, oldest, frames, frame_bytes, slots)


@inlined
def copy_fields(rings: Words, state: Words, ids: Words, batch: Words, work: Words, to_extra: int) -> None:
    """Fill `obs`, `action`, `next_obs` and, from the batch's word `to_extra` on, the extras."""
    copy_field(rings, ACTION, state[ACTION_BYTES], batch[TO_ACTION], work, AT)
    for extra in range(state[NUM_EXTRAS]):
        copy_field(rings, EXTRA + extra, state[EXTRA_BYTES + extra], batch[to_extra + extra], work, AT)
    if state[STACK] > 1:
        copy_stacks(rings, state, ids, batch, work)
    else:
        copy_field(rings, OBS, state[OBS_BYTES], batch[TO_OBS], work, AT)
        copy_field(rings, OBS, state[OBS_BYTES], batch[TO_NEXT_OBS], work, AFTER)


@inlined
def gather(rings: Words, state: Words, ids: Words, batch: Words, work: Words) -> None:
    """Fill all arrays of the batch but `ids`, `weight` and `staleness`, for the rows that `locate` stored."""
    read_returns(rings, state, batch, work)
    copy_fields(rings, state, ids, batch, work, TO_EXTRA)
