"""Kernels of the sum tree: mark, sum up, descend.

Layout. `leaves[...]` holds the priorities, float32, in *leaf groups* of K = 8. Above are *groups* of K float64 sums,
all in one array `nodes[G, 2, K]`: `nodes[g, SUM, j]` is the sum of child j, `nodes[g, BEFORE, j]` the sum of the
children before j. Both arrays are aligned to pages, so a leaf group is half a cache line of 64 bytes, and the sums and
the running sums of a group are one line each.

    leaves         leaf group x is leaves K x .. K x + K - 1
    level 0        groups first[0] ..      child x % K of group first[0] + x // K sums leaf group x
    level l        groups first[l] ..      child x % K of group first[l] + x // K sums group x of level l - 1
    last level     one group               its child 0 is the total; its other children are not used

Design decisions.
*Sums are computed from the children*, left to right in float64, never by adding differences: after any number of
updates they equal the sums that `check` recomputes to the last bit. (The PAL authors' float32 differences are off by
1e-3 right after the fill.)
*All samples descend together*, level by level, so that their cache misses overlap. The child is found by counting
`BEFORE <= target` in one vector comparison (`count_at_most`). LLVM makes eight dependent comparisons of the loop that
counts: 5.2 in place of 3.8 microseconds for 256 of a million leaves. (A binary search in the same line was 3 times
slower than that loop: LLVM turns it into branches.)
*float32 leaves without BEFORE*: a sample or an update accesses one line of 64 bytes that may be in main memory; the
levels above take 2 MB per million leaves and stay in the cache. float64 leaves with BEFORE were as fast alone and
slower beside a gather, which competes for the cache.
*K = 8*, a constant of the kernels: of 4, 8, 16, 32 and 64 children, then an argument, it had the fastest sum of sample
and update. Known when a kernel is compiled, it takes a fifth off an update (4.1 in place of 5.0 microseconds).
*Unsigned indices* in kernels: with a signed index numba tests for wrap-around at each access (2 times slower).

K-ary tree: Zhang et al., "Parallel Actors and Learners", arXiv 2110.01101, section IV; stratified
proportional sampling: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952, appendix B.2.1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.replay.handles import count_at_most, prefetch
from asyncrl.shm.kernel import inlined, kernel

BITS = 3
"""log2 of K."""
CHILDREN = 1 << BITS
"""K, children of a group: the float64 of a cache line."""
SUM = 0
"""`nodes[g, SUM, j]`: sum of child j."""
BEFORE = 1
"""`nodes[g, BEFORE, j]`: sum of children 0 .. j - 1 of the group."""
LARGEST_PRIORITY = float(np.finfo(np.float32).max)

_DIRTY = -1.0  # value of a sum that is to be recomputed, during an update only

Leaves = NDArray[np.float32]
Nodes = NDArray[np.float64]
Indices = NDArray[np.int64]


@inlined
def _sum_leaves(leaves: Leaves, group: int) -> float:
    total = 0.0
    for j in range(CHILDREN):
        total += np.float64(leaves[np.uintp((group << BITS) + j)])
    return total


@inlined
def _sum_group(nodes: Nodes, group: int) -> float:
    """Recompute BEFORE of a group; returns the group's sum."""
    row = np.uintp(group)
    total = 0.0
    for j in range(CHILDREN):
        nodes[row, BEFORE, j] = total
        total += nodes[row, SUM, j]
    return total


@inlined
def _store(nodes: Nodes, first: int, child: int, total: float) -> None:
    """Write the sum of child `child` of the level that begins at group `first`."""
    group = child >> BITS
    nodes[np.uintp(first + group), SUM, np.uintp(child - (group << BITS))] = total


@inlined
def _mark(nodes: Nodes, first: int, child: int, dirty: Indices, count: int) -> int:
    """Append `child` to `dirty[:count]` unless its sum is marked already, and mark it; returns the new count."""
    group = child >> BITS
    row, j = np.uintp(first + group), np.uintp(child - (group << BITS))
    # No branch: in the upper levels it would be mispredicted about every third time.
    dirty[np.uintp(count)] = child
    count += int(nodes[row, SUM, j] >= 0.0)
    nodes[row, SUM, j] = _DIRTY
    return count


@inlined
def put(leaves: Leaves, nodes: Nodes, leaf: int, value: float, dirty: Indices, count: int) -> int:
    """Write one leaf and append its group to `dirty[:count]` unless marked already; returns the new count."""
    leaves[np.uintp(leaf)] = value
    return _mark(nodes, 0, leaf >> BITS, dirty, count)


@inlined
def sum_up(leaves: Leaves, nodes: Nodes, first: Indices, dirty: Indices, count: int) -> None:
    """Recompute all sums above the leaf groups `dirty[:count]`, each once; clears the marks."""
    for i in range(count):
        _store(nodes, 0, dirty[i], _sum_leaves(leaves, dirty[i]))
    for level in range(1, first.shape[0]):
        groups = 0
        for i in range(count):
            groups = _mark(nodes, first[level], dirty[i] >> BITS, dirty, groups)
        count = groups
        for i in range(count):
            _store(nodes, first[level], dirty[i], _sum_group(nodes, first[level - 1] + dirty[i]))


@inlined
def sum_up_range(leaves: Leaves, nodes: Nodes, first: Indices, start: int, stop: int) -> None:
    """Recompute all sums above the leaves `start .. stop - 1` (at least one)."""
    low, high = start >> BITS, (stop - 1) >> BITS
    for group in range(low, high + 1):
        _store(nodes, 0, group, _sum_leaves(leaves, group))
    for level in range(1, first.shape[0]):
        low >>= BITS
        high >>= BITS
        for group in range(low, high + 1):
            _store(nodes, first[level], group, _sum_group(nodes, first[level - 1] + group))


@inlined
def group_at(nodes: Nodes, group: int, what: int) -> int:
    """Address of a group's SUM or BEFORE, a cache line."""
    return nodes.ctypes.data + (((group << 1) + what) << BITS << 3)  # type: ignore[no-any-return]


@inlined
def prefetch_leaves(leaves: Leaves, group: int) -> None:
    """Prefetch the cache line of a leaf group."""
    prefetch(leaves.ctypes.data + (group << BITS << 2))


@inlined
def total_of(nodes: Nodes) -> float:
    """Sum of all priorities."""
    return nodes[np.uintp(nodes.shape[0] - 1), SUM, 0]  # type: ignore[no-any-return]


@inlined
def descend(
    leaves: Leaves,
    nodes: Nodes,
    first: Indices,
    uniforms: NDArray[np.float64],
    rest: NDArray[np.float64],
    out: Indices,
) -> None:
    """Find the leaf group `out[i]` whose interval of [0, total) contains `(i + uniforms[i]) / B * total`.

    `rest[i]` becomes the offset within the group's interval. The total must be positive. A child of zero sum has the
    same BEFORE as its right neighbour, so it is never the last with `BEFORE <= target`. Only rounding can move a target
    past the end of a group, to the right of the group's last non-zero leaf; then `last` limits the group to existing
    ones, and `find_leaf` goes back to that leaf.
    """
    size = out.shape[0]
    stride = total_of(nodes) / size
    for i in range(size):
        rest[i] = (i + uniforms[i]) * stride
        out[i] = 0
    for level in range(first.shape[0] - 2, -1, -1):
        last = (first[level] - first[level - 1] if level > 0 else leaves.shape[0] >> BITS) - 1
        for i in range(size):
            group = np.uintp(first[level] + out[i])
            target, start = rest[i], out[i] << BITS
            child = count_at_most(group_at(nodes, first[level] + out[i], BEFORE), target) - 1
            out[i] = min(start + child, last)
            rest[i] = target - nodes[group, BEFORE, np.uintp(out[i] - start)]
            if level > 0:
                prefetch(group_at(nodes, first[level - 1] + out[i], BEFORE))
            else:
                prefetch_leaves(leaves, out[i])


@inlined
def find_leaf(leaves: Leaves, group: int, target: float) -> int:
    """Leaf of the group whose interval contains `target`; never one of zero priority."""
    start = group << BITS
    leaf, total = start, 0.0
    for j in range(CHILDREN - 1):
        total += np.float64(leaves[np.uintp(start + j)])
        leaf += int(total <= target)
    while leaves[np.uintp(leaf)] <= 0.0:
        leaf -= 1
    return leaf


_TREE = "float32[::1], float64[:,:,::1], int64[::1]"


@kernel(f"int64({_TREE}, int64, int64[::1], float64[::1], int64[::1])", cold=True)
def set_leaves(
    leaves: Leaves,
    nodes: Nodes,
    first: Indices,
    capacity: int,
    indices: Indices,
    values: NDArray[np.float64],
    dirty: Indices,
) -> int:
    """Write leaves in order and sum up once; returns -1, or the first invalid item (then nothing is written)."""
    for i in range(indices.shape[0]):
        if not (0 <= indices[i] < capacity and 0.0 <= values[i] <= LARGEST_PRIORITY):
            return i
    count = 0
    for i in range(indices.shape[0]):
        count = put(leaves, nodes, indices[i], values[i], dirty, count)
    sum_up(leaves, nodes, first, dirty, count)
    return -1


@kernel(f"void({_TREE}, int64, int64)", cold=True)
def sum_leaf_range(leaves: Leaves, nodes: Nodes, first: Indices, start: int, stop: int) -> None:
    """Recompute all sums above the leaves `start .. stop - 1` (at least one), after the leaves were written."""
    sum_up_range(leaves, nodes, first, start, stop)


@kernel(f"void({_TREE}, float64[::1], float64[::1], int64[::1])", cold=True)
def draw_leaves(
    leaves: Leaves,
    nodes: Nodes,
    first: Indices,
    uniforms: NDArray[np.float64],
    rest: NDArray[np.float64],
    out: Indices,
) -> None:
    """Stratified sample: set `out[i]` to the leaf at `(i + uniforms[i]) / B * total`."""
    descend(leaves, nodes, first, uniforms, rest, out)
    for i in range(out.shape[0]):
        out[i] = find_leaf(leaves, out[i], rest[i])
