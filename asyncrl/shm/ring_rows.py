"""Rows and positions of a ring in a checkpoint: saving and restoring.

Rows `[first, published]` are saved: all readable rows, and row `published` for its observation, which the actor writes
before it publishes the previous row. A file has the streams of the ring in order, each with consecutive rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import store_word
from asyncrl.shm.ring import RingReader
from asyncrl.shm.ring_layout import CURRENT_ENV, EXPLORATION, GRANTED, INCARNATION, PUBLISHED, STEPS


@dataclass(frozen=True)
class RingPosition:
    """Positions and counters of a ring.

    Attributes:
        published, granted: rows since the run began.
        steps: environment steps taken by the actor, RESET rows excluded.
        incarnation: number of the actor's last life.
        exploration: exploration rate of the actor in millionths.
    """

    published: int
    granted: int
    steps: int
    incarnation: int
    exploration: int


def position_of(ring: RingReader, published: int) -> RingPosition:
    """Position of the ring, with `published` in place of the word."""
    steps, life, exploration = (int(ring.header[word]) for word in (STEPS, INCARNATION, EXPLORATION))
    return RingPosition(published, ring.granted, steps, life, exploration)


def begin_at(ring: RingReader, position: RingPosition) -> None:
    """Set the words of a new ring to `position`, before an actor or the learner uses it.

    Raises:
        ValueError: the position is invalid for this ring.
    """
    published, granted = position.published, position.granted
    if not 0 <= published <= granted <= published + ring.num_slots:
        raise ValueError(
            f"published must be from 0 to granted, and granted at most {ring.num_slots} rows further, "
            f"got {published} and {granted}"
        )
    ring.header[STEPS] = min(position.steps, granted * ring.num_envs)
    ring.header[INCARNATION] = position.incarnation
    ring.header[EXPLORATION] = position.exploration
    ring.header[CURRENT_ENV] = -1
    ring._granted_before = ring._granted_to = granted
    store_word(ring.header, GRANTED, granted)
    store_word(ring.header, PUBLISHED, published)


def first_kept(published: int, granted: int, num_slots: int) -> int:
    """First readable row of a ring with these positions; row `published` has a slot too, granted or not."""
    return min(published, max(0, max(granted, published + 1) - num_slots))


def arrays_of(ring: RingReader) -> dict[str, tuple[NDArray[Any], int]]:
    """Arrays of rows by name, each with its axis of slots."""
    streams: dict[str, NDArray[Any]] = {
        "obs": ring.obs,
        "action": ring.action,
        "reward": ring.reward,
        "flags": ring.flags,
    }
    by_row: dict[str, NDArray[Any]] = {
        "version": ring.version,
        "policy_updates": ring.policy_updates,
        "incarnation": ring.incarnation,
    }
    if ring.global_state is not None:
        streams["global_state"] = ring.global_state
    extras = {f"extra_{name}": array for name, array in ring.extras.items()}
    return {
        **{name: (array, 1) for name, array in {**streams, **extras}.items()},
        **{name: (array, 0) for name, array in by_row.items()},
    }


def pieces(array: NDArray[Any], axis: int, first: int, rows: int, num_slots: int) -> Iterator[NDArray[Any]]:
    """Contiguous views of `rows` rows from `first` on, stream by stream, in the order of a file."""
    streams = [array] if axis == 0 else list(array)
    start = first & (num_slots - 1)
    head = min(rows, num_slots - start)
    for stream in streams:
        yield stream[start : start + head]
        if head < rows:
            yield stream[: rows - head]


def put_rows(ring: RingReader, first: int, saved: Mapping[str, NDArray[Any]]) -> None:
    """Write saved rows into a ring at their positions.

    Args:
        ring: new ring of the same layout; `num_slots` may differ.
        first: position of the first row.
        saved: arrays by the names of `arrays_of`; the axis of slots holds the rows from `first` on.

    Raises:
        ValueError: an array is missing, has another shape or dtype, or has more rows than the ring has slots.
    """
    for name, (array, axis) in arrays_of(ring).items():
        values = saved.get(name)
        if values is None:
            raise ValueError(f"saved rows must hold {name}, got {sorted(saved)}")
        rows = values.shape[axis] if values.ndim > axis else -1
        expected = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
        if values.dtype != array.dtype or values.shape != expected or rows > ring.num_slots:
            raise ValueError(
                f"{name} must be {array.dtype} {list(array.shape)}, got {values.dtype} {list(values.shape)}"
            )
        slots = np.arange(first, first + rows) & (ring.num_slots - 1)
        if axis == 0:
            array[slots] = values
        else:
            array[:, slots] = values
