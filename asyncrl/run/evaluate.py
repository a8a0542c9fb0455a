"""Schedule of evaluations, and the rule by which one ends the run.

Regular evaluations run beside training, on copies of its weights. By steps (`CopiesBySteps`) the learner's thread makes
the copies at fixed environment steps and they are evaluated in that order, none left out, so that neither the learning
curve nor the steps to the target depend on the speed of the machine. By seconds (`CopiesBySeconds`) the newest weights
are copied whenever an interval has passed.

One that reaches `target_return` over its few episodes is only a hint (the best of many noisy means is biased upwards):
training is then held, its clock with it, and the *same* weights play `target_eval_episodes` fresh episodes. Only their
mean decides, and only it is recorded. So `train_seconds` holds no evaluation that training waited for, and the weights
a run returns are the first, in the order of training, that passed.

An evaluation that fails (the environment raises on a greedy path, the evaluator is killed too often) ends nothing: that
is told once (ASYNC041), its copy has no result, and the next copy is evaluated as usual. One case is left: where
`target_return` is the only rule that can end the run, `FAILURES_IN_A_ROW` failures are taken to mean that no evaluation
will ever succeed, and the last of them ends the run, with its weights saved.

Training that has used up its steps still has the copies that wait evaluated, for one of them may reach the target.
Training has nothing to wait for then, so each is given a limit of time, and the first that passes it is the last.

Episodes are drawn by the kind and the number of the evaluation: evaluation k of a run plays the same episodes in every
run of its seed, however many confirmations came before it.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import EvaluationIncomplete, describe_error
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.run.evaluation_copies import Copies, TimedCopy, Trainee, copy_of
from asyncrl.show.metrics import EvaluationResult

REGULAR, CONFIRMATION, FINAL = range(3)
"""Kinds of evaluation; each draws its own episodes."""
FAILURES_IN_A_ROW = 5
"""Evaluations that fail one after the other before a run that only an evaluation can end is given up."""


class Evaluator(Protocol):
    """Plays greedy episodes with given weights somewhere off the loop's thread."""

    async def evaluate(
        self, weights: NDArray[np.float32], episodes: int, key: tuple[int, ...] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths of exactly `episodes` fresh episodes, the same ones for the same key."""
        ...


@dataclass(frozen=True)
class EvaluationPlan:
    """How long to evaluate, and what ends the run.

    Attributes:
        episodes: of a regular evaluation.
        target_return: mean return that ends the run, or None.
        target_episodes: episodes that confirm it.
        only_stop: no other rule can end the run.
        groups: how many groups take the run's steps; only one evaluates, and its own steps count for all.
    """

    episodes: int
    target_return: float | None
    target_episodes: int
    only_stop: bool = False
    groups: int = 1


class EvaluationSchedule:
    """Evaluates copy after copy until the target is reached or training has ended; event-loop thread only.

    Args:
        plan: how long.
        evaluator: who plays.
        trainee: who is held while a hint is confirmed.
        clock: the training clock; paused while a confirmation runs, and from the end of training on.
        copies: which weights.
        on_best: awaited with the result and weights of an evaluation better than all before it.
        on_evaluation: called with the result of every evaluation, in order; a hint counts for its confirmation.

    Attributes:
        evaluations: results of all evaluations so far, in order.
        best: the best of them (the first of several), or None.
        best_weights: the weights of the best, or None.
        holds_training: whether training stands still for an evaluation, or has ended and evaluation goes on.
        rounds: copies that were evaluated.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        evaluator: Evaluator,
        trainee: Trainee,
        clock: TrainClock,
        copies: Copies,
        on_best: Callable[[EvaluationResult, NDArray[np.float32]], Awaitable[None]],
        on_evaluation: Callable[[EvaluationResult], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._evaluator = evaluator
        self._trainee = trainee
        self._clock = clock
        self._copies = copies
        self._on_best = on_best
        self._on_evaluation = on_evaluation
        self.rounds = 0
        self._current: TimedCopy | None = None
        self._failures = 0
        self._warned = False
        self._training_ended = False
        self._limit_seconds: float | None = None
        self._playing: asyncio.Timeout | None = None
        self.evaluations: tuple[EvaluationResult, ...] = ()
        self.best: EvaluationResult | None = None
        self.best_weights: NDArray[np.float32] | None = None
        self.holds_training = False

    @property
    def last(self) -> EvaluationResult | None:
        """The last evaluation, None before the first."""
        return self.evaluations[-1] if self.evaluations else None

    async def run(self) -> NDArray[np.float32] | None:
        """Evaluate every copy; return the weights that reached the target, or None when all were evaluated.

        Raises what an evaluation has raised where no other rule can end the run and evaluations keep failing.
        """
        while (timed := await self._copies.next()) is not None:
            self._current = timed
            try:
                reached = await self._evaluate(timed)
            except TimeoutError:
                self._warn(f"one took longer than {self._limit_seconds:.0f} s after the end of training")
                return None
            except Exception as error:
                self._let_train()
                self._note_failure(error)
                reached = False
            if reached:
                return timed.copy.weights
            self.rounds += 1
            self._current = None
        return None

    def pending(self, waiting: tuple[WeightSnapshot, ...]) -> tuple[WeightSnapshot, ...]:
        """The copies that have no result yet: the one that plays now, and those that wait."""
        return waiting if self._current is None else (self._current.copy, *waiting)

    def go_on_from(
        self,
        evaluations: tuple[EvaluationResult, ...],
        rounds: int,
        best: EvaluationResult | None,
        best_weights: NDArray[np.float32] | None,
    ) -> None:
        """Take over the evaluations of an earlier run, of which `rounds` copies were evaluated; before `run`."""
        self.evaluations, self.rounds = evaluations, rounds
        self.best, self.best_weights = best, best_weights

    def training_ended(self, limit_seconds: float | None = None) -> None:
        """The learner has used up its steps: stop the clock, evaluate what waits, then let `run` return.

        Args:
            limit_seconds: how long each evaluation may take from now on, the present one included; None is no limit.
        """
        self._training_ended = True
        self.holds_training = True
        self._clock.pause()
        self._limit_seconds = limit_seconds
        if self._playing is not None and limit_seconds is not None:
            self._playing.reschedule(asyncio.get_running_loop().time() + limit_seconds)
        self._copies.end()

    async def evaluate_now(self, episodes: int) -> EvaluationResult:
        """One evaluation of the present weights, recorded like any other."""
        timed = TimedCopy(await copy_of(self._trainee), self._clock.train_seconds)
        result = await self._play(timed, episodes, (FINAL,))
        await self._record(result, timed.copy.weights)
        return result

    async def _evaluate(self, timed: TimedCopy) -> bool:
        """Evaluate one copy and record it; whether it has reached the target."""
        result = await self._play_within_limit(timed, self._plan.episodes, (REGULAR, self.rounds))
        reached = False
        if self._reaches_target(result):
            result = await self._confirm(timed)
            reached = self._reaches_target(result)
            if not reached:
                self._let_train()
        self._failures = 0
        await self._record(result, timed.copy.weights)
        return reached

    def _note_failure(self, error: Exception) -> None:
        """Tell of the first; raise the last of too many where nothing else can end the run."""
        self._failures += 1
        if self._plan.only_stop and self._failures >= FAILURES_IN_A_ROW:
            raise error
        self._warn(describe_error(error))

    def _warn(self, why: str) -> None:
        if self._warned:
            return
        self._warned = True
        text = (
            "[ASYNC041] an evaluation failed, so that its weights have no result; training and later evaluations go "
            f"on: {why}"
        )
        warnings.warn(EvaluationIncomplete(text), stacklevel=2)

    def _reaches_target(self, result: EvaluationResult) -> bool:
        return self._plan.target_return is not None and result.return_mean >= self._plan.target_return

    async def _play_within_limit(
        self, timed: TimedCopy, episodes: int, key: tuple[int, ...]
    ) -> EvaluationResult:
        """`_play`, within the limit that training's end has set or sets meanwhile. Raises `TimeoutError` past it."""
        async with asyncio.timeout(self._limit_seconds) as self._playing:
            try:
                return await self._play(timed, episodes, key)
            except TimeoutError as error:  # of the evaluator's own: not the limit
                raise RuntimeError("the evaluator timed out") from error
            finally:
                self._playing = None

    async def _play(self, timed: TimedCopy, episodes: int, key: tuple[int, ...]) -> EvaluationResult:
        copy = timed.copy
        returns, lengths = await self._evaluator.evaluate(copy.weights, episodes, key)
        return EvaluationResult(
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            length_mean=float(lengths.mean()),
            episodes=int(returns.shape[0]),
            policy_version=copy.version,
            env_steps=copy.env_steps * self._plan.groups,
            train_seconds=timed.train_seconds,
            updates=copy.updates,
        )

    async def _confirm(self, timed: TimedCopy) -> EvaluationResult:
        """Fresh episodes of the same weights while training stands still; it stays so until `_let_train`."""
        self.holds_training = True
        if not self._training_ended:
            await self._trainee.hold()
            self._clock.pause()
        return await self._play_within_limit(timed, self._plan.target_episodes, (CONFIRMATION, self.rounds))

    def _let_train(self) -> None:
        if not self._training_ended and self.holds_training:
            self.holds_training = False
            self._clock.resume()
            self._trainee.resume()

    async def _record(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        self.evaluations += (result,)
        if self.best is None or result.return_mean > self.best.return_mean:
            self.best, self.best_weights = result, weights
            await self._on_best(result, weights)
        self._on_evaluation(result)
