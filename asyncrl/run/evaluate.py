"""Schedule of evaluations, and the rule by which an evaluation ends the run.

Regular evaluations run in parallel with training, on copies of the weights. By steps (`CopiesBySteps`) the learner's
thread makes the copies at fixed environment steps and every copy is evaluated, in order, so that neither the learning
curve nor the steps to the target depend on the speed of the machine. By seconds (`CopiesBySeconds`) the newest weights
are copied at intervals of training time.

A regular evaluation that reaches `target_return` over its few episodes is only a hint, because the best of many noisy
means is biased upwards. Training and its clock are then held, and the *same* weights play `target_eval_episodes` fresh
episodes. Only this confirmation decides, and only it is recorded. So `train_seconds` excludes every evaluation that
training waited for, and a run returns the first weights, in the order of training, that passed.

An evaluation that fails (the environment raises on a greedy path, the evaluator is killed too often) does not end the
run: one warning is given (ASYNC041), its copy has no result, and the next copy is evaluated as usual. The exception:
if `target_return` is the only rule that can end the run, the last of `FAILURES_IN_A_ROW` consecutive failures ends it,
with its weights saved, because evaluations are then not expected to succeed any more.

When training has used up its steps, the waiting copies are still evaluated, since one of them may reach the target.
Each then has a time limit, and the first to exceed it is the last.

The episodes are drawn from the kind and the number of the evaluation: evaluation k plays the same episodes in every
run of the same seed, however many confirmations came before it.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.config import TrainerConfig
from asyncrl.errors import EvaluationIncomplete
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.printable import describe_error
from asyncrl.run.evaluation_copies import CopiesBySeconds, CopiesBySteps, TimedCopy, copy_of
from asyncrl.show.metrics import EvaluationResult

REGULAR, CONFIRMATION, FINAL = range(3)
"""Kinds of evaluation; each draws its own episodes."""
MOST_EVALUATIONS = 10_000
"""Most results that a run holds in memory (0.4 kB each); beyond it every second one is dropped, the files keep all."""
FAILURES_IN_A_ROW = 5
"""Consecutive failed evaluations that end a run that only an evaluation can end."""


class EvaluationSchedule:
    """Evaluates copy after copy until the target is reached or training has ended; event-loop thread only.

    Args:
        config: the run's options: numbers of episodes, and the target.
        evaluator: plays the episodes.
        trainee: the learner, which is held during a confirmation.
        clock: the training clock; paused during a confirmation and from the end of training on.
        copies: source of the weights to evaluate.
        on_best: awaited with the result and weights of an evaluation better than all before it.
        on_evaluation: called with every recorded result, in order; of a hint and its confirmation only the latter.

    Attributes:
        evaluations: results so far, in order; beyond `MOST_EVALUATIONS` thinned, the last one is always among them.
        best: the best of them (the first of several), or None.
        best_weights: the weights of `best`, or None.
        holds_training: whether training is held for an evaluation, or has ended before the evaluations have.
        rounds: number of copies that were evaluated, including failed evaluations.
    """

    def __init__(
        self,
        config: TrainerConfig,
        evaluator: RemoteEvaluator,
        trainee: Learner,
        clock: TrainClock,
        copies: CopiesBySteps | CopiesBySeconds,
        on_best: Callable[[EvaluationResult, NDArray[np.float32]], Awaitable[None]],
        on_evaluation: Callable[[EvaluationResult], None] = lambda _: None,
    ) -> None:
        self._config = config
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
        """Last evaluation, None before the first."""
        return self.evaluations[-1] if self.evaluations else None

    async def run(self) -> NDArray[np.float32] | None:
        """Evaluate every copy; returns the weights that reached the target, or None when all were evaluated.

        Raises the error of the last of `FAILURES_IN_A_ROW` failed evaluations if no other rule can end the run.
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
        """Copies without a result: the one that is being evaluated, and those that wait."""
        return waiting if self._current is None else (self._current.copy, *waiting)

    def go_on_from(
        self,
        evaluations: tuple[EvaluationResult, ...],
        rounds: int,
        best: EvaluationResult | None,
        best_weights: NDArray[np.float32] | None,
    ) -> None:
        """Restore the evaluations of an earlier run, which evaluated `rounds` copies; before `run`."""
        self.evaluations, self.rounds = evaluations, rounds
        self.best, self.best_weights = best, best_weights

    def training_ended(self, limit_seconds: float | None = None) -> None:
        """Note that the learner has used up its steps: pause the clock; `run` returns after the waiting copies.

        Args:
            limit_seconds: time limit of each evaluation from now on, including the current one; None is no limit.
        """
        self._training_ended = True
        self.holds_training = True
        self._clock.pause()
        self._limit_seconds = limit_seconds
        if self._playing is not None and limit_seconds is not None:
            self._playing.reschedule(asyncio.get_running_loop().time() + limit_seconds)
        self._copies.end()

    async def evaluate_now(self, episodes: int) -> EvaluationResult:
        """Evaluate the current weights and record the result like any other."""
        copy = await copy_of(self._trainee)
        timed = TimedCopy(copy, self._clock.train_seconds, self._copies.other_steps(copy.env_steps))
        result = await self._play(timed, episodes, (FINAL,))
        await self._record(result, timed.copy.weights)
        return result

    async def _evaluate(self, timed: TimedCopy) -> bool:
        """Evaluate one copy and record it; returns whether it has reached the target."""
        result = await self._play_within_limit(timed, self._config.eval_episodes, (REGULAR, self.rounds))
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
        """Warn of the first failure; raise `error` after too many in a row if nothing else can end the run."""
        self._failures += 1
        if self._config.only_evaluation_stops and self._failures >= FAILURES_IN_A_ROW:
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
        return self._config.target_return is not None and result.return_mean >= self._config.target_return

    async def _play_within_limit(
        self, timed: TimedCopy, episodes: int, key: tuple[int, ...]
    ) -> EvaluationResult:
        """`_play`, within the time limit that `training_ended` has set or sets meanwhile. Raises `TimeoutError`."""
        async with asyncio.timeout(self._limit_seconds) as self._playing:
            try:
                return await self._play(timed, episodes, key)
            except TimeoutError as error:  # the evaluator's own, not the limit's
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
            env_steps=copy.env_steps + timed.other_steps,
            train_seconds=timed.train_seconds,
            updates=copy.updates,
        )

    async def _confirm(self, timed: TimedCopy) -> EvaluationResult:
        """Play fresh episodes with the same weights; training is held until `_let_train`."""
        self.holds_training = True
        if not self._training_ended:
            await self._trainee.hold()
            self._clock.pause()
        return await self._play_within_limit(
            timed, self._config.target_eval_episodes, (CONFIRMATION, self.rounds)
        )

    def _let_train(self) -> None:
        if not self._training_ended and self.holds_training:
            self.holds_training = False
            self._clock.resume()
            self._trainee.resume()

    async def _record(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        self.evaluations += (result,)
        if len(self.evaluations) > MOST_EVALUATIONS:
            self.evaluations = self.evaluations[::-2][::-1]  # the last one stays
        if self.best is None or result.return_mean > self.best.return_mean:
            self.best, self.best_weights = result, weights
            await self._on_best(result, weights)
        self._on_evaluation(result)
