"""Tables that describe rings, replay and batch to the kernels, and the numbering of rows.

All rings of a replay have one layout. Kernels get three int64 tables:

    rings[R, ...]   a row per ring: addresses of its arrays, then the learner side's cursors (see `rows.py`)
    state[...]      shapes and settings common to all rings, then counters
    batch[...]      addresses of the arrays of one `Batch`

and the float64 table `numbers`: the discount, the priorities' exponent and offset, the first priority of a new row, and
the largest priorities of the current and the previous window of updates.

A *leaf* is the index of a slot of a stream: `((ring * S + slot) << env_bits) + env`, where `2**env_bits` is E rounded
up to a power of two, so that the environment is decoded without a division; the unused leaves keep priority zero. An
*id* identifies a row permanently: `(ring << 48) + (position << env_bits) + env`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch
from asyncrl.replay.handles import address_of
from asyncrl.sequences import SequenceBatch, SequenceShape
from asyncrl.shm import RingReader
from asyncrl.shm.kernel import inlined

Words = NDArray[np.int64]
"""An int64 table, or an int64 array with one number per item."""
Numbers = NDArray[np.float64]
"""The table `numbers`, or a float64 array with one number per item."""

# Columns of `rings`.
(
    HEADER,
    OBS,
    ACTION,
    REWARD,
    FLAGS,
    VERSION,
    UPDATES,
    INCARNATION,
    SEEN,
    DECIDED,
    CLOSED,
    DISTRUSTED,
    EXTRA,
) = range(13)

# Words of `numbers`, float64.
GAMMA, ALPHA, EPSILON, FIRST, PRESENT, PREVIOUS = range(6)

# Words of `state`: constants, then counters, then the bytes of each extra field. AHEAD is `SequenceShape.ahead`,
# RETURNS the address of the stored returns (see `gather.py`).
TREE_BITS, ENV_BITS, NUM_ENVS, NUM_SLOTS, N_STEP, STACK, OBS_BYTES, ACTION_BYTES, NUM_EXTRAS = range(9)
BURN_IN, LENGTH, PERIOD, AHEAD, RETURNS = range(9, 14)
MIN_UPDATES, SAMPLEABLE, INSERTED, SAMPLED, RETIRED, DISCARDED, IGNORED = range(14, 21)
WINDOW, CALLS, EXTRA_BYTES = range(21, 24)

# Words of `batch`.
(
    TO_OBS,
    TO_ACTION,
    TO_REWARD,
    TO_DISCOUNT,
    TO_NEXT_OBS,
    TO_WEIGHT,
    TO_IDS,
    TO_VERSION,
    TO_UPDATES,
    TO_EXTRA,
) = range(10)
# Of a `SequenceBatch`: `bootstrap` has the index of `next_obs`, and extras come later.
TO_BOOTSTRAP, TO_BEGINS, TO_TRAINED, TO_STATE = TO_NEXT_OBS, 9, 10, 11

# Rows of `work[WORK_ROWS, B]`: leaf and ring of the item, indices of its row and of its bootstrap row in `[E * S]`.
LEAF, RING, AT, AFTER, WORK_ROWS = range(5)

ID_BITS = 48
RETURN_BYTES = 16


@inlined
def id_of(rings: Words, state: Words, leaf: int) -> int:
    """Id of the row that a leaf's slot holds now.

    Its position is the newest one of the slot below SEEN: a leaf with priority is not retired, and the rows that are
    not retired are in `[SEEN - S, SEEN)`.
    """
    slots, env_bits = state[NUM_SLOTS], state[ENV_BITS]
    row = leaf >> env_bits
    slot = row & (slots - 1)
    ring = row // slots if rings.shape[0] > 1 else 0
    newest = rings[np.uintp(ring), SEEN] - 1
    position = newest - ((newest - slot) & (slots - 1))
    return (ring << ID_BITS) + (position << env_bits) + (leaf - (row << env_bits))


@inlined
def split_id(state: Words, row_id: int) -> tuple[int, int, int]:
    """(ring, position, env) of an id."""
    ring = row_id >> ID_BITS
    step = row_id - (ring << ID_BITS)
    position = step >> state[ENV_BITS]
    return ring, position, step - (position << state[ENV_BITS])


@inlined
def leaf_of(state: Words, row_id: int) -> int:
    """Leaf of the row with this id, also if its slot was overwritten."""
    ring, position, env = split_id(state, row_id)
    slot = position & (state[NUM_SLOTS] - 1)
    return ((ring * state[NUM_SLOTS] + slot) << state[ENV_BITS]) + env  # type: ignore[no-any-return]


def ring_table(rings: tuple[RingReader, ...]) -> NDArray[np.int64]:
    """Create the `rings` table with all cursors at zero. The readers must outlive it."""
    return np.array(
        [
            [
                *(address_of(a) for a in (ring.header, ring.obs, ring.action, ring.reward, ring.flags)),
                *(address_of(a) for a in (ring.version, ring.policy_updates, ring.incarnation)),
                *(0, 0, 0, 0),
                *(address_of(a) for a in ring.extras.values()),
            ]
            for ring in rings
        ],
        np.int64,
    )


def checked_addresses(
    named: Sequence[tuple[str, NDArray[Any]]], expected: Sequence[tuple[tuple[int, ...], Any]]
) -> NDArray[np.int64]:
    """Addresses of a batch's arrays. Raises ValueError if one has another shape or dtype or is read-only."""
    for (name, array), (shape, dtype) in zip(named, expected, strict=True):
        if array.shape != shape or array.dtype != np.dtype(dtype) or not array.flags.writeable:
            raise ValueError(
                f"batch.{name} must be a writeable {list(shape)} {np.dtype(dtype)}, "
                f"got {list(array.shape)} {array.dtype}"
            )
    return np.array([address_of(array) for _, array in named], np.int64)


def extras_of(batch: Batch | SequenceBatch, ring: RingReader) -> list[tuple[str, NDArray[Any]]]:
    """Extra fields of the batch, (name, array) in the ring's order. Raises ValueError if one is missing."""
    if missing := sorted(set(ring.extras) - set(batch.extras)):
        raise ValueError(f"batch.extras must hold {missing[0]!r}, got {sorted(batch.extras)}")
    return [(name, batch.extras[name]) for name in ring.extras]


class BatchTable:
    """Addresses of the arrays of one `Batch`, checked once, with references that keep the memory alive.

    Attributes:
        addresses: the `batch` table for kernels.
        work, uniforms, rest: scratch arrays of sampling and gathering.
    """

    _NAMES = ("obs", "action", "reward", "discount", "next_obs", "weight", "ids", "version", "policy_updates")

    def __init__(self, batch: Batch, ring: RingReader, frame_stack: int) -> None:
        named = [(name, getattr(batch, name)) for name in self._NAMES] + extras_of(batch, ring)
        self.arrays = [array for _, array in named]
        self._extras = tuple(ring.extras)
        stack = (frame_stack,) if frame_stack > 1 else ()
        size, spec = batch.size, ring.layout.spec
        obs = ((size, *stack, *spec.observation_shape), spec.observation_dtype)
        expected: list[tuple[tuple[int, ...], Any]] = [obs]
        expected += [((size, *spec.action.shape), spec.action.dtype)]
        expected += [((size,), np.float32), ((size,), np.float32), obs, ((size,), np.float32)]
        expected += [((size,), np.int64), ((size,), np.int64), ((size,), np.int64)]
        expected += [((size, *f.shape), f.dtype) for f in ring.layout.extra_fields]
        self.addresses = checked_addresses(named, expected)
        self.work = np.zeros((WORK_ROWS, size), np.int64)
        self.uniforms = np.zeros(size)
        self.rest = np.zeros(size)

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
            and a[8] is batch.policy_updates
            and (
                len(a) == 9 or all(x is batch.extras.get(n) for n, x in zip(self._extras, a[9:], strict=True))
            )
        )


class SequenceTable:
    """Addresses of the arrays of one `SequenceBatch`; see `BatchTable`."""

    _NAMES = (
        *("obs", "action", "reward", "discount", "bootstrap", "weight", "ids", "version", "policy_updates"),
        *("begins", "trained"),
    )

    def __init__(
        self, batch: SequenceBatch, ring: RingReader, shape: SequenceShape, frame_stack: int
    ) -> None:
        self._ring = ring
        self._named = self._arrays(batch)
        like = SequenceBatch.allocate(
            batch.size, shape, ring.layout.spec.stacked(frame_stack), ring.layout.extra_fields
        )
        expected = [(array.shape, array.dtype) for _, array in self._arrays(like)]
        self.addresses = checked_addresses(self._named, expected)
        self.work = np.zeros((WORK_ROWS, batch.size), np.int64)
        self.uniforms = np.zeros(batch.size)
        self.rest = np.zeros(batch.size)

    def _arrays(self, batch: SequenceBatch) -> list[tuple[str, NDArray[Any]]]:
        return [(name, getattr(batch, name)) for name in self._NAMES] + extras_of(batch, self._ring)

    def is_of(self, batch: SequenceBatch) -> bool:
        """Whether `batch` still holds the arrays whose addresses these are."""
        return all(own is now for (_, own), (_, now) in zip(self._named, self._arrays(batch), strict=True))


def state_table(
    ring: RingReader, bits: int, env_bits: int, shape: SequenceShape, stack: int, window: int
) -> NDArray[np.int64]:
    """Create the `state` table with all counters at zero."""
    steps = ring.num_envs * ring.num_slots
    state = np.zeros(EXTRA_BYTES + len(ring.extras), np.int64)
    state[TREE_BITS], state[ENV_BITS] = bits, env_bits
    state[NUM_ENVS], state[NUM_SLOTS] = ring.num_envs, ring.num_slots
    state[N_STEP], state[STACK], state[WINDOW] = shape.n_step, stack, window
    state[BURN_IN], state[LENGTH] = shape.burn_in, shape.length
    state[PERIOD], state[AHEAD] = shape.period, shape.ahead
    state[OBS_BYTES], state[ACTION_BYTES] = ring.obs.nbytes // steps, ring.action.nbytes // steps
    state[NUM_EXTRAS] = len(ring.extras)
    state[EXTRA_BYTES:] = [a.nbytes // steps for a in ring.extras.values()]
    return state
