"""Window of the last training episodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asyncrl.envs.checks import FAILED, SUCCEEDED, UNKNOWN
from asyncrl.run.episode_window import EPISODE_WINDOW, MOST_BINS, EpisodeWindow, binned

Episodes = list[tuple[int, float, int, int]]


@pytest.mark.parametrize("by_steps", [False, True])
def test_the_window_is_full_with_a_hundred_episodes(by_steps: bool) -> None:
    window = EpisodeWindow(by_steps)
    assert window.return_mean is None and window.length_mean is None
    window.extend([(0, 1000.0, 10, 0)] + [(0, 1.0, 1, 0)] * (EPISODE_WINDOW - 2))
    assert not window.full and window.count == 99
    window.extend([(0, 3.0, 2, 0)])
    assert window.full and window.return_mean == (1000 + 98 + 3) / 100
    assert window.length_mean == (10 + 98 + 2) / 100
    window.extend([(0, 1.0, 1, 0)])
    assert window.full and window.return_mean == (98 + 3 + 1) / 100 and window.count == 101


def actors_episodes() -> list[Episodes]:
    """Episodes of two actors, 90 and 120 of them."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 40, size) for size in (90, 120)]
    return [[(actor, float(n) + actor, int(n), int(n) % 3) for n in lengths[actor]] for actor in range(2)]


def test_by_steps_the_order_of_reading_does_not_matter() -> None:
    """The reference sorts all episodes by the steps at which they ended."""
    actors = actors_episodes()
    ends = [
        (end, actor, episode_return)
        for actor, episodes in enumerate(actors)
        for end, (_, episode_return, _, _) in zip(
            itertools.accumulate(length for _, _, length, _ in episodes), episodes, strict=True
        )
    ]
    last = sorted(ends)[-EPISODE_WINDOW:]
    expected = sum(episode_return for _, _, episode_return in last) / EPISODE_WINDOW
    rng = np.random.default_rng(1)
    for _ in range(20):
        window, left = EpisodeWindow(by_steps=True), [list(episodes) for episodes in actors]
        while any(left):
            actor, count = int(rng.integers(2)), int(rng.integers(30))
            window.extend(left[actor][:count])
            del left[actor][:count]
        assert window.return_mean == pytest.approx(expected, rel=1e-12)
        assert window.count == 210


def test_by_arrival_a_slow_actor_is_in_the_window() -> None:
    window = EpisodeWindow()
    window.extend([(0, 5.0, 50, 0)] * 500)
    window.extend([(1, 1.0, 2, 0)] * 25)
    assert window.return_mean == (75 * 5.0 + 25 * 1.0) / 100


@pytest.mark.parametrize("by_steps", [False, True])
def test_a_restored_window_goes_on_as_if_nothing_had_happened(by_steps: bool) -> None:
    first, second = actors_episodes()
    whole = EpisodeWindow(by_steps)
    whole.extend(first[:60] + second[:70])
    state = whole.state()
    again = EpisodeWindow(by_steps)
    again.restore(state)
    for window in (whole, again):
        window.extend(second[70:] + first[60:])
    assert again == whole and again.full


def test_an_empty_window_is_restored_empty() -> None:
    again = EpisodeWindow(by_steps=True)
    again.restore(EpisodeWindow(by_steps=True).state())
    assert again == EpisodeWindow(by_steps=True)


def test_the_success_rate_is_of_the_episodes_that_say_so() -> None:
    window = EpisodeWindow()
    window.extend([(0, 1.0, 5, UNKNOWN)] * 4)
    assert window.statistics()["rollout/success_rate"] is None
    window.extend([(0, 1.0, 5, SUCCEEDED), (0, 1.0, 5, FAILED), (0, 1.0, 5, SUCCEEDED), (0, 1.0, 5, 122)])
    assert window.statistics()["rollout/success_rate"] == 2 / 3


# --- distributions --------------------------------------------------------------------------------------


def slow_counts(values: list[float], edges: tuple[float, ...]) -> list[int]:
    return [sum(low <= v < high for v in values) for low, high in itertools.pairwise(edges)]


@pytest.mark.parametrize("scale", [1, 3, 1000, 0.01, 1e-5])
@pytest.mark.parametrize("offset", [0.0, -500.0, 12345.0])
def test_every_value_is_in_the_bin_that_says_so(scale: float, offset: float) -> None:
    values = (np.random.default_rng(0).normal(size=100) * scale + offset).tolist()
    bins = binned(np.array(values))
    assert list(bins.counts) == slow_counts(values, bins.edges)
    assert sum(bins.counts) == 100 and len(bins.counts) <= MOST_BINS + 2
    assert bins.counts[0] and bins.counts[-1], "no empty bin at the ends"
    assert np.ptp(np.diff(bins.edges)) < 1e-9 * (abs(offset) + scale)


def test_whole_numbers_lie_in_the_middle_of_bins() -> None:
    assert binned(np.array([3, 3, 5])).edges == (2.5, 3.5, 4.5, 5.5)
    assert binned(np.array([3, 3, 5])).counts == (2, 0, 1)
    assert binned(np.array([7.0])).edges == (6.5, 7.5)
    wide = binned(np.arange(200))
    assert set(wide.counts) == {10} and wide.edges[:2] == (-0.5, 9.5)


def test_what_is_not_finite_is_left_out() -> None:
    assert binned(np.array([1.0, np.nan, np.inf, 2.0])).counts == (1, 1)
    assert binned(np.array([np.nan])).counts == ()
    assert sum(binned(np.array([0.25, 0.25])).counts) == 2
    for far in (5e18, 1e31, -1e31, 1e300):
        assert binned(np.array([far, far])).counts == (2,), "also beyond int64"


def test_the_window_has_distributions_of_returns_and_lengths() -> None:
    window = EpisodeWindow()
    assert window.bins() == {}
    window.extend([(0, 1.0, 8, 0), (0, 2.0, 8, 0), (1, 2.0, 9, 0)])
    assert window.bins()["rollout/ep_rew"].counts == (1, 2)
    assert window.bins()["rollout/ep_len"].edges == (7.5, 8.5, 9.5)
