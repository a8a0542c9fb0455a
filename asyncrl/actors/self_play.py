"""Self-play: an actor in some of whose environments all agents but one act with past versions of the policy.

In the first environments of the actor (`SelfPlay.environments`) one agent learns and the others are its opponents. For
every episode the next agent that takes part in it learns, and a version of the mailbox's (`shm/past_weights.py`) is
drawn for the others:

    newest        the newest one
    uniform       each with the same probability
    prioritized   with a probability proportional to (1 - x)^2 for the win rate x against it: mostly against those that
                  the policy still loses to (prioritized fictitious self-play, Vinyals et al. 2019, "Grandmaster level
                  in StarCraft II using multi-agent reinforcement learning", f_hard with p = 2)

Opponents explore at the present rate of the policy. Their rows have the flag FROZEN, which excludes them from training.
In all other environments every agent acts with the newest weights and learns.

Nothing depends on time: which versions there are depends on updates, the draws on the actor's own generator and on the
results of its own episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import sleep
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.network_policy import take_exploration
from asyncrl.actors.actor import Actor, ActorIdentity
from asyncrl.actors.streams import AgentStreams, Events
from asyncrl.interfaces import FROZEN, RESET, SelfPlay
from asyncrl.protocols import Memory, Policy
from asyncrl.shm.past_weights import PastWeights
from asyncrl.shm.ring import RingWriter

DECAY = 0.99
"""Factor of the earlier games with an opponent at every further one; about the last hundred count."""
WRITING_SECONDS = 1e-4
"""Pause of an actor while the only version is being replaced."""


class Payoffs:
    """Results of games against each version of the policy, recent ones counting more.

    Attributes:
        games, points: by version, the decayed number of games and of points: 1 of a game won, 1/2 of a draw.
    """

    def __init__(self) -> None:
        self.games: dict[int, float] = {}
        self.points: dict[int, float] = {}

    def add(self, version: int, score: float) -> None:
        """Count a game: 1 won, 1/2 drawn, 0 lost."""
        self.games[version] = self.games.get(version, 0.0) * DECAY + 1
        self.points[version] = self.points.get(version, 0.0) * DECAY + score

    def keep(self, versions: Iterable[int]) -> None:
        """Forget all other versions."""
        kept = set(versions)
        for version in self.games.keys() - kept:
            del self.games[version], self.points[version]

    def win_rate(self, version: int) -> float:
        """Win rate against a version, as if one more game had been won and one lost: 1/2 before the first."""
        return (self.points.get(version, 0.0) + 1) / (self.games.get(version, 0.0) + 2)


def probabilities(sampling: str, win_rates: Sequence[float]) -> NDArray[np.float64]:
    """Probabilities of the versions, oldest first, as opponents in the next episode; see the module."""
    weights = np.ones(len(win_rates))
    if sampling == "newest":
        weights[:-1] = 0
    elif sampling == "prioritized":
        weights = (1 - np.array(win_rates)) ** 2
    chances: NDArray[np.float64] = weights / weights.sum()
    return chances


def score_of(returns: NDArray[np.float64], learner: int, taking_part: NDArray[np.bool_]) -> float:
    """Score of the learning agent for the returns `[N]`: 1 above the mean of its opponents', 1/2 if equal, else 0.

    Opponents are the other agents of those `taking_part` `[N]` in the episode, at least one.
    """
    others = returns[taking_part & (np.arange(len(returns)) != learner)].mean()
    return 0.5 if returns[learner] == others else float(returns[learner] > others)


class PolicyWithOpponents:
    """The newest policy for all streams, and past versions of it for those of opponents. Implements `Policy`.

    Args:
        newest: the policy.
        opponents: copies of it, one for each environment with opponents, with its other agents as streams.
        num_agents: N.

    Attributes:
        streams: `[environments, N - 1]`, streams of the opponents.
        learners: index of the learning agent in each of these environments.
    """

    def __init__(self, newest: Policy, opponents: Sequence[Policy], num_agents: int) -> None:
        self.newest, self.opponents = newest, list(opponents)
        self.frame_stack, self.weight_count = newest.frame_stack, newest.weight_count
        self._first = np.arange(len(self.opponents)) * num_agents
        self.learners = (np.arange(len(self.opponents)) - 1) % num_agents
        self.streams = np.zeros((len(self.opponents), num_agents - 1), np.int64)
        for e in range(len(self.opponents)):
            self.let_next_learn(e, np.ones(num_agents, np.bool_))

    def let_next_learn(self, e: int, taking_part: NDArray[np.bool_]) -> None:
        """Let the next agent of environment e of those `taking_part` `[N]` learn, the others be its opponents.

        Their recurrent states begin.
        """
        others = self.streams.shape[1]
        turns = (self.learners[e] + 1 + np.arange(others + 1)) % (others + 1)
        self.learners[e] = learner = turns[taking_part[turns].argmax()]
        self.streams[e] = self._first[e] + np.delete(np.arange(others + 1), learner)
        if (memory := getattr(self.opponents[e], "memory", None)) is not None:
            memory.forget(others)

    @property
    def memory(self) -> Memory | None:
        """Recurrent state of the newest policy."""
        return getattr(self.newest, "memory", None)

    @property
    def weights(self) -> NDArray[np.float32]:
        """The newest weights."""
        return self.newest.weights

    def take_exploration(self, other: PolicyWithOpponents) -> None:
        """See `NetworkPolicy`."""
        for own, theirs in zip((self.newest, *self.opponents), (other.newest, *other.opponents), strict=True):
            take_exploration(own, theirs)

    @property
    def exploration_rate(self) -> float:
        """That of the newest policy."""
        return self.newest.exploration_rate

    def weights_changed(self) -> None:
        """See `Policy`."""
        self.newest.weights_changed()

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """See `Policy`; the opponents keep theirs."""
        self.newest.load_weights(weights)

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """See `Policy`; opponents explore like the first streams of their environment."""
        self.newest.assign_streams(first, count, total)
        for own, opponent in zip(self._first, self.opponents, strict=True):
            opponent.assign_streams(first + int(own), self.streams.shape[1], total)

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        """See `Policy`."""
        actions, extras = self.newest.act(obs, rng, total_steps)
        for opponent, streams in zip(self.opponents, self.streams, strict=True):
            actions[streams], theirs = opponent.act(obs[streams], rng, total_steps)
            for name, values in theirs.items():
                extras[name][streams] = values
        return actions, extras

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Greedy actions of the newest policy."""
        return self.newest.greedy(obs)


class SelfPlayActor(Actor):
    """Actor with opponents; see the module.

    Args:
        streams, writer: see `Actor`; of several agents, and of a ring with frozen streams.
        policy: the newest policy and the opponents.
        mailbox: the weights and past versions.
        self_play: how opponents are drawn.
        identity: see `ActorIdentity`.
    """

    STATE = (*Actor.STATE, "_payoffs", "_versions", "_taking_part", "_draws")
    streams: AgentStreams
    policy: PolicyWithOpponents

    def __init__(
        self,
        streams: AgentStreams,
        policy: PolicyWithOpponents,
        writer: RingWriter,
        mailbox: PastWeights,
        self_play: SelfPlay,
        **identity: Unpack[ActorIdentity],
    ) -> None:
        super().__init__(streams, policy, writer, mailbox, **identity)
        self._past, self._sampling = mailbox, self_play.sampling
        self._payoffs = Payoffs()
        self._versions = np.full(self_play.environments, -1, np.int64)
        self._taking_part = np.zeros((self_play.environments, streams.live.shape[1]), np.bool_)
        self._draws = np.ones(self_play.environments, np.bool_)  # whether the next row begins an episode

    def _take_newest_weights(self) -> bool:
        """See `Actor`; then there is a version to draw, for environments whose next row begins an episode."""
        if not super()._take_newest_weights():
            return False
        if self._draws.any():
            for e in np.flatnonzero(self._draws).tolist():
                self._draw_opponent(e)
            self._draws[:] = False
        return True

    def _draw_opponent(self, e: int) -> None:
        """Let the next agent of environment e learn, and draw the version that acts for the others."""
        self._taking_part[e] = self.streams.live[e]
        self.policy.let_next_learn(e, self._taking_part[e])
        opponent, found = self.policy.opponents[e], False
        while not found:  # the learner may keep a newer version in its place meanwhile, except in lockstep
            if not (versions := self._past.versions()):
                sleep(WRITING_SECONDS)  # the core may be the one that the learner needs
                continue
            self._payoffs.keep(versions)
            chances = probabilities(self._sampling, [self._payoffs.win_rate(v) for v in versions])
            self._versions[e] = version = versions[self._rng.choice(len(versions), p=chances)]
            found = self._past.copy_version(version, opponent.weights)
        opponent.weights_changed()

    def _publish(self, slot: int, events: Events) -> None:
        """See `Actor`; marks the opponents' rows, and counts and logs the games that ended."""
        envs, agents = self.streams.live.shape
        flags = np.zeros(envs * agents, np.int64)
        flags[events[:, 0]] = events[:, 1]
        resets: NDArray[np.bool_] = (flags.reshape(envs, agents) & RESET != 0).all(axis=1)
        over = ~self.streams.live.any(axis=1)
        if over.any():
            self._count_games(np.flatnonzero(over))
        flags[self.policy.streams.reshape(-1)] |= FROZEN
        marked = np.flatnonzero(flags)
        super()._publish(slot, np.stack((marked, flags[marked]), axis=1))
        self._draws |= resets[: self._draws.size]

    def _count_games(self, ended: NDArray[np.int64]) -> None:
        """Count the games of the environments whose episodes end in this row, and log those of all of them.

        An episode in which the learning agent is alone is no game.
        """
        agents = self.streams.live.shape[1]
        games = np.full((ended.size, 2), -1, np.int64)
        for entry, e in zip(games, ended.tolist(), strict=True):
            if e < self._versions.size and self._taking_part[e].sum() > 1:
                own = slice(e * agents, (e + 1) * agents)
                returns = self._returns[own] + self._rewards[own]
                score = score_of(returns, int(self.policy.learners[e]), self._taking_part[e])
                entry[:] = self._versions[e], 2 * score
                self._payoffs.add(int(self._versions[e]), score)
        self.writer.log_games(games)
