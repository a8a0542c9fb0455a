"""Window of the last finished training episodes of all actors."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.config import EPISODE_WINDOW
from asyncrl.interfaces import Metrics


@dataclass
class EpisodeWindow:
    """The last `EPISODE_WINDOW` finished training episodes of all actors.

    Attributes:
        by_steps: whether episodes are ordered by the actor's steps in finished episodes, then by the actor's index. In
            lockstep actors make equal numbers of steps, and the window must not depend on which actor is read first.
            False orders by arrival, since actors of relaxed runs make unequal numbers of steps.
        count: number of episodes so far.
        agents: names of several agents of an environment, in the order of their streams; empty for one agent.
    """

    by_steps: bool = False
    count: int = 0
    agents: tuple[str, ...] = ()
    _last: list[tuple[int, int, float, int, list[float]]] = field(default_factory=list)
    """Place in the order, actor, return, length, and the returns of several agents, of each episode; sorted."""
    _steps: dict[int, int] = field(default_factory=dict)
    """Number of steps in finished episodes, by actor."""

    def extend(self, episodes: Iterable[tuple[int, float | list[float], int]]) -> None:
        """Add finished episodes (actor's index, undiscounted return, length in steps), in order for each actor.

        Of several agents the return is a list of theirs; their sum is that of the episode.
        """
        for actor, returned, length in episodes:
            self.count += 1
            self._steps[actor] = self._steps.get(actor, 0) + length
            place = self._steps[actor] if self.by_steps else self.count
            each = returned if isinstance(returned, list) else []
            total = sum(each) if isinstance(returned, list) else returned
            bisect.insort(self._last, (place, actor, total, length, each))
            if len(self._last) > EPISODE_WINDOW:
                del self._last[0]

    @property
    def full(self) -> bool:
        """Whether `EPISODE_WINDOW` episodes have finished."""
        return len(self._last) == EPISODE_WINDOW

    @property
    def return_mean(self) -> float | None:
        """Mean return of the window, None before the first episode."""
        return sum(entry[2] for entry in self._last) / len(self._last) if self._last else None

    @property
    def length_mean(self) -> float | None:
        """Mean length of the window, None before the first episode."""
        return sum(entry[3] for entry in self._last) / len(self._last) if self._last else None

    def statistics(self) -> Metrics:
        """Number of episodes, and the means of the window, also that of each of several agents, by public name."""
        means = np.mean([entry[4] for entry in self._last], axis=0).tolist() if self._last else []
        return {
            "episodes": self.count,
            "rollout/ep_rew_mean": self.return_mean,
            "rollout/ep_len_mean": self.length_mean,
            **{f"rollout/ep_rew_mean/{name}": mean for name, mean in zip(self.agents, means, strict=False)},
        }

    def state(self) -> dict[str, Any]:
        """State for `restore`, as arrays."""
        known = range(max(self._steps, default=-1) + 1)
        places, actors, returns, lengths, each = zip(*self._last, strict=True) if self._last else ((),) * 5
        return {
            "count": self.count,
            "places": np.array(places, np.int64),
            "actors": np.array(actors, np.int64),
            "returns": np.array(returns, np.float64),
            "lengths": np.array(lengths, np.int64),
            **({"agent_returns": np.array(each, np.float64)} if any(each) else {}),
            "steps": np.array([self._steps.get(actor, 0) for actor in known], np.int64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` of an earlier run."""
        columns = [state[name].tolist() for name in ("places", "actors", "returns", "lengths")]
        each = state["agent_returns"].tolist() if "agent_returns" in state else [[]] * len(columns[0])
        self._last = list(zip(*columns, each, strict=True))
        self._steps = dict(enumerate(state["steps"].tolist()))
        self.count = int(state["count"])
