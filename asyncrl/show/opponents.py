"""Rating of one past version of the policy in self-play, for display."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpponentRating:
    """A past version of the policy as an opponent.

    Attributes:
        updates: updates of the learner when the version was published, by which it is named.
        elo: its rating; see `run/episode_window.py`.
        games: training episodes against it.
        win_rate: the policy's win rate against it, draws counted half; recent games count more.
    """

    updates: int
    elo: float
    games: int
    win_rate: float
