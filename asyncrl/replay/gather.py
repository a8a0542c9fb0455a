"""Cutting n-step transitions and frame stacks out of streams, in place: rings are read, the batch is written.

All rings of a replay have one layout. What kernels need to know of them stands in three int64 tables:

    rings[R, ...]   a row per ring: addresses of its arrays, then the learner side's cursors (see `rows.py`)
    state[...]      shapes and settings common to all rings, then counters
    batch[...]      addresses of the arrays of one `Batch`

A *leaf* names a slot of a stream: `((ring * S + slot) << env_bits) + env`, where `2**env_bits` is E rounded up
to a power of two, so that taking a leaf apart needs no division; the leaves in between keep priority zero. An
*id* names a row for ever: `(ring << 48) + (position << env_bits) + env`.

The n-step cut of row i is the sum of at most n rewards. It ends early after a row that TERMINATED (discount 0)
or TRUNCATED (bootstrap from the true final observation, which Gymnasium's NEXT_STEP autoreset puts into the
next row), and before the last row of an actor's life, whose successor nobody saw (bootstrap from that row).

A million steps do not fit the cache: a sample waits for about six lines of main memory per item. `locate` asks for
all of them while the next items are still being looked up; after that the batch is filled field by field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core import RESET, TERMINATED, TRUNCATED, Batch
from asyncrl.replay.handles import address_of, copy_bytes, float32s, int32s, int64s, prefetch, uint8s
from asyncrl.replay.sum_tree import inlined
from asyncrl.shm import RingReader

# Columns of `rings`.
HEADER, OBS, ACTION, REWARD, FLAGS, VERSION, INCARNATION, SEEN, DECIDED, CLOSED, EXTRA = range(11)

# Words of `state`: constants, then counters, then the bytes of each extra field.
TREE_BITS, ENV_BITS, NUM_ENVS, NUM_SLOTS, N_STEP, STACK, OBS_BYTES, ACTION_BYTES, NUM_EXTRAS = range(9)
MIN_VERSION, SAMPLEABLE, INSERTED, SAMPLED, RETIRED, DISCARDED, IGNORED, EXTRA_BYTES = range(9, 17)

# Words of `batch`.
TO_OBS, TO_ACTION, TO_REWARD, TO_DISCOUNT, TO_NEXT_OBS, TO_WEIGHT, TO_IDS, TO_VERSION, TO_EXTRA = range(9)

# Rows of `work[WORK_ROWS, B]`: the item's leaf, ring, first slot of its stream, position, rows to the bootstrap.
LEAF, RING, STREAM, POSITION, AHEAD, WORK_ROWS = range(6)

ID_BITS = 48


@inlined
def locate(
    rings: NDArray[np.int64], state: NDArray[np.int64], leaf: int, work: NDArray[np.int64], i: int
) -> int:
    """Take item i's leaf apart, write down where its row lies, and ask for its cache lines; returns its id.

    The position of a slot is the newest one below SEEN: a leaf that has priority is not retired, and rows that
    are not retired lie in `[SEEN - S, SEEN)`.
    """
    slots, env_bits = state[NUM_SLOTS], state[ENV_BITS]
    row = leaf >> env_bits
    env = leaf - (row << env_bits)
    slot = row & (slots - 1)
    ring = row // slots if rings.shape[0] > 1 else 0
    here = np.uintp(ring)
    newest = rings[here, SEEN] - 1
    position = newest - ((newest - slot) & (slots - 1))
    at = env * slots + slot
    prefetch(rings[here, OBS] + at * state[OBS_BYTES])
    prefetch(rings[here, OBS] + (at + state[N_STEP]) * state[OBS_BYTES])
    prefetch(rings[here, ACTION] + at * state[ACTION_BYTES])
    prefetch(rings[here, REWARD] + at * 4)
    prefetch(rings[here, FLAGS] + at)
    prefetch(rings[here, VERSION] + slot * 8)
    prefetch(rings[here, INCARNATION] + slot * 4)
    work[RING, i], work[STREAM, i], work[POSITION, i] = ring, env * slots, position
    return (ring << ID_BITS) + (position << env_bits) + env


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
    """The n-step return of one row: (sum of rewards, discount of the bootstrap, rows to the bootstrap)."""
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
def cut_all(
    rings: NDArray[np.int64],
    state: NDArray[np.int64],
    gamma: float,
    batch: NDArray[np.int64],
    work: NDArray[np.int64],
) -> None:
    """Fills the batch's `reward`, `discount` and `version`, and AHEAD."""
    slots, steps, n_step = state[NUM_SLOTS], state[NUM_SLOTS] * state[NUM_ENVS], state[N_STEP]
    size = work.shape[1]
    to_reward, to_discount = float32s(batch[TO_REWARD], size), float32s(batch[TO_DISCOUNT], size)
    to_version = int64s(batch[TO_VERSION], size)
    for i in range(size):
        ring = np.uintp(work[RING, i])
        total, discount, ahead = cut(
            float32s(rings[ring, REWARD], steps),
            uint8s(rings[ring, FLAGS], steps),
            int32s(rings[ring, INCARNATION], slots),
            work[STREAM, i],
            work[POSITION, i],
            n_step,
            gamma,
        )
        to_reward[i], to_discount[i], work[AHEAD, i] = total, discount, ahead
        to_version[i] = int64s(rings[ring, VERSION], slots)[np.uintp(work[POSITION, i] & (slots - 1))]


@inlined
def copy_field(
    rings: NDArray[np.int64], column: int, row_bytes: int, slots: int, to: int, work: NDArray[np.int64]
) -> None:
    """Copy one field of every item's row to the array at address `to`."""
    for i in range(work.shape[1]):
        at = work[STREAM, i] + (work[POSITION, i] & (slots - 1))
        copy_bytes(to + i * row_bytes, rings[np.uintp(work[RING, i]), column] + at * row_bytes, row_bytes)


@inlined
def copy_next(rings: NDArray[np.int64], row_bytes: int, slots: int, to: int, work: NDArray[np.int64]) -> None:
    """Copy every item's bootstrap observation to the array at address `to`."""
    for i in range(work.shape[1]):
        at = work[STREAM, i] + ((work[POSITION, i] + work[AHEAD, i]) & (slots - 1))
        copy_bytes(to + i * row_bytes, rings[np.uintp(work[RING, i]), OBS] + at * row_bytes, row_bytes)


@inlined
def first_of_stack(
    flags: NDArray[np.uint8], incarnation: NDArray[np.int32], stream: int, position: int, frames: int
) -> int:
    """The oldest row of the stack that ends at `position`: at most `frames - 1` back, within one episode.

    An episode begins after a RESET row, or where an actor's life begins.
    """
    mask = incarnation.shape[0] - 1
    life = incarnation[np.uintp(position & mask)]
    oldest = position
    while oldest > 0 and position - oldest < frames - 1:
        before = (oldest - 1) & mask
        if flags[np.uintp(stream + before)] & RESET or incarnation[np.uintp(before)] != life:
            break
        oldest -= 1
    return oldest


@inlined
def copy_stack(
    to: int, obs: int, stream: int, position: int, oldest: int, frames: int, frame_bytes: int, slots: int
) -> None:
    """Write the rows `oldest .. position`, newest last, at `to`; what is missing repeats the oldest."""
    missing = frames - (position - oldest + 1)
    start = oldest & (slots - 1)
    for frame in range(missing):
        copy_bytes(to + frame * frame_bytes, obs + (stream + start) * frame_bytes, frame_bytes)
    to += missing * frame_bytes
    rows = position - oldest + 1
    head = min(rows, slots - start)
    copy_bytes(to, obs + (stream + start) * frame_bytes, head * frame_bytes)
    if rows > head:  # the stream goes on at slot 0
        copy_bytes(to + head * frame_bytes, obs + stream * frame_bytes, (rows - head) * frame_bytes)


@inlined
def copy_stacks(
    rings: NDArray[np.int64],
    state: NDArray[np.int64],
    batch: NDArray[np.int64],
    work: NDArray[np.int64],
) -> None:
    """Fills `obs` and `next_obs` with stacks of frames."""
    slots, steps = state[NUM_SLOTS], state[NUM_SLOTS] * state[NUM_ENVS]
    frames, frame_bytes = state[STACK], state[OBS_BYTES]
    for i in range(work.shape[1]):
        ring, stream = np.uintp(work[RING, i]), work[STREAM, i]
        flags, incarnation = uint8s(rings[ring, FLAGS], steps), int32s(rings[ring, INCARNATION], slots)
        offset = i * frames * frame_bytes
        for column, position in (
            (TO_OBS, work[POSITION, i]),
            (TO_NEXT_OBS, work[POSITION, i] + work[AHEAD, i]),
        ):
            oldest = first_of_stack(flags, incarnation, stream, position, frames)
            to = batch[column] + offset
            copy_stack(to, rings[ring, OBS], stream, position, oldest, frames, frame_bytes, slots)


@inlined
def gather(
    rings: NDArray[np.int64],
    state: NDArray[np.int64],
    gamma: float,
    batch: NDArray[np.int64],
    work: NDArray[np.int64],
) -> None:
    """Fill everything of the batch but `ids`, `weight` and `staleness` for the rows that `locate` wrote down."""
    slots = state[NUM_SLOTS]
    cut_all(rings, state, gamma, batch, work)
    copy_field(rings, ACTION, state[ACTION_BYTES], slots, batch[TO_ACTION], work)
    for extra in range(state[NUM_EXTRAS]):
        row_bytes = state[EXTRA_BYTES + extra]
        copy_field(rings, EXTRA + extra, row_bytes, slots, batch[TO_EXTRA + extra], work)
    if state[STACK] > 1:
        copy_stacks(rings, state, batch, work)
    else:
        copy_field(rings, OBS, state[OBS_BYTES], slots, batch[TO_OBS], work)
        copy_next(rings, state[OBS_BYTES], slots, batch[TO_NEXT_OBS], work)


def ring_table(rings: tuple[RingReader, ...]) -> NDArray[np.int64]:
    """The `rings` table with all cursors at zero. The readers must outlive it."""
    return np.array(
        [
            [
                *(address_of(a) for a in (ring.header, ring.obs, ring.action, ring.reward, ring.flags)),
                *(address_of(a) for a in (ring.version, ring.incarnation)),
                *(0, 0, 0),
                *(address_of(a) for a in ring.extras.values()),
            ]
            for ring in rings
        ],
        np.int64,
    )


class BatchTable:
    """Addresses of one `Batch`'s arrays, checked once, with references that keep the memory alive.

    Attributes:
        addresses: the `batch` table for kernels.
        work: scratch of the gather, `[WORK_ROWS, B]`.
        uniforms, rest: scratch of the draw, `[B]` float64.
    """

    def __init__(self, batch: Batch, ring: RingReader, frame_stack: int) -> None:
        self.arrays = self._arrays(batch, ring)
        stack = (frame_stack,) if frame_stack > 1 else ()
        size, spec = batch.size, ring.layout.spec
        obs = ((size, *stack, *spec.observation_shape), spec.observation_dtype)
        expected: list[tuple[tuple[int, ...], Any]] = [obs]
        expected += [((size, *spec.action.shape), spec.action.dtype)]
        expected += [((size,), np.float32), ((size,), np.float32), obs, ((size,), np.float32)]
        expected += [((size,), np.int64), ((size,), np.int64)]
        expected += [((size, *f.shape), f.dtype) for f in ring.layout.extra_fields]
        names = ["obs", "action", "reward", "discount", "next_obs", "weight", "ids", "version", *ring.extras]
        for name, array, (shape, dtype) in zip(names, self.arrays, expected, strict=True):
            if array.shape != shape or array.dtype != np.dtype(dtype) or not array.flags.writeable:
                raise ValueError(
                    f"batch.{name} must be a writeable {list(shape)} {np.dtype(dtype)}, "
                    f"got {list(array.shape)} {array.dtype}"
                )
        self.addresses = np.array([address_of(a) for a in self.arrays], np.int64)
        self.work = np.zeros((WORK_ROWS, size), np.int64)
        self.uniforms = np.zeros(size)
        self.rest = np.zeros(size)

    @staticmethod
    def _arrays(batch: Batch, ring: RingReader) -> list[NDArray[Any]]:
        if missing := sorted(set(ring.extras) - set(batch.extras)):
            raise ValueError(f"batch.extras must hold {missing[0]!r}, got {sorted(batch.extras)}")
        fixed: list[NDArray[Any]] = [batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs]
        return [*fixed, batch.weight, batch.ids, batch.version, *(batch.extras[name] for name in ring.extras)]

    def is_of(self, batch: Batch) -> bool:
        """Whether `batch` still holds the arrays whose addresses these are."""
        a = self.arrays
        return (
            a[0] is batch.obs
            and a[1] is batch.action
            and a[2] is batch.reward
            and a[3] is batch.discount
            and a[4] is batch.next_obs
            and a[5] is batch.weight
            and a[6] is batch.ids
            and a[7] is batch.version
            and all(x is y for x, y in zip(a[8:], batch.extras.values(), strict=False))
        )
