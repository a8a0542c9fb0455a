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

from operator import attrgetter, is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch, JointBatch, JointSequenceBatch, SequenceBatch, SequenceShape
from asyncrl.replay.handles import address_of
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
    FAULTY,
    GLOBAL_STATE,
    EXTRA,
) = range(14)

# Words of `numbers`, float64.
GAMMA, ALPHA, EPSILON, FIRST, PRESENT, PREVIOUS = range(6)

# Words of `state`: constants, then counters, then the bytes of each extra field. AHEAD is `SequenceShape.ahead`,
# RETURNS the address of the stored returns (see `gather.py`), 0 without; JOINT is `OF_EACH` or `OF_TEAM` if an item is
# of all agents of an environment (see `joint_replay.py`), else 0, and STATE_BYTES the bytes of an environment's state
# in a row.
ENV_BITS, NUM_ENVS, NUM_SLOTS, N_STEP, STACK, OBS_BYTES, ACTION_BYTES, NUM_EXTRAS = range(8)
BURN_IN, LENGTH, PERIOD, AHEAD, RETURNS, NUM_AGENTS, JOINT, STATE_BYTES = range(8, 16)
OF_EACH, OF_TEAM = 1, 2
MIN_UPDATES, SAMPLEABLE, INSERTED, SAMPLED, RETIRED, DISCARDED, IGNORED = range(16, 23)
WINDOW, CALLS, EXTRA_BYTES = range(23, 26)

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
# Of a `JointSequenceBatch`: as of a `SequenceBatch`, then `state`, then the extras.
TO_GLOBAL_ROWS, TO_JOINT_STATE = 11, 12
# Of a `JointBatch`: `trained`, `state`, `next_state`, then the extras.
TO_ACTING, TO_GLOBAL, TO_NEXT_GLOBAL, TO_JOINT_EXTRA = 9, 10, 11, 12

# Rows of `work[WORK_ROWS, B]`: leaf and ring of the item, indices of its row and of its bootstrap row in `[E * S]`.
LEAF, RING, AT, AFTER, WORK_ROWS = range(5)

ID_BITS = 48
RETURN_BYTES = 16
LEAF_BYTES = RETURN_BYTES + 7
"""The learner's memory for a leaf: its stored return, 4 bytes of priority, and 2.3 of the sums above it, rounded up."""


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
                0 if ring.global_state is None else address_of(ring.global_state),
                *(address_of(a) for a in ring.extras.values()),
            ]
            for ring in rings
        ],
        np.int64,
    )


_COMMON_NAMES = ("weight", "ids", "version", "policy_updates")
_NAMES = ("obs", "action", "reward", "discount", "next_obs", *_COMMON_NAMES)
_JOINT_NAMES = (*_NAMES, "trained", "state", "next_state")
_SEQUENCE_NAMES = ("obs", "action", "reward", "discount", "bootstrap", *_COMMON_NAMES, "begins", "trained")
_JOINT_SEQUENCE_NAMES = (*_SEQUENCE_NAMES, "state")


class BatchTable:
    """Addresses of the arrays of one batch, checked once, with references that keep the memory alive.

    Attributes:
        addresses: the `batch` table for kernels.
        work, uniforms, rest: scratch arrays of sampling and gathering.

    Raises:
        ValueError: an extra field is missing, or an array has another shape or dtype or is read-only.
    """

    def __init__(
        self, batch: Batch | SequenceBatch, ring: RingReader, shape: SequenceShape, frame_stack: int
    ) -> None:
        size, spec, fields = batch.size, ring.layout.spec.stacked(frame_stack), ring.layout.extra_fields
        like: Batch | SequenceBatch
        names: tuple[str, ...]
        states = ring.layout.state_values
        if isinstance(batch, JointSequenceBatch):
            like = JointSequenceBatch.allocate(size, shape, spec, fields, states)
            names = _JOINT_SEQUENCE_NAMES
        elif isinstance(batch, SequenceBatch):
            like, names = SequenceBatch.allocate(size, shape, spec, fields), _SEQUENCE_NAMES
        elif isinstance(batch, JointBatch):
            like, names = JointBatch.allocate(size, spec, fields, states), _JOINT_NAMES
        else:
            like, names = Batch.allocate(size, spec, fields), _NAMES
        if missing := sorted(set(ring.extras) - set(batch.extras)):
            raise ValueError(f"batch.extras must hold {missing[0]!r}, got {sorted(batch.extras)}")
        self._fields, self._extras = attrgetter(*names), tuple(ring.extras)
        self._arrays, expected = self._arrays_of(batch), self._arrays_of(like)
        for name, array, other in zip((*names, *self._extras), self._arrays, expected, strict=True):
            if array.shape != other.shape or array.dtype != other.dtype or not array.flags.writeable:
                raise ValueError(
                    f"batch.{name} must be a writeable {list(other.shape)} {other.dtype}, "
                    f"got {list(array.shape)} {array.dtype}"
                )
        self.addresses = np.array([address_of(array) for array in self._arrays], np.int64)
        self.work = np.zeros((WORK_ROWS, size), np.int64)
        self.uniforms, self.rest = np.zeros(size), np.zeros(size)

    def _arrays_of(self, batch: Batch | SequenceBatch) -> list[Any]:
        """Arrays in the order of the `batch` table; None for a missing extra field."""
        return [*self._fields(batch), *map(batch.extras.get, self._extras)]

    def is_of(self, batch: Batch | SequenceBatch) -> bool:
        """Whether `batch` still holds the arrays whose addresses these are."""
        return all(map(is_, self._arrays_of(batch), self._arrays))


def state_table(
    ring: RingReader, env_bits: int, shape: SequenceShape, stack: int, window: int
) -> NDArray[np.int64]:
    """Create the `state` table with all counters at zero."""
    steps = ring.num_envs * ring.num_slots
    state = np.zeros(EXTRA_BYTES + len(ring.extras), np.int64)
    state[ENV_BITS] = env_bits
    state[NUM_ENVS], state[NUM_SLOTS] = ring.num_envs, ring.num_slots
    state[N_STEP], state[STACK], state[WINDOW] = shape.n_step, stack, window
    state[BURN_IN], state[LENGTH] = shape.burn_in, shape.length
    state[PERIOD], state[AHEAD] = shape.period, shape.ahead
    state[NUM_AGENTS], state[STATE_BYTES] = ring.layout.spec.num_agents, 4 * ring.layout.state_values
    state[OBS_BYTES], state[ACTION_BYTES] = ring.obs.nbytes // steps, ring.action.nbytes // steps
    state[NUM_EXTRAS] = len(ring.extras)
    state[EXTRA_BYTES:] = [a.nbytes // steps for a in ring.extras.values()]
    return state
