"""Random episodes in one environment, for `asyncrl check`: its speed, its episodes, and its problems."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.envs import checks as env_checks
from asyncrl.envs.observations import unread_text, unusual_size
from asyncrl.envs.source import EnvSource
from asyncrl.errors import environment_calls
from asyncrl.interfaces import EnvSpec

_SEED = 0
_COMPARED_STEPS = 20
"""Number of steps over which two resets with the same seed are compared."""


@dataclass(frozen=True)
class Trial:
    """Result of random actions in an environment.

    Attributes:
        spec: its spaces and limits.
        build_seconds, reset_seconds: duration of the constructor and of a reset, in seconds.
        steps_per_second: steps per second of one environment (of all of a vector) in one process.
        steps: number of steps taken.
        episodes: number of episodes that ended.
        length_mean, return_mean: their means, None if no episode ended; an episode with a reward that is not finite
            has no return. The return of several agents is the sum of theirs.
        reward_low, reward_high: smallest and largest finite reward of a step; infinity and -infinity without one.
        autoreset: autoreset mode of a vector environment; "" for a single one, which the actor resets.
        problems: sentences about problems that do not prevent training.
    """

    spec: EnvSpec
    build_seconds: float
    reset_seconds: float
    steps_per_second: float
    steps: int
    episodes: int
    length_mean: float | None
    return_mean: float | None
    reward_low: float
    reward_high: float
    autoreset: str
    problems: tuple[str, ...]


def try_out(source: EnvSource, seconds: float, report: Callable[[Trial], None] = lambda trial: None) -> Trial:
    """Build the environment, check it as a run does, and step it with random actions for `seconds`.

    `report` is called with the result before the environment is closed, because `close` may hang.

    Raises:
        AsyncRLError: a run would refuse the environment.
    """
    started = time.perf_counter()
    env: Any = source.build()
    built = time.perf_counter() - started
    try:
        spec = env_checks.checked_spec(source.name, env)
        before = time.perf_counter()
        obs, _ = env.reset(seed=_SEED)
        reset = time.perf_counter() - before
        autoreset = "" if spec.vector_envs is None else env_checks.autoreset_mode(source.name, env)
        walk = _Walk(env, spec, autoreset)
        with environment_calls(
            f"The environment {source.name}",
            "in a random episode",
            "mend the environment; random actions lead there",
            lambda: {"step": walk.steps, "seed": _SEED},
        ):
            walk.go(obs, seconds)
            # As many steps as fit into `seconds`, and one at least: a slow environment is not stepped for a minute.
            fit = int(seconds * walk.steps / walk.seconds)
            of_seeds = _of_seeds(env, spec, min(_COMPARED_STEPS, max(1, fit)))
        trial = Trial(
            spec,
            built,
            reset,
            walk.steps / walk.seconds,
            walk.steps,
            len(walk.lengths),
            _mean(walk.lengths),
            _mean(walk.returns),
            walk.low,
            walk.high,
            autoreset,
            (*walk.problems(), *of_seeds),
        )
        report(trial)
        return trial
    finally:
        env_checks.close_env(env)


class _Walk:
    """Random steps, with their statistics and problems; RESET rows of a vector are not counted."""

    def __init__(self, env: Any, spec: EnvSpec, autoreset: str) -> None:
        self.env, self.spec, self.count, self.autoreset = env, spec, spec.vector_envs or 1, autoreset
        self.steps, self.seconds = 0, 1e-9
        self.low, self.high = math.inf, -math.inf
        self.lengths: list[float] = []
        self.returns: list[float] = []
        self._seen: dict[str, None] = {}
        self._squares, self._rows = np.zeros(math.prod(spec.observation_shape)), 0

    def go(self, obs: Any, seconds: float) -> None:
        """Step for `seconds` from the observation `obs` on; `self.seconds` sums the time of `step` only."""
        lengths, totals = np.zeros(self.count), np.zeros(self.count)
        ended = np.zeros(self.count, bool)
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            stepped = ~ended if self.autoreset == env_checks.NEXT_STEP else np.ones(self.count, bool)
            action = env_checks.random_action(self.env, self.spec, obs)
            before = time.perf_counter()
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self.seconds += time.perf_counter() - before
            rewards = np.asarray(reward, np.float64).reshape(self.count, -1)  # of several agents a row
            self.steps += int(stepped.sum())
            lengths += stepped
            totals += np.where(stepped[:, None], rewards, 0.0).sum(axis=1)
            self._check(obs, rewards[stepped])
            over = ~self.env.live.any() if self.spec.agents else np.logical_or(terminated, truncated)
            ended = stepped & np.ravel(over)
            self.lengths += lengths[ended].tolist()
            self.returns += totals[ended & np.isfinite(totals)].tolist()
            lengths[ended] = totals[ended] = 0
            if ended.any() and self.autoreset != env_checks.NEXT_STEP:
                obs, _ = self.env.reset(options={"reset_mask": ended} if self.autoreset else None)

    def _check(self, obs: Any, rewards: np.ndarray) -> None:
        if not np.isfinite(rewards).all():
            self._seen["a reward is NaN or infinite: a run ends there (ASYNC011)"] = None
        elif rewards.size:
            self.low, self.high = min(self.low, rewards.min()), max(self.high, rewards.max())
        if np.asarray(obs).dtype.kind == "f" and not np.isfinite(obs).all():
            self._seen["an observation has NaN or infinite values: a run ends there (ASYNC011)"] = None
        elif not env_checks.observations_fit(self.env, obs):
            self._seen["an observation lies outside of observation_space"] = None
        elif np.asarray(obs).dtype.kind == "f":
            rows = np.reshape(obs, (-1, self._squares.size)).astype(np.float64)
            self._squares += np.square(rows).sum(axis=0)
            self._rows += len(rows)

    def problems(self) -> list[str]:
        """Return sentences about the problems."""
        found = [unread_text(self.spec)] if self.spec.unread else []
        found += self._seen
        if self.low == self.high:
            found.append(f"every reward was {self.high:g}: random actions do not show what is wanted")
        elif self.low < self.high and max(abs(self.low), abs(self.high)) > 500:
            found.append(
                f"rewards reach from {self.low:g} to {self.high:g}: scaled by their mean size, but by C51 and Rainbow, "
                "which want reward_scale"
            )
        if self._rows and (size := unusual_size(self._squares / self._rows)):
            found.append(f"observations are {size}: set normalize_observations, or scale them (ASYNC049)")
        if not (self.spec.time_limit or self.lengths):
            steps = f"{self.steps:,} step{'s' * (self.steps != 1)}"
            found.append(f"no episode ended within {steps}, and there is no time limit")
        return found


def _of_seeds(env: Any, spec: EnvSpec, steps: int) -> list[str]:
    """Return a sentence if the same seed does not give the same `steps` steps, else an empty list."""
    runs = []
    for _ in range(2):
        obs, _ = env.reset(seed=_SEED)
        env_checks.seed_actions(env)
        seen = [np.array(obs)]
        for _ in range(steps):
            obs, _, terminated, truncated, _ = env.step(env_checks.random_action(env, spec, obs))
            seen.append(np.array(obs))
            if np.any(terminated) or np.any(truncated):  # also of one agent of several
                break
        runs.append(seen)
    same = len(runs[0]) == len(runs[1]) and all(map(np.array_equal, *runs))
    return [] if same else ["the same seed does not give the same episode: runs cannot be repeated"]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
