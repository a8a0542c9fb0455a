"""Evaluation in a separate process, so neither the event loop nor the learner waits for an environment."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.child import Child, ChildDied, ChildSilent
from asyncrl.actors.episodes import Episodes, seed_of_episodes
from asyncrl.actors.exit_errors import actor_killed, build_hung, evaluation_hung
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits, RestartBudget
from asyncrl.actors.plans import EvaluatorPlan, FilmPlan
from asyncrl.envs.source import EnvSource
from asyncrl.errors import EvaluationIncomplete, warn
from asyncrl.interfaces import EnvSpec
from asyncrl.shm.weights import WeightMailbox

T = TypeVar("T")


class RemoteEvaluator:
    """Evaluator process that plays episodes on request; event-loop thread only.

    The process is forked at the first request (or by `start`) and kept. If it is killed, another one is forked and
    plays the same episodes again, a few times a minute at most.

    Args:
        server: fork server that forks it.
        source: the environment, whose `levels` are played if it has some.
        spec: its spec.
        policy_bytes: pickled `Policy`.
        seed: together with the key of an evaluation, the seed of its episodes.
        limits: time limits of building its first environment, and of a step, reset or construction in an evaluation,
            and the limit of restarts after it was killed.
        max_episode_steps: step limit of an episode; None for that of the environment that is played, or else
            `EPISODE_STEPS`.
        deterministic: whether actions are greedy; see `EpisodePlayer.play`.

    Attributes:
        max_seconds: time limit of an evaluation, after which its episodes are cut; None for no limit.
        cut_episodes: number of episodes of the last evaluation that were cut by one of the two limits.
        success_rate: fraction of its episodes that ended in success; None where `info` does not say.
        level_returns: mean return of each of its levels by name, of several agents the sum; empty without levels.
        finished_episodes: number of finished episodes of the current evaluation, about a second ago.
        agents: names of several agents, in the order of their returns; empty for one agent.
        policies: several policies of the agents; empty if all share one.
        levels: names of the levels; one without a name if there is a single environment.
    """

    def __init__(
        self,
        server: ForkServer,
        source: EnvSource,
        spec: EnvSpec,
        policy_bytes: bytes,
        seed: int,
        *,
        limits: ProcessLimits | None = None,
        max_episode_steps: int | None = None,
        deterministic: bool = True,
    ) -> None:
        self._server = server
        self._limits = limits or ProcessLimits()
        self._budget = RestartBudget(self._limits.max_restarts)
        self._restarts = 0
        names, sources = zip(*(source.levels or (("", source),)), strict=True)
        self.levels: tuple[str, ...] = names
        self._first, self._policy = sources[0], policy_bytes
        self.agents, self.policies = tuple(agent.name for agent in spec.agents), spec.policies
        self._plan = pickle.dumps(EvaluatorPlan(sources, policy_bytes, spec))
        self._name = spec.name
        self._seed, self._deterministic = seed, deterministic
        self._max_steps = max_episode_steps
        self.max_seconds: float | None = None
        self.cut_episodes = self.finished_episodes = 0
        self.success_rate: float | None = None
        self.level_returns: dict[str, float] = {}
        self._warned = False
        self._child: Child | None = None
        self._mailbox: WeightMailbox | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int:
        """Process id of the evaluator, 0 while none runs."""
        return self._child.pid if self._child is not None else 0

    async def evaluate(
        self, weights: NDArray[np.float32], episodes: int, key: tuple[int, ...] = ()
    ) -> Episodes:
        """Play exactly `episodes` episodes of every level with `weights`; concurrent requests take turns.

        Args:
            weights: flat float32 `[weight_count]`, contiguous; copied before the first suspension.
            episodes: number of episodes, at least 1.
            key: non-negative integers that select the episodes: the same key plays the same episodes in every run with
                this seed, regardless of other evaluations. All levels have the same seeds.

        Returns:
            Undiscounted returns, float64 `[episodes]` or of several agents `[episodes, N]`, and lengths in steps, int64
            `[episodes]`; after `max_seconds` only those of episodes that had begun. Levels follow one another.

        Raises:
            AsyncRLError: the environment failed or hung (`EnvironmentHung`).
            ActorKilled: the process was killed too often.
        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        weights = weights.copy()
        async with self._turn:
            request = {
                "episodes": episodes,
                "seed": seed_of_episodes(self._seed, key),
                "max_steps": self._max_steps,
                "deterministic": self._deterministic,
            }
            end = None if self.max_seconds is None else time.monotonic() + self.max_seconds
            return await self._with_restarts(lambda: self._play_levels(weights, request, end))

    def film_of(
        self, weights: NDArray[np.float32], key: tuple[int, ...], path: Path, max_steps: int
    ) -> FilmPlan:
        """Plan of a film of the first episode of the evaluation `key`, of its first level, into the file `path`."""
        steps = min(self._max_steps or max_steps, max_steps)
        seed, greedy = seed_of_episodes(self._seed, key), self._deterministic
        return FilmPlan(self._first, self._policy, weights.tobytes(), seed, steps, greedy, str(path))

    async def start(self, weight_count: int) -> None:
        """Fork the process and wait until it is ready, so that the first evaluation does not wait."""
        async with self._turn:
            await self._with_restarts(lambda: self._running(weight_count))

    async def close(self) -> None:
        """End the process; the caller of a running `evaluate` must cancel it. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    async def _play_levels(
        self, weights: NDArray[np.float32], request: dict[str, Any], end: float | None
    ) -> Episodes:
        """Make one attempt; `end`, on the monotonic clock, is the deadline of all attempts together."""
        child = await self._running(weights.shape[0])
        assert self._mailbox is not None
        self._mailbox.publish(weights)
        answers: list[dict[str, Any]] = []
        for level in range(len(self.levels)):
            self.finished_episodes = sum(len(answer["returns"]) for answer in answers)
            left = None if end is None else max(0.0, end - time.monotonic())
            child.send({**request, "max_seconds": left, "level": level})
            answers.append(await self._answer(self._returns_of(child, self.finished_episodes)))
        returns, lengths = (
            np.concatenate([answer[name] for answer in answers]) for name in ("returns", "lengths")
        )
        self.cut_episodes = sum(answer["cut"] for answer in answers)
        rates = [answer["success_rate"] for answer in answers if answer["success_rate"] is not None]
        self.success_rate = sum(rates) / len(rates) if rates else None
        means = [float(answer["returns"].sum() / max(1, len(answer["returns"]))) for answer in answers]
        self.level_returns = dict(zip(self.levels, means, strict=True)) if self.levels[0] else {}
        self._warn_of_cut(len(returns), max(answer["limit"] for answer in answers))
        return returns, lengths

    async def _returns_of(self, child: Child, finished_before: int) -> dict[str, Any]:
        """Return the answer to a request; skip the "alive" frames, which arrive about once a second."""
        try:
            while (frame := await child.receive_within(self._limits.step_timeout_seconds))["kind"] == "alive":
                self.finished_episodes = finished_before + frame["episodes"]
        except ChildSilent as silent:
            raise evaluation_hung(self._name, silent.seconds, silent.stack) from None
        return frame

    async def _with_restarts(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` until the process survives it or was killed too often."""
        while True:
            try:
                return await attempt()
            except ChildDied as died:
                # The fork server has its own restart budget.
                pause = 0.0 if died.exit.server_lost else self._budget.spend(useful=False)
                if pause is None:
                    who = f"The evaluator of {self._name}"
                    raise actor_killed(who, died.exit, self._restarts, crash=died.crash) from died
            self._restarts += 1
            await asyncio.sleep(pause)

    def _warn_of_cut(self, played: int, limit: int) -> None:
        if self.cut_episodes == 0 or self._warned:
            return
        self._warned = True
        text = (
            f"[ASYNC041] {self.cut_episodes} of {played} evaluation episodes of {self._name} were ended before the "
            f"environment ended them, by the limit of {limit:,} steps or of time; their returns count as "
            "they stood; set eval_max_episode_steps, or end episodes in the environment"
        )
        warn(EvaluationIncomplete(text))

    async def _running(self, weight_count: int) -> Child:
        if self._child is not None and self._child.exited is None:
            return self._child
        if self._child is not None:
            await self._child.end()
        if self._mailbox is not None:
            self._mailbox.close()
        self._mailbox = WeightMailbox.create(weight_count)
        child = Child(self._server, "evaluator")
        await child.start(self._plan, {"weights": self._mailbox.fd})
        self._child = child
        await self._answer(child.receive_within(self._limits.ready_timeout_seconds))
        return child

    async def _answer(self, frame: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Return the child's next frame. After an error or a cancellation its state is unknown, so it is ended."""
        try:
            return await frame
        except BaseException as error:
            child, self._child = self._child, None
            if child is not None:
                await child.end(patience_seconds=0.0)
            if isinstance(error, ChildSilent):
                raise build_hung(f"The environment {self._name}", error.seconds, error.stack) from None
            raise
