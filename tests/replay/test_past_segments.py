"""Kept segments are copies of the newest segments, and never staler than the bound."""

import numpy as np
import pytest

from asyncrl.interfaces import Segment
from asyncrl.replay.past_segments import PastSegments


def segment(number: int, version: int) -> Segment:
    rows = (2, 3)
    return Segment(
        ring=0,
        first=3 * number,
        obs=np.full((*rows, 4), number, np.float32),
        last_obs=np.full((2, 4), number, np.float32),
        action=np.full(rows, number, np.int64),
        reward=np.full(rows, number, np.float32),
        flags=np.zeros(rows, np.uint8),
        version=np.array([version, version, version + 1], np.int64),
        policy_updates=np.array([version, version, version + 1], np.int64) * 10,
        extras={"log_prob": np.full(rows, number, np.float32)},
        weight=np.full(3, 0.5, np.float32),
        staleness=np.full(3, 9, np.int64),
    )


def store(capacity: int = 4, per_batch: int = 2, bound: int | None = None) -> PastSegments:
    return PastSegments(capacity, per_batch, bound, np.random.default_rng(0))


def test_nothing_is_drawn_of_an_empty_store_and_no_more_than_there_is() -> None:
    past = store()
    assert past.draw(1) == []
    past.keep([segment(1, 1)])
    assert len(past.draw(1)) == 1


def test_what_is_kept_is_a_copy_that_is_not_fresh() -> None:
    past, original = store(per_batch=1), segment(7, 1)
    past.keep([original])
    for values in (
        original.obs,
        original.last_obs,
        original.reward,
        original.version,
        original.policy_updates,
        original.extras["log_prob"],
    ):
        values[...] = -1
    (drawn,) = past.draw(1)
    assert not drawn.fresh and (drawn.obs == 7).all() and (drawn.last_obs == 7).all()
    assert (drawn.reward == 7).all() and (drawn.extras["log_prob"] == 7).all()
    assert drawn.version.tolist() == [1, 1, 2] and drawn.policy_updates.tolist() == [10, 10, 20]


def test_weights_start_at_one_at_every_use() -> None:
    past = store(per_batch=1)
    past.keep([segment(1, 1)])
    for _ in range(2):
        (drawn,) = past.draw(1)
        assert drawn.weight.tolist() == [1, 1, 1] and drawn.staleness.tolist() == [0, 0, 0]
        drawn.weight *= 0.1
        drawn.staleness += 3


def test_the_newest_are_kept_and_drawn_without_repetition() -> None:
    past = store(capacity=3, per_batch=3)
    past.keep([segment(n, 1) for n in range(6)])
    for _ in range(10):
        assert sorted(s.first // 3 for s in past.draw(1)) == [3, 4, 5]


def test_all_kept_are_drawn_about_alike() -> None:
    past = store(capacity=4, per_batch=1)
    past.keep([segment(n, 1) for n in range(4)])
    counts = np.bincount([past.draw(1)[0].first // 3 for _ in range(2000)], minlength=4)
    assert (np.abs(counts - 500) < 100).all(), counts


def test_none_over_the_bound_is_drawn_even_behind_a_newer_one() -> None:
    past = store(capacity=4, per_batch=4, bound=2)
    past.keep([segment(0, 5), segment(1, 1), segment(2, 4)])
    assert sorted(s.first // 3 for s in past.draw(5)) == [0, 2]
    assert sorted(s.first // 3 for s in past.draw(7)) == [0]
    assert past.draw(8) == []


@pytest.mark.parametrize(
    ("capacity", "per_batch", "name"), [(1, 2, "past_segments"), (1, 0, "past_per_batch")]
)
def test_impossible_sizes_are_refused(capacity: int, per_batch: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        store(capacity, per_batch)
