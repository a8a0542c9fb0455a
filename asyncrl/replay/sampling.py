"""Kernels of every update: sample a batch, and set new priorities of its rows.

Both are limited by the latency of main memory, so both prefetch cache lines well before they use them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.replay.gather import gather, locate
from asyncrl.replay.handles import float32s, int64s, prefetch
from asyncrl.replay.power import power
from asyncrl.replay.tables import (
    ALPHA,
    CALLS,
    CLOSED,
    DECIDED,
    EPSILON,
    FIRST,
    ID_BITS,
    IGNORED,
    LEAF,
    PRESENT,
    PREVIOUS,
    SAMPLEABLE,
    SAMPLED,
    TO_IDS,
    TO_WEIGHT,
    WINDOW,
    Numbers,
    Words,
    leaf_of,
    split_id,
)
from asyncrl.replay.tree_kernels import (
    BEFORE,
    BITS,
    SUM,
    Leaves,
    Nodes,
    descend,
    find_leaf,
    group_at,
    prefetch_leaves,
    put,
    sum_up,
    total_of,
)
from asyncrl.shm.kernel import inlined, kernel

_LOOKAHEAD = 16  # items between the prefetch and the use of cache lines; 8 to 32 are equally fast
_SMALLEST_RATIO = 1e-30  # minimum ratio of a priority to the mean; keeps float32 weights finite

_TREE = "float32[::1], float64[:,:,::1], int64[::1]"
_TABLES = "int64[:,::1], int64[::1]"


@inlined
def importance_weights(
    priorities: Numbers, total: float, count: int, beta: float, out: NDArray[np.float32]
) -> None:
    """`out[i] = (count * priorities[i] / total) ** -beta`, not normalised; uses `priorities` as scratch."""
    mean = total / count
    for i in range(out.shape[0]):
        priorities[i] = max(priorities[i] / mean, _SMALLEST_RATIO)
    power(priorities, 0.0, -beta, out)


@inlined
def take_leaves(
    leaves: Leaves,
    nodes: Nodes,
    rings: Words,
    state: Words,
    beta: float,
    batch: Words,
    rest: Numbers,
    work: Words,
) -> None:
    """Find leaves in the groups `work[LEAF]`; fill the batch's `ids` and `weight`, and LEAF, RING and AT of `work`."""
    size = rest.shape[0]
    ids, weight = int64s(batch[TO_IDS], size), float32s(batch[TO_WEIGHT], size)
    for i in range(size):
        leaf = find_leaf(leaves, work[LEAF, i], rest[i])
        ids[i] = locate(rings, state, leaf, work, i)
        rest[i] = leaves[np.uintp(leaf)]
    importance_weights(rest, total_of(nodes), state[SAMPLEABLE], beta, weight)
    largest = np.float32(0.0)
    for i in range(size):
        largest = max(largest, weight[i])
    for i in range(size):
        weight[i] /= largest
    state[SAMPLED] += size


@kernel(f"void({_TREE}, {_TABLES}, float64, int64[::1], float64[::1], float64[::1], int64[:,::1])")
def sample(
    leaves: Leaves,
    nodes: Nodes,
    first: Words,
    rings: Words,
    state: Words,
    beta: float,
    batch: Words,
    uniforms: Numbers,
    rest: Numbers,
    work: Words,
) -> None:
    """Sample transitions and gather them into the batch."""
    descend(leaves, nodes, first, uniforms, rest, work[LEAF])
    take_leaves(leaves, nodes, rings, state, beta, batch, rest, work)
    gather(rings, state, int64s(batch[TO_IDS], work.shape[1]), batch, work)


@inlined
def prefetch_leaf(leaves: Leaves, nodes: Nodes, leaf: int) -> None:
    """Prefetch the cache lines that an update writes: of a leaf group and of its level 0 group."""
    group = leaf >> BITS
    prefetch_leaves(leaves, group)
    prefetch(group_at(nodes, group >> BITS, SUM))
    prefetch(group_at(nodes, group >> BITS, BEFORE))


@inlined
def note_largest(state: Words, numbers: Numbers, largest: float) -> None:
    """Set the first priority of new rows to the largest of the recent priorities.

    Schaul et al. (arXiv 1511.05952, section 3.3, algorithm 1) give a new row the largest priority so far. But errors
    shrink during training, and one early outlier would put every new row far above all trained rows. So the maximum is
    over two windows of WINDOW updates each, the current and the previous one: an outlier is forgotten after WINDOW to
    2 WINDOW updates. A window counts the calls of `update` that set a priority; `largest` is the largest priority of
    such a call. The first priority is 1 until the first such call, and that 1 does not enter the maximum.
    """
    if state[CALLS] == state[WINDOW]:
        numbers[PREVIOUS] = numbers[PRESENT]
        numbers[PRESENT] = 0.0
        state[CALLS] = 0
    state[CALLS] += 1
    numbers[PRESENT] = max(numbers[PRESENT], largest)
    numbers[FIRST] = max(numbers[PRESENT], numbers[PREVIOUS])


@kernel(f"int64({_TREE}, {_TABLES}, float64[::1], int64[::1], float32[::1], int64[::1], float32[::1])")
def update(
    leaves: Leaves,
    nodes: Nodes,
    first: Words,
    rings: Words,
    state: Words,
    numbers: Numbers,
    ids: Words,
    errors: NDArray[np.float32],
    dirty: Words,
    priorities: NDArray[np.float32],
) -> int:
    """Set priorities by id; returns the number of ids of closed rows, or -1 - i if item i is invalid."""
    size = ids.shape[0]
    for i in range(size):
        if not (0.0 <= errors[i] < np.inf and 0 <= ids[i] >> ID_BITS < rings.shape[0]):
            return -1 - i
    power(errors, numbers[EPSILON], numbers[ALPHA], priorities[:size])
    largest = 0.0
    count = ignored = 0
    for i in range(-_LOOKAHEAD, size):
        if i + _LOOKAHEAD < size:
            prefetch_leaf(leaves, nodes, leaf_of(state, ids[i + _LOOKAHEAD]))
        if i < 0:
            continue
        leaf = leaf_of(state, ids[i])
        ring, position, _ = split_id(state, ids[i])
        if rings[ring, CLOSED] <= position < rings[ring, DECIDED] and leaves[np.uintp(leaf)] > 0.0:
            largest = max(largest, np.float64(priorities[i]))
            count = put(leaves, nodes, leaf, priorities[i], dirty, count)
        else:
            ignored += 1
    if count:
        sum_up(leaves, nodes, first, dirty, count)
        note_largest(state, numbers, largest)
    state[IGNORED] += ignored
    return ignored
