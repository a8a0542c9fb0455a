"""Kernels for the states of a row on the learner side, over `tables.py` and the sum tree.

    seen          published by the actor and ingested                      position < SEEN
    decided       has its first priority: AHEAD further rows are seen      position < DECIDED
    closed        has priority zero from now on                            position < CLOSED

Sampled items are sequences of rows, identified by the first row (a transition is a sequence of one row and its n_step
successors, see `SequenceShape`). A row is *decided* once `row + AHEAD < published`, so that the gather reads published
rows only. A new sequence gets the largest of the recent priorities, so that it is likely to be sampled once (see
`sampling.note_largest`). A row gets zero if it begins no sequence, or one without a trained row. RESET rows, whose
action was not taken, FROZEN rows, whose action was a past version's, and the last row of an actor's life, which has no
successor, are not trained on.

A row is *closed* before the actor may overwrite it (lazy writing: first the priority, then the grant), and when its
policy is older than the staleness bound. With frame stacks the next `STACK - 1` rows are closed too: their stacks begin
in memory that is being overwritten.
"""

from __future__ import annotations

import numpy as np

from asyncrl.interfaces import RESET
from asyncrl.replay.gather import is_trained, write_no_return, write_return
from asyncrl.replay.handles import int32s, int64s, uint8s
from asyncrl.replay.tables import (
    AHEAD,
    BURN_IN,
    CLOSED,
    DECIDED,
    DISCARDED,
    ENV_BITS,
    FAULTY,
    FIRST,
    FLAGS,
    GAMMA,
    HEADER,
    INCARNATION,
    INSERTED,
    JOINT,
    LENGTH,
    MIN_UPDATES,
    NUM_AGENTS,
    NUM_ENVS,
    NUM_SLOTS,
    PERIOD,
    RETIRED,
    RETURNS,
    SAMPLEABLE,
    SEEN,
    STACK,
    UPDATES,
    Numbers,
    Words,
)
from asyncrl.replay.tree_kernels import Leaves, Nodes, sum_up_range
from asyncrl.shm.atomics import load_acquire
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.ring_layout import GRANTED, HEADER_WORDS, PUBLISHED

_TREE = "float32[::1], float64[:,:,::1], int64[::1]"
_TABLES = "int64[:,::1], int64[::1]"


@inlined
def poll(rings: Words, ring: int, slots: int) -> int:
    """Load `published` (acquire); -1 if it moved back or is outside of [granted - S, granted]."""
    header = int64s(rings[ring, HEADER], HEADER_WORDS)
    published = load_acquire(header, PUBLISHED)
    granted = load_acquire(header, GRANTED)
    if published < rings[ring, SEEN] or published < granted - slots or published > granted:
        return -1
    return published  # type: ignore[no-any-return]


@inlined
def _count_steps_of_agents(rings: Words, state: Words, ring: int, start: int, stop: int) -> int:
    """`count_steps` for environments of several agents: rows in which at least one of them acted."""
    slots, streams, agents = state[NUM_SLOTS], state[NUM_ENVS], state[NUM_AGENTS]
    flags = uint8s(rings[ring, FLAGS], slots * streams)
    steps = 0
    for first in range(0, streams, agents):
        for row in range(start, stop):
            acted = False
            for stream in range(first, first + agents):
                acted |= flags[np.uintp(stream * slots + (row & (slots - 1)))] & RESET == 0
            steps += int(acted)
    return steps


@inlined
def count_steps(rings: Words, state: Words, ring: int, start: int, stop: int) -> int:
    """Env-steps in the rows `start .. stop - 1`, RESET rows excluded; see `interfaces.environment_steps`."""
    if state[NUM_AGENTS] > 1:
        return _count_steps_of_agents(rings, state, ring, start, stop)
    slots, envs = state[NUM_SLOTS], state[NUM_ENVS]
    flags = uint8s(rings[ring, FLAGS], slots * envs)
    steps = 0
    for env in range(envs):
        for row in range(start, stop):
            steps += int(flags[np.uintp(env * slots + (row & (slots - 1)))] & RESET == 0)
    return steps


@inlined
def _sum_rows(
    leaves: Leaves, nodes: Nodes, first: Words, state: Words, ring: int, start: int, stop: int
) -> None:
    """Recompute the sums above the rows `start .. stop - 1`, at most S of them."""
    slots, env_bits = state[NUM_SLOTS], state[ENV_BITS]
    slot = start & (slots - 1)
    head = min(stop - start, slots - slot)
    low = (ring * slots + slot) << env_bits
    sum_up_range(leaves, nodes, first, low, low + (head << env_bits))
    if head < stop - start:  # the rows wrap around to slot 0
        low = (ring * slots) << env_bits
        sum_up_range(leaves, nodes, first, low, low + ((stop - start - head) << env_bits))


@inlined
def close_rows(
    leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, ring: int, stop: int
) -> None:
    """Zero the priorities of all rows below `stop` permanently, also of those not decided yet."""
    start, end = rings[ring, CLOSED], min(stop, rings[ring, DECIDED])
    if stop <= start:
        return
    rings[ring, CLOSED] = stop
    rings[ring, DECIDED] = max(stop, rings[ring, DECIDED])
    if end <= start:
        return
    slots, env_bits = state[NUM_SLOTS], state[ENV_BITS]
    for row in range(start, end):
        low = (ring * slots + (row & (slots - 1))) << env_bits
        for leaf in range(low, low + state[NUM_ENVS]):
            state[SAMPLEABLE] -= int(leaves[np.uintp(leaf)] > 0.0)
            leaves[np.uintp(leaf)] = 0.0
    _sum_rows(leaves, nodes, first, state, ring, start, end)


@inlined
def close_stale(leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, ring: int) -> None:
    """Close the seen rows with fewer policy updates than MIN_UPDATES: a prefix, because they never decrease."""
    slots = state[NUM_SLOTS]
    updates = int64s(rings[ring, UPDATES], slots)
    stop = rings[ring, CLOSED]
    while stop < rings[ring, SEEN] and updates[np.uintp(stop & (slots - 1))] < state[MIN_UPDATES]:
        stop += 1
    state[DISCARDED] += count_steps(rings, state, ring, rings[ring, CLOSED], stop)
    close_rows(leaves, nodes, first, rings, state, ring, stop)


@inlined
def decide_rows(
    leaves: Leaves, nodes: Nodes, first_group: Words, rings: Words, state: Words, numbers: Numbers, ring: int
) -> None:
    """Set the first priorities of the rows that have enough published successors."""
    slots, envs, env_bits = state[NUM_SLOTS], state[NUM_ENVS], state[ENV_BITS]
    start, stop = rings[ring, DECIDED], rings[ring, SEEN] - state[AHEAD]
    if stop <= start:
        return
    rings[ring, DECIDED] = stop
    flags = uint8s(rings[ring, FLAGS], slots * envs)
    incarnation = int32s(rings[ring, INCARNATION], slots)
    for row in range(start, stop):
        first, last = row + state[BURN_IN], row + state[BURN_IN] + state[LENGTH]
        if row % state[PERIOD] != 0:
            last = first  # no sequence begins here
        for env in range(envs):
            trained = False
            for at in range(first, last):
                trained |= is_trained(flags, incarnation, env * slots, at)
            leaf = ((ring * slots + (row & (slots - 1))) << env_bits) + env
            leaves[np.uintp(leaf)] = numbers[FIRST] if trained else 0.0
            state[SAMPLEABLE] += int(trained)
            if trained and state[RETURNS] != 0:
                write_return(rings, state, numbers[GAMMA], ring, row, env, leaf)
    _sum_rows(leaves, nodes, first_group, state, ring, start, stop)


@inlined
def decide_joint_rows(
    leaves: Leaves, nodes: Nodes, first_group: Words, rings: Words, state: Words, numbers: Numbers, ring: int
) -> None:
    """`decide_rows` for items of all agents of an environment, rows or sequences: their priority is at the first agent.

    One agent that acts in one row suffices. Returns are stored of single rows only.
    """
    slots, streams, agents = state[NUM_SLOTS], state[NUM_ENVS], state[NUM_AGENTS]
    start, stop = rings[ring, DECIDED], rings[ring, SEEN] - state[AHEAD]
    if stop <= start:
        return
    rings[ring, DECIDED] = stop
    flags = uint8s(rings[ring, FLAGS], slots * streams)
    incarnation = int32s(rings[ring, INCARNATION], slots)
    for row in range(start, stop):
        leaf_of_row = (ring * slots + (row & (slots - 1))) << state[ENV_BITS]
        begin, end = row + state[BURN_IN], row + state[BURN_IN] + state[LENGTH]
        if row % state[PERIOD] != 0:
            end = begin  # no sequence begins here
        for first in range(0, streams, agents):
            trained = False
            for stream in range(first, first + agents):
                acts = False
                for at in range(begin, end):
                    acts |= is_trained(flags, incarnation, stream * slots, at)
                trained |= acts
                if state[RETURNS] == 0:
                    continue
                if acts:
                    write_return(rings, state, numbers[GAMMA], ring, row, stream, leaf_of_row + stream)
                else:
                    write_no_return(state, leaf_of_row + stream)
            leaves[np.uintp(leaf_of_row + first)] = numbers[FIRST] if trained else 0.0
            state[SAMPLEABLE] += int(trained)
    _sum_rows(leaves, nodes, first_group, state, ring, start, stop)


@kernel(f"int64({_TREE}, {_TABLES}, float64[::1])")
def ingest(leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, numbers: Numbers) -> int:
    """Ingest the new rows of all rings without a fault; returns their env-steps, RESET rows excluded.

    A ring with invalid positions is marked FAULTY and ignored from then on.
    """
    inserted = 0
    for ring in range(rings.shape[0]):
        if rings[ring, FAULTY] != 0:
            continue
        published = poll(rings, ring, state[NUM_SLOTS])
        if published < 0:
            rings[ring, FAULTY] = 1
            continue
        if published == rings[ring, SEEN]:
            continue
        inserted += count_steps(rings, state, ring, rings[ring, SEEN], published)
        rings[ring, SEEN] = published
        if state[MIN_UPDATES] > 0:
            close_stale(leaves, nodes, first, rings, state, ring)
        if state[JOINT] != 0:
            decide_joint_rows(leaves, nodes, first, rings, state, numbers, ring)
        else:
            decide_rows(leaves, nodes, first, rings, state, numbers, ring)
    state[INSERTED] += inserted
    return inserted


@kernel(f"void({_TREE}, {_TABLES}, int64, int64)")
def retire(
    leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, ring: int, position: int
) -> None:
    """Close all rows below `position`, which will be overwritten, and the rows with frames among them."""
    if position > 0:
        before = state[SAMPLEABLE]
        close_rows(leaves, nodes, first, rings, state, ring, position + state[STACK] - 1)
        state[RETIRED] += before - state[SAMPLEABLE]


@kernel(f"int64({_TREE}, {_TABLES}, int64)", cold=True)
def give_up(leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, ring: int) -> int:
    """Close all seen rows of a ring and mark it FAULTY; returns how many leaves were sampleable."""
    before = state[SAMPLEABLE]
    rings[ring, FAULTY] = 1
    close_rows(leaves, nodes, first, rings, state, ring, rings[ring, SEEN])
    return before - state[SAMPLEABLE]  # type: ignore[no-any-return]


@kernel(f"int64({_TREE}, {_TABLES}, int64)", cold=True)
def retire_stale(
    leaves: Leaves, nodes: Nodes, first: Words, rings: Words, state: Words, min_updates: int
) -> int:
    """Close the rows of older policies, now and at every later `ingest`; returns the env-steps newly discarded."""
    before = state[DISCARDED]
    state[MIN_UPDATES] = max(state[MIN_UPDATES], min_updates)
    for ring in range(rings.shape[0]):
        close_stale(leaves, nodes, first, rings, state, ring)
    return state[DISCARDED] - before  # type: ignore[no-any-return]
