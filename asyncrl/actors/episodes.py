"""Episodes of one policy in lockstep: one forward pass per step for all running episodes.

The number of episodes is exact, and they are assigned to the environments in advance. (The first n episodes that end in
a running vector would be biased towards short ones, which are the bad ones in some tasks and the good ones in others.)

An episode that does not end is cut at a limit of steps or of time; its return is that of its steps so far. After the
time limit only episodes that had begun are returned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.frames import FrameStacks
from asyncrl.acting.recurrent import memory_of
from asyncrl.actors.streams import VectorStreams, action_form
from asyncrl.envs import checks as env_checks
from asyncrl.envs.source import EnvSource
from asyncrl.errors import environment_calls
from asyncrl.interfaces import RESET, AgentPolicy, EnvSpec, policy_returns
from asyncrl.protocols import Policy

MAX_ENVS = 100
"""Default limit of environments."""

EPISODE_STEPS = 27_000
"""Step limit of an episode if neither the caller nor the environment has one: half an hour of an Atari game at four
frames a step, the limit of the literature."""

Episodes = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Undiscounted returns `[episodes]`, of several agents `[episodes, N]`, and lengths `[episodes]`."""


def seed_of_episodes(seed: int, key: tuple[int, ...] = ()) -> int:
    """Seed of `EpisodePlayer.play` for the evaluation `key` of a run with `seed`."""
    sequence = np.random.SeedSequence(seed, spawn_key=(2**32 - 1, *key))
    return int(sequence.generate_state(1)[0])


def team_returns(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return of each episode `[episodes]`, of several agents the sum of theirs; `returns` as those of `Episodes`."""
    return returns if returns.ndim == 1 else returns.sum(axis=1)


def figures_of(episodes: Episodes, agents: Sequence[str], policies: Sequence[AgentPolicy]) -> dict[str, Any]:
    """Figures of `episodes` by the names of `EvaluationResult`: return, length, and return by agent and by policy.

    Args:
        episodes: at least one.
        agents: names of several agents, in the order of their returns; empty for one agent.
        policies: several policies of the agents; empty if all share one.
    """
    each, lengths = episodes
    returns, means = team_returns(each), each.mean(axis=0).tolist() if agents else []
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "length_mean": float(lengths.mean()),
        "agent_returns": dict(zip(agents, means, strict=True)),
        "policy_returns": policy_returns(means, policies),
    }


class EpisodePlayer:
    """Player of episodes that keeps its environments between evaluations.

    Args:
        source: the environment, or a vector of them.
        policy: the policy that acts.
        max_envs: largest number of environments to build; more episodes than that take turns.
        alive: callback with the number of finished episodes, after each build, reset and step of an environment.
        env: the first environment; None builds it.
        trained: spec of the environment in which the policy was trained; None does not compare the spaces.

    Attributes:
        limit: step limit of an episode that its environment has, or else `EPISODE_STEPS`.
        cut_episodes: number of episodes of the last `play` that were cut at a limit.
        successes: `[episodes]` of the last `play`: whether they ended in success; see `checks.success_of`.
    """

    def __init__(
        self,
        source: EnvSource,
        policy: Policy,
        max_envs: int = MAX_ENVS,
        alive: Callable[[int], None] = lambda _: None,
        env: Any = None,
        trained: EnvSpec | None = None,
    ) -> None:
        self._policy, self._memory = policy, memory_of(policy)
        self._states = np.zeros((0, 0), np.float32)  # recurrent state of each episode of a `play`
        self._alive = alive
        self._source, self._max_envs = source, max_envs
        built: Any = source.build() if env is None else env
        self._vector = built if hasattr(built, "num_envs") else None
        self._envs: list[Any] = [] if self._vector is not None else [built]
        self._rng: np.random.Generator | None = None  # draws actions; None for greedy ones
        self._streams = 0  # number of streams that the policy draws for
        self._current = self._finished = 0
        self._max_steps: float = math.inf
        self._deadline: float = math.inf
        self.cut_episodes = self._seed = 0
        self.successes = np.zeros(0, np.int8)
        self._spec: EnvSpec = env_checks.spec_of(source.name, built)
        self.limit = self._spec.max_episode_steps or EPISODE_STEPS
        if trained is not None:
            try:
                env_checks.require_same_spaces(trained, self._spec)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs if self._vector is None else [self._vector]:
            env_checks.close_env(env)

    def play(
        self,
        episodes: int,
        seed: int,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        *,
        deterministic: bool = True,
    ) -> Episodes:
        """Play exactly `episodes` episodes with the policy's current weights.

        Args:
            episodes: number of episodes, at least 1.
            seed: seed from which each episode's reset is seeded (a vector environment is seeded with it once).
            max_steps: step limit of an episode, None for no limit. An environment of a vector, which cannot be reset
                alone, continues without a reset as its next episode.
            max_seconds: time limit after which all episodes are cut, and those that had begun are returned.
            deterministic: take greedy actions; if False, draw them from `seed` as at the end of training.

        Returns:
            Undiscounted returns, float64 `[episodes]` or of several agents `[episodes, N]`, and lengths in steps, int64
            `[episodes]`.

        Raises:
            EnvironmentFailed: an environment raised, broke its API's contract, or gave observations or returns that
                are NaN or infinite (ASYNC002, 011, 012, 013, 034).
        """
        self._max_steps = math.inf if max_steps is None else max_steps
        self._deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds
        self.cut_episodes = self._finished = 0
        self.successes, self._seed = np.zeros(episodes, np.int8), seed
        self._rng, self._streams = None if deterministic else np.random.default_rng(seed), 0
        if self._vector is None:
            returns, lengths = self._play(episodes, seed)
        else:
            self._assign(self._vector.num_envs)
            returns, lengths = self._play_vector(episodes, seed)
        self._refuse_non_finite("return", returns)  # no later return is greater than NaN
        return returns, lengths

    def _environment_calls(self, seed: int) -> AbstractContextManager[None]:
        return environment_calls(
            f"The environment {self._spec.name}",
            "in an evaluation",
            "mend the environment; greedy actions lead where exploration had not been",
            lambda: {"episode": self._current, "seed": seed},
        )

    def _play(self, episodes: int, seed: int) -> Episodes:
        while len(self._envs) < min(episodes, self._max_envs):
            self._envs.append(self._source.build())
            self._alive(0)
        seeds = [int(s) for s in np.random.SeedSequence(seed).generate_state(episodes)]
        returns = np.zeros((episodes, *self._spec.axes), np.float64)
        lengths = np.zeros(episodes, np.int64)
        obs = self._stacks(episodes * self._spec.num_agents)
        self._states = self._no_memory(episodes * self._spec.num_agents)
        form = action_form(self._envs[0])
        live = list(range(min(episodes, len(self._envs))))
        with self._environment_calls(seed):
            for episode in live:
                obs.begin(self._rows_of(episode), self._reset(episode, seeds))
        while live:
            actions = form.rows(self._actions_of(obs, live))
            if self._spec.agents:
                count = self._spec.num_agents
                actions = [actions[first : first + count] for first in range(0, len(actions), count)]
            with self._environment_calls(seed):
                live = self._step(live, actions, obs, seeds, returns, lengths)
            if live and time.monotonic() >= self._deadline:
                self.cut_episodes += sum(bool(lengths[episode]) for episode in live)
                break
        begun = lengths > 0
        return returns[begun], lengths[begun]

    def _step(
        self,
        live: list[int],
        actions: list[Any],
        obs: FrameStacks,
        seeds: list[int],
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
    ) -> list[int]:
        """Step every episode in `live`; return those that run afterwards. Environment k mod n plays episode k."""
        still = []
        for episode, action in zip(live, actions, strict=True):
            env = self._envs[episode % len(self._envs)]
            self._current = episode
            step = env_checks.check_step(self._spec.name, env.step(action), self._spec.axes)
            self._alive(self._finished)
            returns[episode] += step[1] if self._spec.agents else float(step[1])
            lengths[episode] += 1
            ended = not env.live.any() if self._spec.agents else step[2] or step[3]
            if not ended and lengths[episode] < self._max_steps:
                obs.push(self._rows_of(episode), step[0])
                still.append(episode)
                continue
            self._finished += 1
            self.cut_episodes += not ended
            self.successes[episode] = (
                env_checks.share_of_agents(env.successes)
                if self._spec.agents
                else env_checks.success_of(step[4])
            )
            if (following := episode + len(self._envs)) < len(seeds):
                obs.begin(self._rows_of(following), self._reset(following, seeds))
                still.append(following)
        return still

    def _actions_of(self, obs: FrameStacks, live: list[int]) -> NDArray[Any]:
        """Return the actions of the episodes in `live`, and advance their recurrent states."""
        count = self._spec.num_agents
        rows = [episode * count + agent for episode in live for agent in range(count)]
        self._assign(len(rows))
        if self._memory is None:
            return self._act(obs.array[rows])
        self._memory.state = self._states[rows]
        actions = self._act(obs.array[rows])
        self._states[rows] = self._memory.state
        return actions

    def _assign(self, rows: int) -> None:
        """Let the policy draw for so many streams; it forgets its recurrent states."""
        if self._rng is not None and rows != self._streams:
            self._policy.assign_streams(0, rows, rows)
            self._streams = rows

    def _act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return greedy actions, or draws at the final exploration rate."""
        self._refuse_non_finite("observation", obs)
        if self._rng is None:
            return self._policy.greedy(obs)
        return self._policy.act(obs, self._rng, np.iinfo(np.int64).max)[0]

    def _refuse_non_finite(self, what: str, values: NDArray[Any]) -> None:
        """Raise `NonFiniteStep` for NaN or infinity, as actors do."""
        env_checks.refuse_non_finite(self._spec.name, what, values, "an evaluation", seed=self._seed)

    def _rows_of(self, episode: int) -> int | slice:
        """Row of an episode's observation, or the rows of its agents."""
        count = self._spec.num_agents
        return slice(episode * count, (episode + 1) * count) if self._spec.agents else episode

    def _no_memory(self, rows: int) -> NDArray[np.float32]:
        """Return the recurrent states of `rows` streams at the start of episodes; without columns if not recurrent."""
        if self._memory is None:
            return np.zeros((rows, 0), np.float32)
        self._memory.forget(rows)
        return self._memory.state.copy()

    def _stacks(self, rows: int) -> FrameStacks:
        spec = self._spec
        return FrameStacks(rows, self._policy.frame_stack, spec.observation_shape, spec.observation_dtype)

    def _reset(self, episode: int, seeds: list[int]) -> Any:
        env = self._envs[episode % len(self._envs)]
        self._current = episode
        obs = env_checks.check_reset(self._spec.name, env.reset(seed=seeds[episode]))
        self._alive(self._finished)
        return obs

    def _play_vector(self, episodes: int, seed: int) -> Episodes:
        streams = VectorStreams(self._vector, self._spec)
        n = streams.num_envs
        obs = np.empty((n, *self._spec.observation_shape), self._spec.observation_dtype)
        rewards, row_returns, row_lengths = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
        returns, lengths = np.zeros(episodes, np.float64), np.zeros(episodes, np.int64)
        next_episode = list(range(n))  # environment i plays episodes i, i + n, ...
        with self._environment_calls(seed):
            streams.reset([seed], obs)
        stacks = self._stacks(n)
        stacks.begin(slice(None), obs)
        self._no_memory(n)
        while min(next_episode) < episodes:
            actions = self._act(stacks.array)
            with self._environment_calls(seed):
                events = streams.step(actions, obs, rewards)
            stacks.push(slice(None), obs)
            for i, flag in events.tolist():
                if flag == RESET:
                    stacks.begin(i, obs[i])
                    if self._memory is not None:
                        self._memory.begin(i)
            self._alive(self._finished)
            row_returns += rewards
            row_lengths += 1
            ends = dict(map(tuple, events.tolist()))
            late = time.monotonic() >= self._deadline
            for i in range(n) if late else {*ends, *np.flatnonzero(row_lengths >= self._max_steps).tolist()}:
                flag = ends.get(i)
                if flag != RESET and next_episode[i] < episodes:
                    returns[next_episode[i]], lengths[next_episode[i]] = row_returns[i], row_lengths[i]
                    self.successes[next_episode[i]] = streams.success(i) if flag else env_checks.UNKNOWN
                    next_episode[i] += n
                    self._finished += 1
                    self.cut_episodes += flag is None
                row_returns[i] = row_lengths[i] = 0
            if late:
                break
        begun = lengths > 0
        return returns[begun], lengths[begun]
