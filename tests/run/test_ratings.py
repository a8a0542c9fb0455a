"""Elo ratings against hand-worked numbers, in the order of steps, and through a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.run.episode_window import FIRST_RATING, EpisodeWindow, Ratings


def test_ratings_are_those_worked_by_hand() -> None:
    ratings = Ratings(10, 1)
    assert ratings.statistics() == {"rollout/elo": None, "rollout/win_rate": None} and not ratings.table()
    ratings.add(1, 0, 100, 1.0)  # both have 1200: expected 1/2, so 8 points
    assert (ratings.elo, ratings.table()[0].elo) == (1208.0, 1192.0)
    ratings.add(2, 0, 100, 0.5)  # 16 points apart: expected 1 / (1 + 10 ** -0.04) = 0.5230095
    assert ratings.elo == pytest.approx(1208 - 16 * 0.0230095, abs=1e-5)
    assert ratings.table()[0].elo == pytest.approx(1192 + 16 * 0.0230095, abs=1e-5)
    before = ratings.elo
    ratings.add(3, 0, 200, 0.0)  # a version that is met first begins with the policy's rating
    assert ratings.elo == before - 8 and ratings.table()[0].elo == before + 8
    newest, oldest = ratings.table()
    assert (newest.updates, newest.games, newest.win_rate) == (200, 1, 0.0)
    assert (oldest.updates, oldest.games) == (100, 2)
    assert oldest.win_rate == pytest.approx((0.99 + 0.5) / 1.99)
    assert ratings.statistics()["rollout/win_rate"] == pytest.approx(
        (0.99**2 + 0.5 * 0.99) / (0.99**2 + 1.99)
    )


def test_points_are_won_from_the_opponent() -> None:
    ratings, rng = Ratings(4, 1), np.random.default_rng(0)
    for _ in range(500):
        ratings.add(0, 0, int(rng.integers(4)), float(rng.integers(3)) / 2)
    total = ratings.elo + sum(opponent.elo for opponent in ratings.table())
    started = Ratings(4, 1)
    for version in range(4):
        started.add(0, 0, version, 0.5)
    assert total == pytest.approx(5 * FIRST_RATING, abs=300), "only a version's first rating adds points"


def test_a_stronger_policy_rises_above_its_versions() -> None:
    ratings, rng = Ratings(3, 1), np.random.default_rng(1)
    for game in range(2000):
        ratings.add(0, 0, game % 3, float(rng.random() < 0.9))
    gaps = [ratings.elo - opponent.elo for opponent in ratings.table()]
    assert gaps == pytest.approx([382.0] * 3, abs=120), "a win rate of 0.9 is 382 points"


def test_only_the_newest_versions_are_rated() -> None:
    ratings = Ratings(2, 1)
    for version in (10, 20, 30, 20):
        ratings.add(0, 0, version, 1.0)
    assert [opponent.updates for opponent in ratings.table()] == [30, 20]
    ratings.add(0, 0, 10, 1.0)  # an episode that began long ago
    assert [opponent.updates for opponent in ratings.table()] == [30, 20]


def episodes_of(actor: int, count: int) -> list[tuple[object, ...]]:
    """Games against version 0, 10, ...; every third episode is none."""
    rng, found = np.random.default_rng(actor), []
    for n in range(count):
        version, result = (-1, 0.0) if n % 3 == 2 else (n // 9 * 10, float(rng.integers(-1, 2)))
        points = int(result) + 1
        found.append((actor, [result, -result], int(rng.integers(1, 9)), 0, [version, points]))
    return found


def test_by_steps_the_order_of_reading_does_not_matter() -> None:
    rng, found = np.random.default_rng(5), []
    for _ in range(10):
        window, left = EpisodeWindow(by_steps=True), [episodes_of(actor, 80) for actor in range(3)]
        window.ratings = Ratings(20, 3, by_steps=True)
        while any(left):
            actor, count = int(rng.integers(3)), int(rng.integers(12))
            window.extend(left[actor][:count])
            del left[actor][:count]
        found.append((window.opponents(), window.statistics()))
    assert all(one == found[0] for one in found) and len(found[0][0]) > 5
    assert sum(opponent.games for opponent in found[0][0]) > 100


def test_a_game_waits_until_every_actor_is_as_far() -> None:
    ratings = Ratings(20, 2, by_steps=True)
    ratings.add(5, 0, 0, 1.0)
    ratings.reached({0: 5})
    assert not ratings.table(), "the other actor has not finished an episode"
    ratings.reached({0: 5, 1: 4})
    assert not ratings.table()
    ratings.reached({0: 5, 1: 5})
    assert ratings.table()[0].games == 1


def test_points_of_games_are_rated() -> None:
    window = EpisodeWindow()
    window.ratings = Ratings(20, 1)
    window.extend([(0, [-1.0, 1.0], 9, 0, [0, 2]), (0, [1.0, 0.0], 9, 0, [-1, -1])])
    assert window.opponents()[0].win_rate == 1.0 and window.opponents()[0].games == 1
    window.extend([(0, [-1.0, 1.0], 9, 0, [20, 1]), (0, [3.0, 3.0], 9, 0, [10, 0])])
    assert [opponent.win_rate for opponent in window.opponents()] == [0.5, 0.0, 1.0]


@pytest.mark.parametrize("by_steps", [False, True])
def test_ratings_go_through_a_checkpoint(by_steps: bool) -> None:
    def window() -> EpisodeWindow:
        made = EpisodeWindow(by_steps)
        made.ratings = Ratings(4, 2, by_steps=by_steps)
        return made

    first, whole = window(), window()
    for part in (episodes_of(0, 40), episodes_of(1, 30)):
        first.extend(part)
        whole.extend(part)
    second = window()
    second.restore(first.state())
    assert second.opponents() == first.opponents() and second.statistics() == first.statistics()
    for one in (second, whole):
        one.extend(episodes_of(1, 60))
    assert second.opponents() == whole.opponents() and second.statistics() == whole.statistics()
    plain = EpisodeWindow()
    plain.restore(first.state())
    assert plain.opponents() == () and plain.count == 70, "a run without self-play goes on"
