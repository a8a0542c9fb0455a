"""The sum tree against a list of numbers, compiled and interpreted."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from oracles import SlowSumTree
from replay_rig import interpret
from scipy import stats

from asyncrl.replay import SumTree, sum_tree, tree_kernels
from asyncrl.replay.tree_kernels import SUM


@pytest.fixture(params=["compiled", "interpreted"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the kernels, with all kernels that they call."""
    if request.param == "interpreted":
        interpret(monkeypatch, tree_kernels, sum_tree)
    return str(request.param)


def set_range(tree: SumTree, start: int, stop: int, value: float) -> None:
    """Write a range of leaves as a replay does that is restored."""
    if start < stop:
        tree.leaves[start:stop] = value
        tree.sum_range(start, stop)


def dyadic(rng: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    """Priorities whose sums are exact in any order, a third of them zero."""
    return rng.integers(0, 12, size) // 4 * rng.integers(1, 64, size) / 16.0


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 64, 65, 700])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_a_list(capacity: int, seed: int, kernels: str) -> None:
    rng = np.random.default_rng(capacity * 100 + seed)
    tree, twin = SumTree(capacity), SlowSumTree(capacity)
    for _ in range(60 if kernels == "compiled" else 12):
        kind = rng.integers(3)
        if kind == 0:
            size = int(rng.integers(0, 40))
            indices, values = rng.integers(0, capacity, size), dyadic(rng, size)
            tree.set(indices, values)
            twin.set(indices, values)
        elif kind == 1:
            start, stop = np.sort(rng.integers(0, capacity + 1, 2)).tolist()
            value = float(dyadic(rng, 1)[0])
            set_range(tree, start, stop, value)
            twin.set_range(start, stop, value)
        elif tree.total > 0:
            uniforms, out = rng.random(int(rng.integers(1, 50))), np.empty(0, np.int64)
            out = np.empty(uniforms.size, np.int64)
            tree.sample(uniforms, out)
            assert out.tolist() == twin.sample(uniforms)
        tree.check()
        assert tree.total == twin.total
        assert tree.leaves[:capacity].tolist() == twin.leaves


def test_last_of_repeated_indices_wins() -> None:
    tree = SumTree(100)
    tree.set(np.array([5, 70, 5, 70, 5]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert tree.leaves[[5, 70]].tolist() == [16.0, 8.0]
    assert tree.total == 24.0
    tree.check()


def test_sums_do_not_drift() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(3000)
    for _ in range(2000):
        tree.set(rng.integers(0, 3000, 64), 10.0 ** rng.uniform(-6, 6, 64))
    tree.check()  # every sum equals, in every bit, the one recomputed from its children
    assert tree.total == pytest.approx(tree.leaves.astype(np.float64).sum(), rel=1e-12)


def test_a_zero_leaf_is_unreachable_at_both_edges() -> None:
    tree, out = SumTree(640), np.empty(1, np.int64)
    below_one = np.nextafter(1.0, 0.0)
    for leaf in (0, 1, 7, 8, 63, 64, 300, 639):
        set_range(tree, 0, 640, 0.0)
        tree.set(np.array([leaf]), np.array([0.1]))
        for uniform in (0.0, 0.5, below_one):
            tree.sample(np.array([uniform]), out)
            assert out[0] == leaf


def test_rounding_at_the_right_edge_never_leaves_the_weights() -> None:
    rng, below_one = np.random.default_rng(1), np.nextafter(1.0, 0.0)
    tree, out = SumTree(5000), np.empty(64, np.int64)
    for _ in range(300):
        set_range(tree, 0, 5000, 0.0)
        leaves = rng.integers(0, 5000, 40)
        tree.set(leaves, 10.0 ** rng.uniform(-12, 12, 40))
        tree.sample(np.full(64, below_one), out)
        assert (tree.leaves[out] > 0).all()
        assert out.max() < 5000


@pytest.mark.parametrize("leaves", [(17, 1000), (1000, 1002)])
@pytest.mark.parametrize("capacity", [1003, 4096, 5000])
def test_a_target_beyond_the_total_falls_to_the_last_nonzero_leaf(
    capacity: int, leaves: tuple[int, int]
) -> None:
    tree = SumTree(capacity)
    tree.set(np.array(leaves), np.array([1.0, 3.0]))
    out = np.empty(1, np.int64)
    tree.sample(np.array([1.0]), out)  # not in [0, 1): what rounding can make of it
    assert out[0] == leaves[1]


@pytest.mark.parametrize("batch", [1, 32, 1000])
def test_frequencies_follow_the_priorities(batch: int) -> None:
    rng = np.random.default_rng(7)
    tree = SumTree(50)
    priorities = rng.random(50) ** 3 + 0.01
    priorities[[3, 20, 49]] = 0.0
    tree.set(np.arange(50), priorities)
    counts, out = np.zeros(50), np.empty(batch, np.int64)
    for _ in range(200_000 // batch):
        tree.sample(rng.random(batch), out)
        counts += np.bincount(out, minlength=50)
    assert not counts[[3, 20, 49]].any()
    live = priorities > 0
    expected = priorities[live] / priorities.sum() * counts.sum()
    # Stratified samples vary less than independent ones, so the test is one-sided and conservative.
    assert stats.chisquare(counts[live], expected).pvalue > 0.01


def test_strata_hold_one_sample_each() -> None:
    tree, out = SumTree(64), np.empty(64, np.int64)
    set_range(tree, 0, 64, 1.0)
    for _ in range(20):
        tree.sample(np.random.default_rng(0).random(64), out)
        assert out.tolist() == list(range(64))


def test_children_lie_on_whole_cache_lines() -> None:
    tree = SumTree(1000)
    assert tree.nodes.ctypes.data % 64 == 0
    assert tree.leaves.ctypes.data % 64 == 0
    assert tree.nodes[0, SUM].nbytes == 64


def test_a_refused_batch_changes_nothing() -> None:
    tree = SumTree(10)
    tree.set(np.arange(10), np.ones(10))
    for indices, values in (
        ([3, 10], [2.0, 2.0]),
        ([3, -1], [2.0, 2.0]),
        ([3, 4], [2.0, np.nan]),
        ([3, 4], [2.0, np.inf]),
        ([3, 4], [2.0, -0.5]),
        ([3, 4], [2.0, 1e300]),
    ):
        with pytest.raises(ValueError, match=r"index must be in \[0, 10\) and priority finite"):
            tree.set(np.array(indices), np.array(values))
    assert tree.total == 10.0
    tree.check()


def test_wrong_arguments_are_named() -> None:
    tree = SumTree(10)
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        SumTree(0)
    with pytest.raises(ValueError, match="total priority must be positive to sample, got 0"):
        tree.sample(np.zeros(1), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match=r"indices and values must be \[B\] alike"):
        tree.set(np.zeros(2, np.int64), np.zeros(3))
    with pytest.raises(ValueError, match=r"uniforms and out must be \[B\] alike"):
        tree.sample(np.zeros(2), np.zeros(3, np.int64))


def test_check_sees_a_wrong_sum() -> None:
    tree = SumTree(100)
    set_range(tree, 0, 100, 1.0)
    tree.leaves[40] = 3.0
    with pytest.raises(AssertionError, match="a sum of level 0 is wrong"):
        tree.check()


def test_a_kernel_without_huge_pages_has_a_tree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    tree = SumTree(100)
    tree.set(np.array([3]), np.array([2.0]))
    assert tree.total == 2.0
