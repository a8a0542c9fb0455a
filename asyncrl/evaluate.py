"""When to evaluate, and when an evaluation ends the run.

Regular evaluations run beside training, on weights that were copied out between two bursts. One that reaches
`target_return` over its few episodes is only a hint (the best of many noisy means is biased upwards): training is then
held, its clock with it, and the *same* weights play `target_eval_episodes` fresh episodes. Only their mean decides. So
`train_seconds` holds no evaluation that training waited for, and the weights a run returns are the ones that passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.clock import TrainClock
from asyncrl.metrics import EvaluationResult


class Evaluator(Protocol):
    """Plays greedy episodes with given weights somewhere off the loop's thread."""

    async def evaluate(
        self, weights: NDArray[np.float32], episodes: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths of exactly `episodes` fresh episodes."""
        ...


class Trainee(Protocol):
    """What evaluation needs of the learner."""

    @property
    def updates(self) -> int: ...  # noqa: D102
    @property
    def inserted_steps(self) -> int: ...  # noqa: D102

    async def current_weights(self) -> tuple[NDArray[np.float32], int]:
        """A copy of the acting weights and their version."""
        ...

    async def hold(self) -> None:
        """Stand still."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...


@dataclass(frozen=True)
class EvaluationPlan:
    """How often and how long to evaluate.

    Attributes:
        interval_seconds: least training time between two regular evaluations.
        episodes: of a regular evaluation.
        target_return: mean return that ends the run, or None.
        target_episodes: episodes that confirm it.
    """

    interval_seconds: float
    episodes: int
    target_return: float | None
    target_episodes: int


class EvaluationSchedule:
    """Runs regular evaluations until the target is reached or it is cancelled; event-loop thread only.

    Args:
        plan: how often and how long.
        evaluator: who plays.
        trainee: whose weights.
        clock: the training clock; paused while a confirmation runs.
        on_best: awaited with the result and weights of an evaluation better than all before it.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        evaluator: Evaluator,
        trainee: Trainee,
        clock: TrainClock,
        on_best: Callable[[EvaluationResult, NDArray[np.float32]], Awaitable[None]],
    ) -> None:
        self._plan = plan
        self._evaluator = evaluator
        self._trainee = trainee
        self._clock = clock
        self._on_best = on_best
        self.last: EvaluationResult | None = None
        self.best: EvaluationResult | None = None
        self.confirming = False

    async def run_until_target(self) -> NDArray[np.float32]:
        """Evaluate at every interval; return the weights that reached the target (never, without one)."""
        updates_then = -1
        while True:
            await self._until_due(updates_then)
            updates_then = self._trainee.updates
            weights, version = await self._trainee.current_weights()
            result = await self._play(weights, version, self._plan.episodes)
            if await self._confirmed(result, weights):
                return weights
            await self._record(self.last or result, weights)

    async def evaluate_now(self, episodes: int) -> EvaluationResult:
        """One evaluation of the present weights, recorded like any other."""
        weights, version = await self._trainee.current_weights()
        result = await self._play(weights, version, episodes)
        await self._record(result, weights)
        return result

    async def _until_due(self, updates_then: int) -> None:
        due = self._clock.train_seconds + self._plan.interval_seconds
        while self._trainee.updates <= max(updates_then, 0) or self._clock.train_seconds < due:
            await asyncio.sleep(min(0.02, max(0.001, due - self._clock.train_seconds)))

    async def _play(self, weights: NDArray[np.float32], version: int, episodes: int) -> EvaluationResult:
        env_steps, train_seconds = self._trainee.inserted_steps, self._clock.train_seconds
        returns, lengths = await self._evaluator.evaluate(weights, episodes)
        result = EvaluationResult(
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            length_mean=float(lengths.mean()),
            episodes=int(returns.shape[0]),
            policy_version=version,
            env_steps=env_steps,
            train_seconds=train_seconds,
        )
        self.last = result
        return result

    async def _confirmed(self, hint: EvaluationResult, weights: NDArray[np.float32]) -> bool:
        """Whether `hint` reaches the target and fresh episodes of the same weights, training held, confirm it."""
        plan = self._plan
        if plan.target_return is None or hint.return_mean < plan.target_return:
            return False
        self.confirming = True
        await self._trainee.hold()
        self._clock.pause()
        try:
            fresh = await self._play(weights, hint.policy_version, plan.target_episodes)
        finally:
            self.confirming = False
        reached = fresh.return_mean >= plan.target_return
        self.last = EvaluationResult(
            fresh.return_mean,
            fresh.return_std,
            fresh.length_mean,
            fresh.episodes,
            hint.policy_version,
            hint.env_steps,
            hint.train_seconds,
        )
        if reached:
            await self._record(self.last, weights)
        else:
            self._clock.resume()
            self._trainee.resume()
        return reached

    async def _record(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        if self.best is None or result.return_mean > self.best.return_mean:
            self.best = result
            await self._on_best(result, weights)
