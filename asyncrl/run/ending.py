"""The end of a run: the same steps in the same order, whether the run succeeded or failed.

    learner stopped ─ its last report ─ checkpoint ─ evaluation within limits ─ summary ─ last snapshot shown ─ close

The checkpoint comes before everything that can fail or take long, and the summary before page, terminal and metrics are
told, so that whoever hears of the end finds it. A step that fails gives a warning, or the run's error
if there is none yet; the next step follows. Every step has a time limit. A request to stop ends only the evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.errors import (
    AsyncRLError,
    EvaluationIncomplete,
    FilesNotWritten,
    StoppedWhileStarting,
    TrainingDiverged,
)
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import LearnerReport
from asyncrl.policies.portable_policy import BestPolicy, PortablePolicy
from asyncrl.printable import describe_error
from asyncrl.run.parts import RunParts
from asyncrl.run.reporting import Reporting
from asyncrl.run.saving import CheckpointSaver
from asyncrl.run.summary import summarize
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.storage.disk_space import reason_of
from asyncrl.storage.run_directory import DirectoryLost, RunDirectory

T = TypeVar("T")

STEP_SECONDS = 60.0
"""Time limit of the report and of the checkpoint; both take milliseconds unless a device or disk hangs."""
EVALUATION_SHARE = 0.5
"""Time limit of the final evaluation, as a share of the training time."""
EVALUATION_SECONDS = 60.0
"""Lower bound of that limit."""
TELL_SECONDS = 0.5
"""Interval at which the progress of the final evaluation is shown."""
GRACE_SECONDS = 5.0
"""Extra time for an evaluation to answer after its time limit, before its process is killed."""

COMPLETE = ("total_steps", "max_seconds", "target_return", "target_training_return")
"""Stop reasons that are options of the run; only a run that ended by one of them gets a final evaluation."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        policy: policy with the weights that reached the target, or else with the learner's last weights.
        best: policy of the best evaluation, or None without an evaluation.
        evaluation: evaluation of `policy`, or None if there was none.
        summary: content of `summary.json`.
        snapshot: the last snapshot.
        unsaved: reason why the last checkpoint could not be written, "" if it was or the run has no directory.
    """

    policy: PortablePolicy
    best: BestPolicy | None
    evaluation: EvaluationResult | None
    summary: dict[str, Any]
    snapshot: Snapshot
    unsaved: str = ""


@dataclass
class Ending:
    """Ends one run; event-loop thread only, before any part of the run is closed.

    Args:
        directory: where the summary is written.
        clock: the training clock, paused.
        reporting: makes and shows the last snapshot, and shows how far the final evaluation is.
        stop_requested: set when the run is asked to stop.
        eval_episodes: number of episodes of the final evaluation.
        parts: parts of the run, None if it failed before they were built.
        weights: weights that reached the target, or None for the learner's current ones.
        evaluates: whether there is a final evaluation; only rank 0 of several groups makes one.
    """

    directory: RunDirectory
    clock: TrainClock
    reporting: Reporting
    stop_requested: asyncio.Event
    eval_episodes: int
    parts: RunParts | None
    weights: NDArray[np.float32] | None = None
    evaluates: bool = True

    async def end(
        self, reason: str, error: BaseException | None
    ) -> tuple[Outcome | None, BaseException | None]:
        """Run every step of the end.

        Args:
            reason: why training ended.
            error: the error that ended it, or None.

        Returns:
            The result of the run, None without usable weights; and `error`, or the first error of these steps.
        """
        reached, parts = self.weights is not None, self.parts
        report, weights, error = await self._look_at_learner(error)
        ended_early = isinstance(error, (asyncio.CancelledError, StoppedWhileStarting))
        reason = reason if error is None or ended_early else "failed"
        learned = parts is not None and parts.learner.updates > 0
        if parts is not None and weights is not None and (learned or error is None):
            try:
                await save_before_evaluating(parts.saver, weights)
            except TrainingDiverged as diverged:
                # Weights that are found to be NaN only now fail the run; it still writes its summary.
                weights, error, reason = None, error or diverged, "failed"
        evaluation, failure = (parts.schedule.last if reached and parts is not None else None), None
        evaluates = reason in COMPLETE and weights is not None and not reached and self.evaluates
        if parts is not None and error is None and evaluates:
            evaluation, failure = await self._evaluate(parts)
            if evaluation is not None and weights is not None:
                await save_before_evaluating(parts.saver, weights)  # again, with this evaluation
        text = None if error is None else describe_error(error)
        snapshot = self.reporting.last_snapshot(report, reason, text)
        summary = summarize(snapshot, report, evaluation, self.reporting.actor_wait_seconds())
        cut = parts.evaluator.cut_episodes if parts is not None and evaluation is not None else 0
        summary["eval"] |= {"cut_episodes": cut, "error": failure}
        try:
            self.directory.write_json("summary.json", summary)
        except DirectoryLost:
            pass  # it was told
        except Exception as failed:
            _warn_of_file("summary.json", failed)
        with contextlib.suppress(Exception):  # the run has its result, whether or not it is shown
            self.reporting.show(snapshot)
        outcome = None
        if weights is not None and parts is not None:
            outcome = _outcome(parts, weights, evaluation, summary, snapshot)
        return outcome, error

    async def _look_at_learner(
        self, error: BaseException | None
    ) -> tuple[LearnerReport | None, NDArray[np.float32] | None, BaseException | None]:
        """Return the last report, the weights to keep (None if the learner diverged) and the run's error."""
        report, weights = self.reporting.last_report, self.weights
        if self.parts is None:
            return report, weights, error
        learner = self.parts.learner
        try:
            report = await _limited(learner.report())
        except Exception as raised:
            # A learner whose error ended the run may fail again here; the first error is kept.
            error = error or raised
            if isinstance(raised, AsyncRLError):  # it does not answer, or has diverged
                return report, weights, error
        try:
            if weights is None and not isinstance(error, TrainingDiverged):
                weights, _ = await _limited(learner.current_weights())
        except Exception as raised:
            error = error or raised
        return report, weights, error

    async def _evaluate(self, parts: RunParts) -> tuple[EvaluationResult | None, str | None]:
        """Make the final evaluation; returns its result or None, and the reason for None."""
        schedule, evaluator = parts.schedule, parts.evaluator
        seconds, before = evaluation_seconds(self.clock), schedule.last
        evaluator.max_seconds = seconds
        playing = asyncio.create_task(schedule.evaluate_now(self.eval_episodes), name="final-evaluation")
        stopping = asyncio.create_task(self.stop_requested.wait(), name="stop-requested")
        try:
            await self._wait_and_tell(evaluator, (playing, stopping), seconds + GRACE_SECONDS)
            if playing.done():
                return playing.result(), None
            failure = "interrupted" if stopping.done() else f"it took longer than {seconds:.0f} s"
        except Exception as error:
            failure = describe_error(error)
        finally:
            stopping.cancel()
            playing.cancel()
            await asyncio.wait({playing, stopping}, timeout=STEP_SECONDS)
        if schedule.last is not before:  # it was played, and only its file hangs
            return schedule.last, None
        if failure != "interrupted":
            text = f"[ASYNC041] the final evaluation failed, the run and its weights are kept without it: {failure}"
            warnings.warn(EvaluationIncomplete(text), stacklevel=2)
        return None, failure

    async def _wait_and_tell(
        self, evaluator: RemoteEvaluator, tasks: tuple[asyncio.Task[Any], ...], seconds: float
    ) -> None:
        """Wait for the first of `tasks`, at most `seconds`; show the finished episodes every `TELL_SECONDS`."""
        now = asyncio.get_running_loop().time
        end = now() + seconds
        finished: set[asyncio.Task[Any]] = set()
        while not finished and (left := end - now()) > 0:
            done = (evaluator.finished_episodes, self.eval_episodes)
            self.reporting.tell("evaluating", final_evaluation=done)
            wait = min(left, TELL_SECONDS)
            finished, _ = await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)


def _outcome(
    parts: RunParts,
    weights: NDArray[np.float32],
    evaluation: EvaluationResult | None,
    summary: dict[str, Any],
    snapshot: Snapshot,
) -> Outcome:
    make_policy, schedule, best = parts.saver.origin.policy, parts.schedule, None
    if schedule.best is not None and schedule.best_weights is not None:
        best = BestPolicy(make_policy(schedule.best_weights, schedule.best), schedule.best)
    unsaved = parts.saver.failure or ("the disk did not answer in time" if parts.saver.hangs else "")
    return Outcome(make_policy(weights, evaluation or snapshot), best, evaluation, summary, snapshot, unsaved)


def evaluation_seconds(clock: TrainClock) -> float:
    """Time limit of an evaluation after the end of training."""
    return max(EVALUATION_SECONDS, EVALUATION_SHARE * clock.train_seconds)


async def save_before_evaluating(saver: CheckpointSaver, weights: NDArray[np.float32] | None = None) -> None:
    """Write a checkpoint with `weights`, or the learner's current ones, before anything that may fail or take long.

    Raises `TrainingDiverged` if they are NaN or infinite. Any other error, or no answer within `STEP_SECONDS`, gives a
    warning and sets `saver.hangs`; later calls then return at once, so that a disk that hangs is waited for once.
    """
    if saver.hangs:
        return
    try:
        await _limited(saver.save_latest(weights))
    except TrainingDiverged:
        raise
    except Exception as error:
        saver.hangs = True
        _warn_of_file("the last checkpoint", error)


async def _limited(answer: Awaitable[T]) -> T:
    """Await `answer`. Raises `AsyncRLError` after `STEP_SECONDS`."""
    try:
        async with asyncio.timeout(STEP_SECONDS):
            return await answer
    except TimeoutError as error:
        raise AsyncRLError(
            f"The end of the run waited {STEP_SECONDS:.0f} s for the learner or the disk, in vain.",
            fix="look for a device or a network file system that hangs",
        ) from error


def _warn_of_file(what: str, error: Exception) -> None:
    text = (
        f"[ASYNC040] {what} cannot be written: {reason_of(error)}; the result holds what it would have held"
    )
    warnings.warn(FilesNotWritten(text), stacklevel=3)
