"""Elo ratings of the policy and of its past versions in self-play, from the results of training episodes.

Elo, "The Rating of Chessplayers, Past and Present", 1978. After a game with score S of the policy (1 won, 1/2 drawn, 0
lost), with ratings R of the policy and Q of the version that it played against,

    E = 1 / (1 + 10 ** ((Q - R) / 400)),    R += K (S - E),    Q -= K (S - E)

The policy begins with 1200. A version begins with the policy's rating when it is met for the first time, which is soon
after it was kept. So ratings show progress over the versions before; those of two runs cannot be compared.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrl.actors.self_play import DECAY, Payoffs
from asyncrl.interfaces import Metrics
from asyncrl.show.opponents import OpponentRating

FIRST, K = 1200.0, 16.0
"""Rating of the policy before the first game, and the largest change by one game."""


class Ratings:
    """Ratings of the policy and of the newest versions that it has met; event-loop thread only.

    Args:
        versions: maximum number of rated versions; of more the oldest is dropped.
        actors: number of actors.
        by_steps: whether games are rated in the order of the actors' steps (see `EpisodeWindow.by_steps`), so that a
            game waits until every actor has made as many; else in the order of arrival.

    Attributes:
        elo: rating of the policy.
        payoffs: recent results against every rated version.
    """

    def __init__(self, versions: int, actors: int, *, by_steps: bool = False) -> None:
        self.elo, self.payoffs = FIRST, Payoffs()
        self._most, self._actors, self._by_steps = versions, actors, by_steps
        self._versions: dict[int, tuple[float, int]] = {}  # rating and number of games
        self._games = self._points = 0.0  # recent ones against all versions
        self._waiting: list[tuple[int, int, int, float]] = []  # place, actor, version, score; sorted

    def add(self, place: int, actor: int, version: int, score: float) -> None:
        """Count a game against a version that ended after `place` steps of `actor`: 1 won, 1/2 drawn, 0 lost."""
        if self._by_steps:
            bisect.insort(self._waiting, (place, actor, version, score))
        else:
            self._rate(version, score)

    def reached(self, steps: Mapping[int, int]) -> None:
        """Rate the games that no earlier one can precede any more; `steps` are those of every actor with episodes."""
        until = min(steps.values()) if len(steps) == self._actors else -1
        while self._waiting and self._waiting[0][0] <= until:
            _, _, version, score = self._waiting.pop(0)
            self._rate(version, score)

    def _rate(self, version: int, score: float) -> None:
        elo, games = self._versions.get(version, (self.elo, 0))
        change = K * (score - 1 / (1 + 10 ** ((elo - self.elo) / 400)))
        self.elo += change
        self._versions[version] = elo - change, games + 1
        self.payoffs.add(version, score)
        self._games, self._points = self._games * DECAY + 1, self._points * DECAY + score
        if len(self._versions) > self._most:
            del self._versions[min(self._versions)]
            self.payoffs.keep(self._versions)

    def statistics(self) -> Metrics:
        """Rating of the policy, and its recent win rate against past versions, by public name."""
        win_rate = self._points / self._games if self._games else None
        return {"rollout/elo": self.elo if self._games else None, "rollout/win_rate": win_rate}

    def table(self) -> tuple[OpponentRating, ...]:
        """The rated versions, newest first."""
        payoffs = self.payoffs
        return tuple(
            OpponentRating(version, elo, games, payoffs.points[version] / payoffs.games[version])
            for version, (elo, games) in sorted(self._versions.items(), reverse=True)
        )

    def state(self) -> dict[str, Any]:
        """State for `restore`, as arrays."""
        payoffs, waiting = self.payoffs, self._waiting
        return {
            "versions": np.array(
                [
                    (version, elo, games, payoffs.games[version], payoffs.points[version])
                    for version, (elo, games) in self._versions.items()
                ],
                np.float64,
            ).reshape(-1, 5),
            "policy": np.array([self.elo, self._games, self._points]),
            "waiting": np.array(waiting, np.float64).reshape(-1, 4),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` of an earlier run."""
        self.elo, self._games, self._points = state["policy"].tolist()
        self._waiting = [
            (int(place), int(actor), int(version), score)
            for place, actor, version, score in state["waiting"].tolist()
        ]
        for version, elo, games, recent, points in state["versions"].tolist():
            self._versions[int(version)] = elo, int(games)
            self.payoffs.games[int(version)], self.payoffs.points[int(version)] = recent, points
