"""Greedy evaluation in a process of its own: neither the loop nor the learner waits for an environment."""

from __future__ import annotations

import asyncio
import pickle
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.child import Child, ChildDied, ChildSilent
from asyncrl.actors.episodes import EPISODE_STEPS, MAX_ENVS, EpisodePlayer, Episodes, run_episodes
from asyncrl.actors.exit_errors import actor_killed, build_hung, evaluation_hung
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import EvaluatorPlan
from asyncrl.actors.restarts import RestartBudget
from asyncrl.envs.source import EnvSource
from asyncrl.errors import EvaluationIncomplete
from asyncrl.interfaces import EnvSpec
from asyncrl.shm.weights import WeightMailbox

__all__ = ["EpisodePlayer", "RemoteEvaluator", "run_episodes"]

T = TypeVar("T")


class RemoteEvaluator:
    """Plays greedy episodes on request; event-loop thread only.

    The process is forked at the first request (or by `start`) and kept. If it is killed, another is forked and
    plays the same episodes again, a few times a minute at most.

    Args:
        server: forks it.
        source: the environment.
        spec: what it looks like.
        policy_bytes: pickled `Policy`.
        seed: with the key of an evaluation it decides which episodes are played.
        max_envs: most environments to build; more episodes than that take turns.
        limits: how long its first environment, and a step, reset or construction in an evaluation, may take, and how
            often a process that was killed is replaced.
        max_episode_steps: steps after which an episode is ended as it stands; None is the environment's own limit, or
            `EPISODE_STEPS` where it has none.

    Attributes:
        max_seconds: time after which the episodes of an evaluation are ended as they stand; None is no limit.
        cut_episodes: how many episodes of the last evaluation were ended by one of the two limits.
        finished_episodes: how many episodes of the present evaluation have finished, about a second ago.
    """

    def __init__(
        self,
        server: ForkServer,
        source: EnvSource,
        spec: EnvSpec,
        policy_bytes: bytes,
        seed: int,
        *,
        max_envs: int = MAX_ENVS,
        limits: ProcessLimits | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self._server = server
        self._limits = limits or ProcessLimits()
        self._budget = RestartBudget(self._limits.max_restarts)
        self._restarts = 0
        self._plan = pickle.dumps(EvaluatorPlan(source, policy_bytes, max_envs))
        self._name = spec.name
        self._seed = seed
        self._max_steps = max_episode_steps or spec.max_episode_steps or EPISODE_STEPS
        self.max_seconds: float | None = None
        self.cut_episodes = self.finished_episodes = 0
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
        """Play exactly `episodes` episodes with `weights`; requests take turns.

        Args:
            weights: flat float32 `[weight_count]`, contiguous; copied before this first returns to the loop.
            episodes: how many, at least 1.
            key: which episodes: the same key plays the same episodes in every run of this seed, whatever was
                evaluated before; non-negative integers.

        Returns:
            Undiscounted returns, float64 `[episodes]`, and lengths in steps, int64 `[episodes]`. Where `max_seconds`
            was over before, they are of the episodes that had begun.

        Raises:
            AsyncRLError: what the environment did (`EnvironmentHung` where it stood still), or `ActorKilled` where the
                process was killed too often.
        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        weights = weights.copy()
        async with self._turn:
            sequence = np.random.SeedSequence(self._seed, spawn_key=(2**32 - 1, *key))
            request = {
                "episodes": episodes,
                "seed": int(sequence.generate_state(1)[0]),
                "max_steps": self._max_steps,
            }
            end = None if self.max_seconds is None else time.monotonic() + self.max_seconds
            return await self._despite_deaths(lambda: self._play(weights, request, end))

    async def start(self, weight_count: int) -> None:
        """Fork the process now and wait until it is ready, so that the first evaluation need not."""
        async with self._turn:
            await self._despite_deaths(lambda: self._running(weight_count))

    async def close(self) -> None:
        """End the process; a request under way is cancelled by whoever awaits it. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    async def _play(
        self, weights: NDArray[np.float32], request: dict[str, Any], end: float | None
    ) -> Episodes:
        """One try; `end` on the monotonic clock is that of all tries together."""
        child = await self._running(weights.shape[0])
        assert self._mailbox is not None
        self._mailbox.publish(weights)
        self.finished_episodes = 0
        left = None if end is None else max(0.0, end - time.monotonic())
        child.send({**request, "max_seconds": left})
        answer = await self._answer(self._returns_of(child))
        self.cut_episodes = answer["cut"]
        self._warn_of_cut(len(answer["returns"]))
        return answer["returns"], answer["lengths"]

    async def _returns_of(self, child: Child) -> dict[str, Any]:
        """The answer to a request, between the signs of life that come at least once a second."""
        try:
            while (frame := await child.receive_within(self._limits.step_timeout_seconds))["kind"] == "alive":
                self.finished_episodes = frame["episodes"]
        except ChildSilent as silent:
            raise evaluation_hung(self._name, silent.seconds, silent.stack) from None
        return frame

    async def _despite_deaths(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the process lives to the end of it, or was killed too often."""
        while True:
            try:
                return await attempt()
            except ChildDied as died:
                # A fork server that dies has a budget of its own.
                pause = 0.0 if died.exit.server_lost else self._budget.spend(useful=False)
                if pause is None:
                    who = f"The evaluator of {self._name}"
                    raise actor_killed(who, died.exit, self._restarts, crash=died.crash) from died
            self._restarts += 1
            await asyncio.sleep(pause)

    def _warn_of_cut(self, played: int) -> None:
        if self.cut_episodes == 0 or self._warned:
            return
        self._warned = True
        text = (
            f"[ASYNC041] {self.cut_episodes} of {played} evaluation episodes of {self._name} were ended before the "
            f"environment ended them, by the limit of {self._max_steps:,} steps or of time; their returns count as "
            "they stood; set eval_max_episode_steps, or end episodes in the environment"
        )
        warnings.warn(EvaluationIncomplete(text), stacklevel=2)

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
        """The child's next frame. A caller that gives up leaves a process in mid-air, which is ended."""
        try:
            return await frame
        except BaseException as error:
            child, self._child = self._child, None
            if child is not None:
                await child.end(patience_seconds=0.0)
            if isinstance(error, ChildSilent):
                raise build_hung(f"The environment {self._name}", error.seconds, error.stack) from None
            raise
