"""When to evaluate, and when an evaluation ends the run.

Regular evaluations run beside training, on copies of its weights. By steps (`CopiesBySteps`) the learner's thread makes
the copies at fixed environment steps and they are evaluated in that order, none left out, so that neither the learning
curve nor the steps to the target depend on the speed of the machine. By seconds (`CopiesBySeconds`) the newest weights
are copied whenever an interval has passed.

One that reaches `target_return` over its few episodes is only a hint (the best of many noisy means is biased upwards):
training is then held, its clock with it, and the *same* weights play `target_eval_episodes` fresh episodes. Only their
mean decides, and only it is recorded. So `train_seconds` holds no evaluation that training waited for, and the weights
a run returns are the first, in the order of training, that passed.

Episodes are drawn by the kind and the number of the evaluation: evaluation k of a run plays the same episodes in every
run of its seed, however many confirmations came before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.learning.clock import TrainClock
from asyncrl.learning.weight_snapshots import WeightSnapshot, WeightSnapshots
from asyncrl.show.metrics import EvaluationResult

REGULAR, CONFIRMATION, FINAL = range(3)
"""Kinds of evaluation; each draws its own episodes."""


class Evaluator(Protocol):
    """Plays greedy episodes with given weights somewhere off the loop's thread."""

    async def evaluate(
        self, weights: NDArray[np.float32], episodes: int, key: tuple[int, ...] = ()
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths of exactly `episodes` fresh episodes, the same ones for the same key."""
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
    """How long to evaluate, and what ends the run.

    Attributes:
        episodes: of a regular evaluation.
        target_return: mean return that ends the run, or None.
        target_episodes: episodes that confirm it.
    """

    episodes: int
    target_return: float | None
    target_episodes: int


@dataclass(frozen=True)
class TimedCopy:
    """Weights to evaluate, and the training clock when they were copied."""

    copy: WeightSnapshot
    train_seconds: float


class Copies(Protocol):
    """Where the schedule finds the next weights to evaluate; event-loop thread only."""

    async def next(self) -> TimedCopy | None:
        """The next copy, or None where training has ended and all copies were taken."""
        ...

    def end(self) -> None:
        """Training has ended: no copy is added any more."""
        ...


class CopiesBySteps:
    """Copies that the learner makes at fixed environment steps, in their order.

    Args:
        snapshots: where the learner puts them; this object sets `snapshots.arrived`.
        clock: the training clock, read when a copy arrives.
        taken: called when a copy was taken out, because the learner may be waiting for room.
    """

    def __init__(self, snapshots: WeightSnapshots, clock: TrainClock, taken: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._snapshots = snapshots
        self._clock = clock
        self._taken = taken
        self._arrivals: deque[float] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        snapshots.arrived = self._arrived

    async def next(self) -> TimedCopy | None:
        """The oldest copy that was not evaluated yet."""
        while not self._arrivals:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        copy = self._snapshots.take()
        assert copy is not None, "every arrival is of one copy"
        self._taken()
        return TimedCopy(copy, self._arrivals.popleft())

    def end(self) -> None:
        """Training has ended; what waits is still to be evaluated."""
        self._ended = True
        self._changed.set()

    def _arrived(self) -> None:
        """Called on the learner's thread."""
        self._loop.call_soon_threadsafe(self._note_arrival)

    def _note_arrival(self) -> None:
        self._arrivals.append(self._clock.train_seconds)
        self._changed.set()


class CopiesBySeconds:
    """The newest weights, whenever an interval of training time has passed and they have changed.

    Args:
        interval_seconds: least training time between two copies.
        trainee: whose weights.
        clock: the training clock.
    """

    def __init__(self, interval_seconds: float, trainee: Trainee, clock: TrainClock) -> None:
        self._interval = interval_seconds
        self._trainee = trainee
        self._clock = clock
        self._updates_then = 0
        self._ended = asyncio.Event()

    async def next(self) -> TimedCopy | None:
        """The weights of now, once they are due."""
        due = self._clock.train_seconds + self._interval
        while not self._ended.is_set() and (
            self._trainee.updates <= self._updates_then or self._clock.train_seconds < due
        ):
            await self._sleep(min(0.02, max(0.001, due - self._clock.train_seconds)))
        if self._ended.is_set():
            return None
        copy = await copy_of(self._trainee)
        self._updates_then = copy.updates
        return TimedCopy(copy, self._clock.train_seconds)

    def end(self) -> None:
        """Training has ended; nothing more is evaluated."""
        self._ended.set()

    async def _sleep(self, seconds: float) -> None:
        # Not `wait_for`, which drops a cancellation that comes together with the event before Python 3.12.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()


async def copy_of(trainee: Trainee) -> WeightSnapshot:
    """The present weights, with the counters of the moment after they were copied."""
    weights, version = await trainee.current_weights()
    return WeightSnapshot(weights, version, trainee.updates, trainee.inserted_steps)


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
        holds_training: whether training stands still for an evaluation, or has ended and evaluation goes on.
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
        self._rounds = 0
        self._training_ended = False
        self.evaluations: tuple[EvaluationResult, ...] = ()
        self.best: EvaluationResult | None = None
        self.holds_training = False

    @property
    def last(self) -> EvaluationResult | None:
        """The last evaluation, None before the first."""
        return self.evaluations[-1] if self.evaluations else None

    async def run(self) -> NDArray[np.float32] | None:
        """Evaluate every copy; return the weights that reached the target, or None when all were evaluated."""
        while (timed := await self._copies.next()) is not None:
            result = await self._play(timed, self._plan.episodes, (REGULAR, self._rounds))
            reached = False
            if self._reaches_target(result):
                result = await self._confirm(timed)
                reached = self._reaches_target(result)
                if not reached:
                    self._let_train()
            await self._record(result, timed.copy.weights)
            if reached:
                return timed.copy.weights
            self._rounds += 1
        return None

    def training_ended(self) -> None:
        """The learner has used up its steps: stop the clock, evaluate what waits, then let `run` return."""
        self._training_ended = True
        self.holds_training = True
        self._clock.pause()
        self._copies.end()

    async def evaluate_now(self, episodes: int) -> EvaluationResult:
        """One evaluation of the present weights, recorded like any other."""
        timed = TimedCopy(await copy_of(self._trainee), self._clock.train_seconds)
        result = await self._play(timed, episodes, (FINAL,))
        await self._record(result, timed.copy.weights)
        return result

    def _reaches_target(self, result: EvaluationResult) -> bool:
        return self._plan.target_return is not None and result.return_mean >= self._plan.target_return

    async def _play(self, timed: TimedCopy, episodes: int, key: tuple[int, ...]) -> EvaluationResult:
        copy = timed.copy
        returns, lengths = await self._evaluator.evaluate(copy.weights, episodes, key)
        return EvaluationResult(
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            length_mean=float(lengths.mean()),
            episodes=int(returns.shape[0]),
            policy_version=copy.version,
            env_steps=copy.env_steps,
            train_seconds=timed.train_seconds,
            updates=copy.updates,
        )

    async def _confirm(self, timed: TimedCopy) -> EvaluationResult:
        """Fresh episodes of the same weights while training stands still; it stays so until `_let_train`."""
        self.holds_training = True
        if not self._training_ended:
            await self._trainee.hold()
            self._clock.pause()
        return await self._play(timed, self._plan.target_episodes, (CONFIRMATION, self._rounds))

    def _let_train(self) -> None:
        if not self._training_ended:
            self.holds_training = False
            self._clock.resume()
            self._trainee.resume()

    async def _record(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        self.evaluations += (result,)
        if self.best is None or result.return_mean > self.best.return_mean:
            self.best = result
            await self._on_best(result, weights)
        self._on_evaluation(result)
