"""Queue of weights to evaluate: times of copies, order, and a full queue."""

from __future__ import annotations

import numpy as np

from asyncrl.learning.weight_snapshots import CAPACITY, WeightSnapshot, WeightSnapshots


def snapshot(env_steps: int) -> WeightSnapshot:
    return WeightSnapshot(np.full(3, env_steps, np.float32), 1, env_steps // 2, env_steps)


def test_without_an_interval_nothing_is_ever_due() -> None:
    snapshots = WeightSnapshots(None)
    assert not snapshots.due(0) and not snapshots.due(10**12) and snapshots.take() is None


def test_a_copy_is_due_past_every_multiple_of_the_interval() -> None:
    snapshots = WeightSnapshots(100)
    due = []
    for env_steps in (0, 60, 99, 100, 130, 199, 230, 450, 499, 500, 501, 600):
        if snapshots.due(env_steps):
            snapshots.put(snapshot(env_steps))
            due.append(env_steps)
            assert not snapshots.due(env_steps)
    assert due == [100, 230, 450, 500, 600], "multiples that were jumped over together make one copy"


def test_copies_are_taken_in_the_order_of_training_until_none_is_left() -> None:
    told = []
    snapshots = WeightSnapshots(10, capacity=3, arrived=lambda: told.append(len(told)))
    for env_steps in (10, 20, 30):
        assert not snapshots.full
        snapshots.put(snapshot(env_steps))
    assert snapshots.full and told == [0, 1, 2]
    first = snapshots.take()
    assert first is not None and first.env_steps == 10 and not snapshots.full
    rest = [snapshots.take(), snapshots.take()]
    assert [s.env_steps for s in rest if s is not None] == [20, 30] and snapshots.take() is None


def test_capacity_bounds_what_waits() -> None:
    snapshots = WeightSnapshots(1)
    for env_steps in range(1, CAPACITY + 1):
        assert not snapshots.full
        snapshots.put(snapshot(env_steps))
    assert snapshots.full


def test_a_resumed_run_without_an_interval_drops_the_copies_that_waited() -> None:
    """A run evaluated by seconds saves the copy in evaluation, and has no interval in steps when it is resumed."""
    snapshots = WeightSnapshots(None)
    snapshots.go_on_from([snapshot(40)], None)
    assert snapshots.waiting() == () and not snapshots.due(10**12)


def test_a_resumed_run_keeps_the_copies_that_waited_and_goes_on_with_its_own_interval() -> None:
    snapshots = WeightSnapshots(30)
    snapshots.go_on_from([snapshot(50), snapshot(100)], 150)
    assert [s.env_steps for s in snapshots.waiting()] == [50, 100]
    assert not snapshots.due(149) and snapshots.due(150)
