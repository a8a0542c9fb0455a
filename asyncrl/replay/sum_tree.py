"""K-ary sum tree: sampling in proportion to priorities, and batched updates of priorities.

Layout, design decisions and kernels: `tree_kernels.py`.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.replay.tree_kernels import (
    BEFORE,
    CHILDREN,
    SUM,
    Indices,
    Leaves,
    Nodes,
    draw_leaves,
    set_leaves,
    sum_leaf_range,
)


def on_pages(dtype: Any, *shape: int) -> NDArray[Any]:
    """Zeros aligned to a memory page (numpy aligns to 16 bytes), in huge pages if available."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared pages are never huge
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages, such as one for real time
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


class SumTree:
    """Sum tree of `capacity` float32 priorities, all zero at first; one thread.

    Attributes:
        capacity: number of leaves.
        leaves, nodes, first: arrays of `tree_kernels.py`, for kernels. `leaves` is padded with zeros to whole groups.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        leaf_groups = -(-capacity // CHILDREN)
        groups = [-(-leaf_groups // CHILDREN)]
        while groups[-1] > 1:
            groups.append(-(-groups[-1] // CHILDREN))
        groups.append(1)
        self.first: Indices = np.concatenate(([0], np.cumsum(groups)[:-1])).astype(np.int64)
        self.leaves: Leaves = on_pages(np.float32, leaf_groups * CHILDREN)
        self.nodes: Nodes = on_pages(np.float64, sum(groups), 2, CHILDREN)
        self._dirty = np.zeros(256, np.int64)
        self._rest = np.zeros(256)
        self._tree = (self.leaves, self.nodes, self.first)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self.nodes[-1, SUM, 0])

    def set(self, indices: Indices, values: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of `indices` `[B]` to `values` `[B]`; the last value of a repeated index is used.

        Every sum above them is recomputed once. Either all priorities are written or none.

        Raises:
            ValueError: the shapes differ, an index is outside of [0, capacity), or a priority is negative, infinite or
                NaN.
        """
        indices = np.ascontiguousarray(indices, np.int64)
        wide: NDArray[np.float64] = np.ascontiguousarray(values, np.float64)
        if indices.ndim != 1 or indices.shape != values.shape:
            raise ValueError(
                f"indices and values must be [B] alike, got shapes {indices.shape} and {values.shape}"
            )
        if indices.size > self._dirty.size:
            self._dirty = np.zeros(indices.size, np.int64)
        bad = set_leaves(*self._tree, self.capacity, indices, wide, self._dirty)
        if bad >= 0:
            raise ValueError(
                f"index must be in [0, {self.capacity}) and priority finite and at least 0, "
                f"got {indices[bad]} and {values[bad]}"
            )

    def sum_range(self, start: int, stop: int) -> None:
        """Recompute the sums above the leaves `start .. stop - 1` (at least one), after `leaves` was written there."""
        sum_leaf_range(*self._tree, start, stop)

    def sample(self, uniforms: NDArray[np.float64], out: Indices) -> None:
        """Write to `out[i]` the leaf at `(i + uniforms[i]) / B * total` of the cumulative sum of priorities.

        A leaf covers the half-open interval [sum before it, sum up to it), so one of zero priority is never drawn.

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
        draw_leaves(*self._tree, uniforms, self._rest, out)

    def check(self) -> None:
        """Recompute every sum from its children. Raises AssertionError if one differs in any bit."""
        children = self.leaves.reshape(-1, CHILDREN).astype(np.float64)
        assert not self.leaves[self.capacity :].any(), "a leaf beyond the capacity has weight"
        ends = [*self.first[1:].tolist(), len(self.nodes)]
        for level, (start, stop) in enumerate(zip(self.first.tolist(), ends, strict=True)):
            below = np.cumsum(children, axis=1)[:, -1]
            sums, before = self.nodes[start:stop, SUM], self.nodes[start:stop, BEFORE]
            assert np.array_equal(sums.reshape(-1)[: below.size], below), f"a sum of level {level} is wrong"
            assert not sums.reshape(-1)[below.size :].any(), f"level {level} has weight beyond its last child"
            if level < len(self.first) - 1:
                running = np.cumsum(sums, axis=1)[:, :-1]
                assert np.array_equal(before[:, 1:], running), f"BEFORE of level {level} is no running sum"
                assert not before[:, 0].any(), f"BEFORE of level {level} does not begin at zero"
            children = sums
