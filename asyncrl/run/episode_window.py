"""Finished training episodes: the window of the last ones, and Elo ratings of past versions in self-play."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.self_play import DECAY, Payoffs
from asyncrl.config import EPISODE_WINDOW
from asyncrl.envs.checks import success_rate
from asyncrl.interfaces import AgentPolicy, Bins, Metrics, policy_returns
from asyncrl.show.metrics import OpponentRating

MOST_BINS = 20
"""Most bins of the distribution of returns or lengths."""
FIRST_RATING, K = 1200.0, 16.0
"""Rating of the policy before the first game, and the largest change by one game."""


class _Finished(NamedTuple):
    """A finished episode; sorted by its place in the order, then by its actor.

    Attributes:
        each: returns of several agents, whose sum is `total`; empty for one agent.
    """

    place: int
    actor: int
    total: float
    length: int
    each: list[float]
    success: int


@dataclass
class EpisodeWindow:
    """The last `EPISODE_WINDOW` finished training episodes of all actors.

    Attributes:
        by_steps: whether episodes are ordered by the actor's steps in finished episodes, then by the actor's index. In
            lockstep actors make equal numbers of steps, and the window must not depend on which actor is read first.
            False orders by arrival, since actors of relaxed runs make unequal numbers of steps.
        count: number of episodes so far.
        ratings: ratings of past versions in self-play; None without.
        agents: names of several agents of an environment, in the order of their streams; empty for one agent.
        policies: several policies of the agents; empty if all share one.
    """

    by_steps: bool = False
    count: int = 0
    agents: tuple[str, ...] = ()
    policies: tuple[AgentPolicy, ...] = ()
    ratings: Ratings | None = None
    _last: list[_Finished] = field(default_factory=list)
    """The episodes, sorted."""
    _steps: dict[int, int] = field(default_factory=dict)
    """Number of steps in finished episodes, by actor."""

    def extend(self, episodes: Iterable[tuple[Any, ...]]) -> None:
        """Add finished episodes (actor's index, undiscounted return, length, success), in order for each actor.

        Of several agents the return is a list of theirs; their sum is that of the episode. In self-play the game
        follows, see `ActorPool.episodes`.
        """
        for actor, returned, length, success, *game in episodes:
            self.count += 1
            self._steps[actor] = self._steps.get(actor, 0) + length
            place = self._steps[actor] if self.by_steps else self.count
            each = returned if isinstance(returned, list) else []
            total = sum(each) if isinstance(returned, list) else returned
            self._last.append(_Finished(place, actor, total, length, each, success))
            if self.ratings is not None and game and game[0][0] >= 0:
                version, points = game[0]
                self.ratings.add(place, actor, version, points / 2)
        self._last.sort()
        del self._last[:-EPISODE_WINDOW]
        if self.ratings is not None:
            self.ratings.reached(self._steps)

    @property
    def full(self) -> bool:
        """Whether `EPISODE_WINDOW` episodes have finished."""
        return len(self._last) == EPISODE_WINDOW

    @property
    def return_mean(self) -> float | None:
        """Mean return of the window, None before the first episode."""
        return sum(episode.total for episode in self._last) / len(self._last) if self._last else None

    @property
    def length_mean(self) -> float | None:
        """Mean length of the window, None before the first episode."""
        return sum(episode.length for episode in self._last) / len(self._last) if self._last else None

    def statistics(self) -> Metrics:
        """Number of episodes, and the means of the window, also those of agents and policies, by public name."""
        means = np.mean([episode.each for episode in self._last], axis=0).tolist() if self._last else []
        return {
            "episodes": self.count,
            "rollout/ep_rew_mean": self.return_mean,
            "rollout/ep_len_mean": self.length_mean,
            "rollout/success_rate": success_rate(
                np.array([episode.success for episode in self._last], np.int8)
            ),
            **(self.ratings.statistics() if self.ratings is not None else {}),
            **{f"rollout/ep_rew_mean/{name}": mean for name, mean in zip(self.agents, means, strict=False)},
            **{
                f"rollout/ep_rew_mean/{name}": value
                for name, value in policy_returns(means, self.policies).items()
            },
        }

    def bins(self) -> dict[str, Bins]:
        """Distributions of returns and lengths of the window by public name; empty before the first episode."""
        if not self._last:
            return {}
        returns = np.array([episode.total for episode in self._last])
        lengths = np.array([episode.length for episode in self._last])
        return {"rollout/ep_rew": binned(returns), "rollout/ep_len": binned(lengths)}

    def opponents(self) -> tuple[OpponentRating, ...]:
        """Ratings of the past versions in self-play, newest first."""
        return () if self.ratings is None else self.ratings.table()

    def state(self) -> dict[str, Any]:
        """State for `restore`, as arrays."""
        known = range(max(self._steps, default=-1) + 1)
        last, each = self._last, [episode.each for episode in self._last]
        return {
            "count": self.count,
            "places": np.array([episode.place for episode in last], np.int64),
            "actors": np.array([episode.actor for episode in last], np.int64),
            "returns": np.array([episode.total for episode in last], np.float64),
            "lengths": np.array([episode.length for episode in last], np.int64),
            "successes": np.array([episode.success for episode in last], np.int8),
            **({"agent_returns": np.array(each, np.float64)} if any(each) else {}),
            "steps": np.array([self._steps.get(actor, 0) for actor in known], np.int64),
            **({"ratings": self.ratings.state()} if self.ratings is not None else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` of an earlier run."""
        columns = ("places", "actors", "returns", "lengths")
        places, actors, returns, lengths = (state[name].tolist() for name in columns)
        each = state["agent_returns"].tolist() if "agent_returns" in state else [[]] * len(places)
        successes = state["successes"].tolist() if "successes" in state else [0] * len(places)
        rows = zip(places, actors, returns, lengths, each, successes, strict=True)
        self._last = [_Finished._make(row) for row in rows]
        self._steps = dict(enumerate(state["steps"].tolist()))
        self.count = int(state["count"])
        if self.ratings is not None and "ratings" in state:
            self.ratings.restore(state["ratings"])


class Ratings:
    """Elo ratings of the policy and of the newest versions that it has met in self-play; event-loop thread only.

    Elo, "The Rating of Chessplayers, Past and Present", 1978. After a game with score S of the policy (1 won, 1/2
    drawn, 0 lost), with ratings R of the policy and Q of the version that it played against,

        E = 1 / (1 + 10 ** ((Q - R) / 400)),    R += K (S - E),    Q -= K (S - E)

    A version begins with the policy's rating when it is met for the first time, which is soon after it was kept. So
    ratings show progress over the versions before; those of two runs cannot be compared.

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
        self.elo, self.payoffs = FIRST_RATING, Payoffs()
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


def binned(values: NDArray[Any]) -> Bins:
    """Histogram of the finite `values` in at most `MOST_BINS` bins of a round width; that of none is empty.

    Of whole numbers no bin is narrower than 1, and every bin has its whole numbers in the middle.
    """
    values = values[np.isfinite(values)].astype(np.float64)
    if not values.size:
        return Bins((), ())
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.rint(values)).all())
    least = max(1.0, abs(high) * 1e-12) if whole else abs(high) * 1e-6  # so that int64 holds a bin's number
    raw = max((high - low) / MOST_BINS, least, 1e-12)
    power = 10.0 ** math.floor(math.log10(raw))
    width = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    shift = 0.5 if whole else 0.0
    first = math.floor((low + shift) / width)
    count = math.floor((high + shift) / width) - first + 1
    edges = (first + np.arange(count + 1)) * width - shift
    counts = np.bincount((np.floor((values + shift) / width) - first).astype(np.int64), minlength=count)
    return Bins(tuple(edges.tolist()), tuple(counts.tolist()))
