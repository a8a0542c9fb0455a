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


def store(
    capacity: int = 4, per_batch: int = 2, bound: int | None = None, newest: float | None = None
) -> PastSegments:
    return PastSegments(capacity, per_batch, bound, np.random.default_rng(0), newest)


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


def with_rewards(past: PastSegments, rewards: list[float]) -> PastSegments:
    """Keep a segment for each number, of which one row has it as its reward."""
    for number, reward in enumerate(rewards):
        made = segment(number, 1)
        made.reward[:] = 0
        made.reward[1, 2] = reward
        past.keep([made])
    return past


def test_always_the_newest_is_a_stack() -> None:
    past = with_rewards(store(per_batch=3, newest=1.0), [9, 0, 0, 0])
    assert [s.first // 3 for s in past.draw(1)] == [3, 2, 1]


def test_by_return_shares_follow_the_softmax_in_standard_deviations() -> None:
    """Sums 2, 1, 1, 0 have the standard deviation sqrt(1/2)."""
    past = with_rewards(store(per_batch=1, newest=0.0), [2, 1, 1, 0])
    counts = np.bincount([past.draw(1)[0].first // 3 for _ in range(8000)], minlength=4)
    powers = [np.exp(x / np.sqrt(0.5)) for x in (2, 1, 1, 0)]
    assert counts / 8000 == pytest.approx(np.array(powers) / sum(powers), abs=0.02)


def test_recency_and_return_take_their_shares() -> None:
    past = with_rewards(store(per_batch=1, newest=0.25), [100, 0, 0, 0])
    drawn = [past.draw(1)[0].first // 3 for _ in range(4000)]
    share = np.exp(100 / np.std([100, 0, 0, 0]))
    expected = [0.75 * share, 0.75, 0.75, 0.75 + 0.25 * (share + 3)] / (share + 3)
    assert np.bincount(drawn, minlength=4) / 4000 == pytest.approx(expected, abs=0.03)


def test_a_batch_by_return_holds_a_segment_once_and_obeys_the_bound() -> None:
    past = store(capacity=4, per_batch=4, bound=2, newest=0.3)
    assert past.draw(1) == []
    past.keep([segment(0, 5), segment(1, 1), segment(2, 4)])
    for _ in range(20):
        assert sorted(s.first // 3 for s in past.draw(5)) == [0, 2]


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
