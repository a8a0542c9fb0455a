"""K-ary sum tree: draw indices in proportion to priorities, change many priorities at once.

Layout. All numbers of the tree stand in one array, `nodes[G, 2, K]` of float64, whose first byte lies on a
page. Row g is a *group*, the K children of one node; `nodes[g, PRIORITY, j]` is the sum of child j (for a
group of leaves: the priority itself) and `nodes[g, BEFORE, j]` the sum of children 0 .. j - 1. With K = 8 each
of the two is one 64-byte cache line: a descent reads one line per level, an update two.

    level 0        groups first[0] ..      leaf x is child x % K of group first[0] + x // K
    level l        groups first[l] ..      child x % K of group first[l] + x // K sums group x of level l - 1
    last level     one group               its child 0 is the total; its other children are not used

Decisions. *Sums are computed from the children*, left to right, never by adding differences: what `check`
recomputes is equal to the last bit after any number of updates (differences in float32, as in the PAL authors'
tree, are off by 1e-3 right after the fill). *All samples descend together*, level by level, so that their
cache misses overlap, and the child is found by counting `BEFORE <= target`, without a branch to mispredict;
a binary search over the same line was 3 times slower, for LLVM turns it into branches. *K = 8*: of 4, 8, 16,
32 and 64 the cheapest sum of sample and update at 2^20 leaves (`benchmarks/replay.py`, "fanout").
*Unsigned row numbers* in kernels: a signed index costs numba's wrap-around test on each access (2 times).

K-ary tree: Zhang et al., "Parallel Actors and Learners", arXiv 2110.01101, section IV; stratified
proportional sampling: Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952, appendix B.2.1.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from asyncrl.shm.atomics import kernel

PRIORITY = 0
"""`nodes[g, PRIORITY, j]`: sum of child j, or the priority of a leaf."""
BEFORE = 1
"""`nodes[g, BEFORE, j]`: sum of children 0 .. j - 1 of the group."""
FANOUT = 8

_MARKED = -1.0  # stands in BEFORE[0] (else 0) of a group that waits for its sums to be recomputed

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """A function that kernels call: compiled into each of them, callable from Python for tests."""
    return cast("Function", njit(nogil=True, error_model="numpy")(function))


@inlined
def _sum_group(nodes: NDArray[np.float64], group: np.uintp) -> float:
    """Recompute BEFORE of a group from its PRIORITY; returns the group's sum."""
    total = 0.0
    for j in range(nodes.shape[2]):
        nodes[group, BEFORE, j] = total
        total += nodes[group, PRIORITY, j]
    return total


@inlined
def put(
    nodes: NDArray[np.float64], bits: int, leaf: int, value: float, dirty: NDArray[np.int64], count: int
) -> int:
    """Write one leaf and remember its group, once, in `dirty[:count]`; returns the new count."""
    group = leaf >> bits
    nodes[np.uintp(group), PRIORITY, np.uintp(leaf - (group << bits))] = value
    return _mark(nodes, np.uintp(group), group, dirty, count)


@inlined
def _mark(nodes: NDArray[np.float64], row: np.uintp, group: int, dirty: NDArray[np.int64], count: int) -> int:
    # Without a branch: in the upper levels it would be mispredicted about every third time.
    dirty[np.uintp(count)] = group
    unmarked = nodes[row, BEFORE, 0] != _MARKED
    nodes[row, BEFORE, 0] = _MARKED
    return count + int(unmarked)


@inlined
def sum_up(
    nodes: NDArray[np.float64],
    first: NDArray[np.int64],
    bits: int,
    dirty: NDArray[np.int64],
    count: int,
) -> None:
    """Recompute the groups in `dirty[:count]` of level 0 and all above them, each once; clears the marks."""
    for level in range(1, first.shape[0]):
        parents = 0
        for i in range(count):
            group = dirty[i]
            parent = group >> bits
            row = np.uintp(first[level] + parent)
            child = np.uintp(group - (parent << bits))
            nodes[row, PRIORITY, child] = _sum_group(nodes, np.uintp(first[level - 1] + group))
            parents = _mark(nodes, row, parent, dirty, parents)
        count = parents
    nodes[np.uintp(nodes.shape[0] - 1), BEFORE, 0] = 0.0


@inlined
def sum_up_range(
    nodes: NDArray[np.float64], first: NDArray[np.int64], bits: int, start: int, stop: int
) -> None:
    """Recompute everything above the leaves `start .. stop - 1` (at least one)."""
    low, high = start, stop - 1
    for level in range(1, first.shape[0]):
        low >>= bits
        high >>= bits
        for group in range(low, high + 1):
            parent = group >> bits
            row = np.uintp(first[level] + parent)
            child = np.uintp(group - (parent << bits))
            nodes[row, PRIORITY, child] = _sum_group(nodes, np.uintp(first[level - 1] + group))


@inlined
def priority_of(nodes: NDArray[np.float64], bits: int, leaf: int) -> float:
    """The priority of a leaf."""
    group = leaf >> bits
    return nodes[np.uintp(group), PRIORITY, np.uintp(leaf - (group << bits))]  # type: ignore[no-any-return]


@inlined
def total_of(nodes: NDArray[np.float64]) -> float:
    """The sum of all priorities."""
    return nodes[np.uintp(nodes.shape[0] - 1), PRIORITY, 0]  # type: ignore[no-any-return]


@inlined
def draw(
    nodes: NDArray[np.float64],
    first: NDArray[np.int64],
    bits: int,
    uniforms: NDArray[np.float64],
    rest: NDArray[np.float64],
    out: NDArray[np.int64],
) -> None:
    """Stratified sample: `out[i]` is the leaf whose share of [0, total) holds `(i + uniforms[i]) / B * total`.

    A child of zero sum has BEFORE equal to its right neighbour's and is never the last that is `<= target`.
    Only rounding can push a target past the end of a group; it then falls to the right of the group's last
    non-zero leaf, and the walk at the end brings it back there. The total must be positive.
    """
    size = out.shape[0]
    stride = total_of(nodes) / size
    for i in range(size):
        rest[i] = (i + uniforms[i]) * stride
        out[i] = 0
    for level in range(first.shape[0] - 2, -1, -1):
        for i in range(size):
            group = np.uintp(first[level] + out[i])
            target = rest[i]
            child = -1
            for j in range(nodes.shape[2]):
                child += int(nodes[group, BEFORE, j] <= target)
            rest[i] = target - nodes[group, BEFORE, np.uintp(child)]
            out[i] = (out[i] << bits) + child
    for i in range(size):
        while priority_of(nodes, bits, out[i]) <= 0.0:
            out[i] -= 1


@kernel("int64(float64[:,:,::1], int64[::1], int64, int64, int64[::1], float64[::1], int64[::1])")
def set_leaves(
    nodes: NDArray[np.float64],
    first: NDArray[np.int64],
    bits: int,
    capacity: int,
    indices: NDArray[np.int64],
    values: NDArray[np.float64],
    dirty: NDArray[np.int64],
) -> int:
    """Write leaves in order and sum up once; -1, or the first item that is out of range (nothing written)."""
    for i in range(indices.shape[0]):
        if not (0 <= indices[i] < capacity and 0.0 <= values[i] < np.inf):
            return i
    count = 0
    for i in range(indices.shape[0]):
        count = put(nodes, bits, indices[i], values[i], dirty, count)
    if count:
        sum_up(nodes, first, bits, dirty, count)
    return -1


@kernel("void(float64[:,:,::1], int64[::1], int64, int64, int64, float64)")
def set_leaf_range(
    nodes: NDArray[np.float64], first: NDArray[np.int64], bits: int, start: int, stop: int, value: float
) -> None:
    """Write `value` to the leaves `start .. stop - 1` (at least one) and sum up."""
    for leaf in range(start, stop):
        group = leaf >> bits
        nodes[np.uintp(group), PRIORITY, np.uintp(leaf - (group << bits))] = value
    sum_up_range(nodes, first, bits, start, stop)


@kernel("void(float64[:,:,::1], int64[::1], int64, float64[::1], float64[::1], int64[::1])")
def draw_leaves(
    nodes: NDArray[np.float64],
    first: NDArray[np.int64],
    bits: int,
    uniforms: NDArray[np.float64],
    rest: NDArray[np.float64],
    out: NDArray[np.int64],
) -> None:
    """`draw`, for callers in Python."""
    draw(nodes, first, bits, uniforms, rest, out)


def _on_pages(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Zeros whose first byte begins a page (numpy aligns to 16 bytes only), in huge pages where there are any."""
    pages = mmap.mmap(-1, int(np.prod(shape)) * 8)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.float64).reshape(shape)


class SumTree:
    """Priorities of `capacity` leaves, all zero at first; one thread.

    Attributes:
        capacity: number of leaves.
        fanout: K, children of a node.
        nodes, first, bits: the arrays of the module's docstring and log2 K, for kernels that work on the tree.
    """

    def __init__(self, capacity: int, fanout: int = FANOUT) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if fanout not in (2, 4, 8, 16, 32, 64):
            raise ValueError(f"fanout must be a power of two from 2 to 64, got {fanout}")
        self.capacity = capacity
        self.fanout = fanout
        self.bits = fanout.bit_length() - 1
        groups = [-(-capacity // fanout)]
        while groups[-1] > 1:
            groups.append(-(-groups[-1] // fanout))
        groups.append(1)
        self.first: NDArray[np.int64] = np.concatenate(([0], np.cumsum(groups)[:-1])).astype(np.int64)
        self.nodes = _on_pages((sum(groups), 2, fanout))
        self._dirty = np.zeros(256, np.int64)
        self._rest = np.zeros(256)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self.nodes[-1, PRIORITY, 0])

    def set(self, indices: NDArray[np.int64], values: NDArray[np.floating[Any]]) -> None:
        """Give `indices` `[B]` the priorities `values` `[B]`; of a repeated index the last value holds.

        Every inner node above them is recomputed once, whatever their order. Either all are written or none.

        Raises:
            ValueError: an index outside of [0, capacity); a priority that is negative, infinite or NaN.
        """
        indices = np.ascontiguousarray(indices, np.int64)
        values = np.ascontiguousarray(values, np.float64)
        if indices.ndim != 1 or indices.shape != values.shape:
            raise ValueError(
                f"indices and values must be [B] alike, got shapes {indices.shape} and {values.shape}"
            )
        if indices.size > self._dirty.size:
            self._dirty = np.zeros(indices.size, np.int64)
        bad = set_leaves(self.nodes, self.first, self.bits, self.capacity, indices, values, self._dirty)
        if bad >= 0:
            raise ValueError(
                f"index must be in [0, {self.capacity}) and priority finite and at least 0, "
                f"got {indices[bad]} and {values[bad]}"
            )

    def set_range(self, start: int, stop: int, value: float) -> None:
        """Give all of `start .. stop - 1` the priority `value`.

        Raises:
            ValueError: the range leaves [0, capacity]; the priority is negative, infinite or NaN.
        """
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"range must lie within [0, {self.capacity}], got {start} to {stop}")
        if not 0.0 <= value < np.inf:
            raise ValueError(f"priority must be finite and at least 0, got {value}")
        if start < stop:
            set_leaf_range(self.nodes, self.first, self.bits, start, stop, float(value))

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Priorities of `indices` `[B]`, a copy. Raises IndexError outside of the tree."""
        indices = np.asarray(indices)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.capacity:
            raise IndexError(f"indices must be in [0, {self.capacity})")
        return self.leaves()[indices >> self.bits, indices & (self.fanout - 1)]

    def leaves(self) -> NDArray[np.float64]:
        """All leaves as `[groups, K]`, a view; what lies beyond `capacity` is zero."""
        return self.nodes[: -(-self.capacity // self.fanout), PRIORITY]

    def sample(self, uniforms: NDArray[np.float64], out: NDArray[np.int64]) -> None:
        """Write to `out[i]` the leaf at `(i + uniforms[i]) / B * total` of the cumulated priorities.

        Each leaf owns the half-open stretch [sum before it, sum up to it): one of zero priority is never drawn.

        Args:
            uniforms: `[B]` in [0, 1).
            out: `[B]`, written in ascending order of leaves.

        Raises:
            ValueError: the shapes differ, or all priorities are zero.
        """
        if uniforms.ndim != 1 or uniforms.shape != out.shape:
            raise ValueError(
                f"uniforms and out must be [B] alike, got shapes {uniforms.shape} and {out.shape}"
            )
        if not self.total > 0.0:
            raise ValueError("total priority must be positive to sample, got 0")
        if out.size > self._rest.size:
            self._rest = np.zeros(out.size)
        draw_leaves(self.nodes, self.first, self.bits, uniforms, self._rest, out)

    def max(self) -> float:
        """The largest priority, exactly; reads all leaves (0.5 ms for a million), so not for the hot path."""
        return float(self.leaves().max())

    def min_nonzero(self) -> float:
        """The smallest priority above zero, exactly, or infinity where there is none; reads all leaves."""
        leaves = self.leaves()
        return float(np.min(leaves, where=leaves > 0.0, initial=np.inf))

    def check(self) -> None:
        """Recompute every sum from its children. Raises AssertionError where one differs in any bit."""
        sums = np.cumsum(self.nodes[:, PRIORITY], axis=1)
        assert not self.nodes[:, BEFORE, 0].any(), "a group is still marked as dirty"
        assert np.array_equal(self.nodes[:, BEFORE, 1:][:-1], sums[:-1, :-1]), "BEFORE is not the running sum"
        ends = [*self.first[1:].tolist(), len(self.nodes)]
        for level in range(1, len(self.first)):
            below = sums[self.first[level - 1] : self.first[level], -1]
            here = self.nodes[self.first[level] : ends[level], PRIORITY].reshape(-1)
            assert np.array_equal(here[: below.size], below), f"a sum of level {level} is not its children's"
            assert not here[below.size :].any(), f"level {level} has weight beyond its last child"
