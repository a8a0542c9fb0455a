"""Greedy evaluation in a process of its own: neither the loop nor the learner waits for an environment."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.child import Child, ChildDied
from asyncrl.actors.deaths import actor_killed
from asyncrl.actors.episodes import MAX_ENVS, EpisodePlayer, Episodes, run_episodes
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.plans import EvaluatorPlan
from asyncrl.core import EnvSpec
from asyncrl.envs import EnvSource
from asyncrl.shm.weights import WeightMailbox

__all__ = ["EpisodePlayer", "RemoteEvaluator", "run_episodes"]


class RemoteEvaluator:
    """Plays greedy episodes on request; event-loop thread only.

    The process is forked at the first request (or by `start`) and kept. If it dies, the request that was
    under way fails and the next one forks another.

    Args:
        server: forks it.
        source: the environment.
        spec: what it looks like.
        policy_bytes: pickled `Policy`.
        seed: evaluation k of a run plays the same episodes in every run of this seed.
        niceness: how much to lower its priority beside training.
        max_envs: most environments to build; more episodes than that take turns.
    """

    def __init__(
        self,
        server: ForkServer,
        source: EnvSource,
        spec: EnvSpec,
        policy_bytes: bytes,
        seed: int,
        *,
        niceness: int = 0,
        max_envs: int = MAX_ENVS,
    ) -> None:
        self._server = server
        self._plan = pickle.dumps(EvaluatorPlan(source, policy_bytes, max_envs))
        self._name = spec.name
        self._seed = seed
        self._niceness = niceness
        self._rounds = 0
        self._child: Child | None = None
        self._mailbox: WeightMailbox | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int:
        """Process id of the evaluator, 0 while none runs."""
        return self._child.pid if self._child is not None else 0

    async def evaluate(self, weights: NDArray[np.float32], episodes: int) -> Episodes:
        """Play exactly `episodes` episodes with `weights`; requests take turns.

        Args:
            weights: flat float32 `[weight_count]`, contiguous; copied before this returns to the loop for the
                first time in which it holds the turn.
            episodes: how many, at least 1.

        Returns:
            Undiscounted returns, float64 `[episodes]`, and lengths in steps, int64 `[episodes]`.

        Raises:
            AsyncRLError: what the environment did, or `ActorKilled` where the process died.
        """
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {episodes}")
        async with self._turn:
            child = await self._running(weights.shape[0])
            assert self._mailbox is not None
            self._mailbox.publish(weights)
            self._rounds += 1
            seed = np.random.SeedSequence(self._seed, spawn_key=(2**32 - 1, self._rounds)).generate_state(1)[
                0
            ]
            child.send({"episodes": episodes, "seed": int(seed)})
            answer = await self._answer(child)
            return answer["returns"], answer["lengths"]

    async def start(self, weight_count: int) -> None:
        """Fork the process now and wait until it is ready, so that the first evaluation need not."""
        async with self._turn:
            await self._running(weight_count)

    async def close(self) -> None:
        """End the process; a request under way is cancelled by whoever awaits it. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    async def _running(self, weight_count: int) -> Child:
        if self._child is not None and self._child.exited is None:
            return self._child
        if self._child is not None:
            await self._child.end()
        if self._mailbox is not None:
            self._mailbox.close()
        self._mailbox = WeightMailbox.create(weight_count)
        self._child = Child(self._server, "evaluator")
        await self._child.start(self._plan, {"weights": self._mailbox.fd}, niceness=self._niceness)
        await self._answer(self._child)
        return self._child

    async def _answer(self, child: Child) -> dict[str, Any]:
        """The child's next frame. A caller that gives up leaves a process in mid-air, which is ended."""
        try:
            return await child.receive()
        except BaseException as error:
            self._child = None
            await child.end(patience_seconds=0.0)
            if isinstance(error, ChildDied):
                raise actor_killed(f"The evaluator of {self._name}", error.exit, 0) from error
            raise
