"""Schedule of evaluations, the rule by which an evaluation ends the run, and films of evaluations.

Regular evaluations run in parallel with training, on copies of the weights. The learner's thread makes the copies at
fixed environment steps and every copy is evaluated, in order, so that neither the learning curve nor the steps to the
target depend on the speed of the machine.

A regular evaluation that reaches `target_return` over its few episodes is only a hint, because the best of many noisy
means is biased upwards. Training and its clock are then held, and the *same* weights play `target_eval_episodes` fresh
episodes. Only this confirmation decides, and only it is recorded. So `train_seconds` excludes every evaluation that
training waited for, and a run returns the first weights, in the order of training, that passed.

An evaluation that fails (the environment raises on a greedy path, the evaluator is killed too often) does not end the
run: one warning is given (ASYNC041), its copy has no result, and the next copy is evaluated as usual. The exception:
if `target_return` is the only rule that can end the run, the last of `FAILURES_IN_A_ROW` consecutive failures ends it,
with its weights saved, because evaluations are then not expected to succeed any more.

When training has used up its steps, the waiting copies are still evaluated, since one of them may reach the target.
Each then has a time limit, and the first to exceed it is the last. The final evaluation, of the weights that the run
returns, has the same limit.

The episodes are drawn from the kind and the number of the evaluation: evaluation k plays the same episodes in every
run of the same seed, however many confirmations came before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.episodes import figures_of
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import film_episode
from asyncrl.config import TrainerConfig
from asyncrl.envs.video import require_video
from asyncrl.errors import ConfigurationError, EvaluationIncomplete, describe_error, warn
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.run import slow_stop
from asyncrl.run.env_kwargs import EnvKwargsChanges
from asyncrl.run.grouped import Alone, Group
from asyncrl.show.evaluation_result import EvaluationFilm, EvaluationResult
from asyncrl.storage.checkpoint_meta import PolicyWeights
from asyncrl.storage.run_directory import RunDirectory

REGULAR, CONFIRMATION, FINAL = range(3)
"""Kinds of evaluation; each draws its own episodes."""
MOST_EVALUATIONS = 10_000
"""Most results that a run holds in memory (0.4 kB each); beyond it every second one is dropped, the files keep all."""
FAILURES_IN_A_ROW = 5
"""Consecutive failed evaluations that end a run that only an evaluation can end."""
EVALUATION_SHARE = 0.5
"""Time limit of an evaluation after the end of training, as a share of the training time."""
EVALUATION_SECONDS = 60.0
"""Lower bound of that limit."""
GRACE_SECONDS = 5.0
"""Extra time for an evaluation to answer after its time limit, before its process is killed."""
PROGRESS_SECONDS = 0.5
"""Interval at which the progress of the final evaluation is shown."""
FILM_FILE = "evaluation.mp4"
MOST_FILM_STEPS = 1_000
"""Steps after which a film ends; at 320 pixels it has a few megabytes at most."""
FILM_SECONDS = 120.0
"""Time limit of a film."""
LAST_FILM_SECONDS = 60.0
"""Time that the end of a run waits for the film of its last evaluation."""


@dataclass(frozen=True)
class TimedCopy:
    """Weights to evaluate, and the state of training when they were copied.

    Attributes:
        copy: the weights, with this group's steps and updates.
        train_seconds: training time.
        other_steps: environment steps of the run's other groups.
    """

    copy: WeightSnapshot
    train_seconds: float
    other_steps: int


class EvaluatedRun(Protocol):
    """What evaluations need of their run: its parts, and what it makes of every recorded result."""

    config: TrainerConfig
    clock: TrainClock
    env_kwargs: EnvKwargsChanges
    evaluator: RemoteEvaluator
    group: Group | Alone
    learner: Learner

    async def evaluated(
        self, result: EvaluationResult, weights: NDArray[np.float32], key: tuple[int, ...], *, best: bool
    ) -> None:
        """Take a recorded evaluation with the key of its episodes; `best` if it is better than all before it."""


class EvaluationSchedule:
    """Evaluates copy after copy until the target is reached or training has ended; event-loop thread only.

    The learner copies its weights, and is held during a confirmation; so is the training clock, which also stands from
    the end of training on. Of a hint and its confirmation only the latter is recorded.

    Args:
        run: the run, whose parts exist.

    Attributes:
        evaluations: results so far, in order; beyond `MOST_EVALUATIONS` thinned, the last one is always among them.
        best: the best of them (the first of several), or None.
        best_weights: the weights of `best`, with the critics and the reward scale that the learner had when it was
            evaluated, or None.
        holds_training: whether training is held for an evaluation, or has ended before the evaluations have.
        rounds: number of copies that were evaluated, including failed evaluations.
        has_final: whether the final evaluation was made.
    """

    def __init__(self, run: EvaluatedRun) -> None:
        self._run, self._config, self._clock = run, run.config, run.clock
        self._evaluator, self._learner = run.evaluator, run.learner
        self._arrived: deque[TimedCopy] = deque()
        """Copies that wait."""
        self._changed = asyncio.Event()
        self.rounds, self.has_final = 0, False
        self._current: TimedCopy | None = None
        self._failures = 0
        self._warned = False
        self._training_ended = False
        self._limit_seconds: float | None = None
        self._playing: asyncio.Timeout | None = None
        self.evaluations: tuple[EvaluationResult, ...] = ()
        self.best: EvaluationResult | None = None
        self.best_weights: PolicyWeights | None = None
        self.holds_training = False

    @property
    def last(self) -> EvaluationResult | None:
        """Last evaluation, None before the first."""
        return self.evaluations[-1] if self.evaluations else None

    def copy_arrived(self) -> None:
        """Note the time of a copy that the learner has added to its queue."""
        self._arrived.append(self._timed(self._learner.snapshots.waiting()[len(self._arrived)]))
        self._changed.set()

    def _timed(self, copy: WeightSnapshot) -> TimedCopy:
        return TimedCopy(copy, self._clock.train_seconds, self._run.group.other_steps(copy.env_steps))

    async def _next(self) -> TimedCopy | None:
        """Wait for the oldest copy that was not evaluated yet; None once training has ended and all were taken."""
        while not self._arrived:
            if self._training_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._learner.snapshots.take()
        self._learner.data_arrived()  # it may wait for room in the queue
        return self._arrived.popleft()

    async def run(self) -> NDArray[np.float32] | None:
        """Evaluate every copy; returns the weights that reached the target, or None when all were evaluated.

        Raises the error of the last of `FAILURES_IN_A_ROW` failed evaluations if no other rule can end the run.
        """
        while (timed := await self._next()) is not None:
            self._current = timed
            try:
                reached = await self._evaluate(timed)
            except TimeoutError:
                self._warn(f"one took longer than {self._limit_seconds:.0f} s after the end of training")
                return None
            except Exception as error:
                self._resume_training()
                self._note_failure(error)
                reached = False
            self.rounds += 1
            self._current = None
            if reached:
                return timed.copy.weights
            await self._run.env_kwargs.settle()  # what the callbacks of the evaluation have set
            self._learner.snapshots.evaluated()
            if self._learner.snapshots.in_turn:
                self._learner.data_arrived()  # it may wait for this before the next copy
        return None

    def pending(self) -> tuple[TimedCopy, ...]:
        """Copies that were not evaluated to the end: the present one, and those that wait."""
        arrived = tuple(self._arrived)
        waiting = map(self._timed, self._learner.snapshots.waiting()[len(arrived) :])
        return (*((self._current,) if self._current is not None else ()), *arrived, *waiting)

    def go_on_from(
        self,
        evaluations: tuple[EvaluationResult, ...],
        rounds: int,
        best: EvaluationResult | None,
        best_weights: PolicyWeights | None,
    ) -> None:
        """Restore the evaluations of an earlier run, which evaluated `rounds` copies; before `run`."""
        self.evaluations, self.rounds = evaluations, rounds
        self.best, self.best_weights = best, best_weights

    def training_ended(self, *, limited: bool = False) -> None:
        """Note that the learner has used up its steps: pause the clock; `run` returns after the waiting copies.

        Args:
            limited: whether each evaluation from now on, including the current one, has a time limit.
        """
        self._training_ended = True
        self.holds_training = True
        self._clock.pause()
        self._limit_seconds = self._limit() if limited else None
        if self._playing is not None and self._limit_seconds is not None:
            self._playing.reschedule(asyncio.get_running_loop().time() + self._limit_seconds)
        self._changed.set()

    def _limit(self) -> float:
        """Time limit of an evaluation after the end of training."""
        return max(EVALUATION_SECONDS, EVALUATION_SHARE * self._clock.train_seconds)

    async def evaluate_finally(
        self, stop_requested: asyncio.Event, on_progress: Callable[[tuple[int, int]], None]
    ) -> tuple[EvaluationResult | None, str | None]:
        """Make the final evaluation, of the current weights.

        Args:
            stop_requested: ends the evaluation when it is set.
            on_progress: called with the numbers of finished and of all episodes, every `PROGRESS_SECONDS`.

        Returns:
            The result or None, and the reason for None.
        """
        seconds, before, episodes = self._limit(), self.last, self._config.final_episodes
        self._evaluator.max_seconds = seconds
        playing = asyncio.create_task(self.evaluate_now(episodes), name="final-evaluation")
        stopping = asyncio.create_task(stop_requested.wait(), name="stop-requested")
        try:
            await self._wait_and_report((playing, stopping), seconds + GRACE_SECONDS, episodes, on_progress)
            if playing.done():
                return playing.result(), None
            failure = "interrupted" if stopping.done() else f"it took longer than {seconds:.0f} s"
        except Exception as error:
            failure = describe_error(error)
        finally:
            stopping.cancel()
            playing.cancel()
            await asyncio.wait({playing, stopping}, timeout=slow_stop.STEP_SECONDS)
        if self.last is not before:  # it was played, and only its file hangs
            return self.last, None
        if failure != "interrupted":
            text = f"[ASYNC041] the final evaluation failed, the run and its weights are kept without it: {failure}"
            warn(EvaluationIncomplete(text))
        return None, failure

    async def _wait_and_report(
        self,
        tasks: tuple[asyncio.Task[Any], ...],
        seconds: float,
        episodes: int,
        on_progress: Callable[[tuple[int, int]], None],
    ) -> None:
        """Wait for the first of `tasks`, at most `seconds`."""
        now, finished = asyncio.get_running_loop().time, set[asyncio.Task[Any]]()
        end = now() + seconds
        while not finished and (left := end - now()) > 0:
            on_progress((self._evaluator.finished_episodes, episodes * len(self._evaluator.levels)))
            wait = min(left, PROGRESS_SECONDS)
            finished, _ = await asyncio.wait(tasks, timeout=wait, return_when=asyncio.FIRST_COMPLETED)

    async def evaluate_now(self, episodes: int) -> EvaluationResult:
        """Evaluate the current weights and record the result like any other."""
        weights, version = await self._learner.current_weights()
        copy = WeightSnapshot(weights, version, self._learner.updates, self._learner.inserted_steps)
        result = await self._play(self._timed(copy), episodes, (FINAL,))
        self.has_final = True
        await self._record(result, weights, (FINAL,))
        return result

    async def _evaluate(self, timed: TimedCopy) -> bool:
        """Evaluate one copy and record it; returns whether it has reached the target."""
        key = REGULAR, self.rounds
        result = await self._play_within_limit(timed, self._config.eval_episodes, key)
        reached = False
        if self._reaches_target(result):
            key = CONFIRMATION, self.rounds
            result = await self._confirm(timed)
            reached = self._reaches_target(result)
            if not reached:
                self._resume_training()
        self._failures = 0
        await self._record(result, timed.copy.weights, key)
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
        warn(EvaluationIncomplete(text))

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
        evaluator = self._evaluator
        played = await evaluator.evaluate(copy.weights, episodes, key)
        return EvaluationResult(
            **figures_of(played, evaluator.agents, evaluator.policies),
            episodes=len(played[0]),
            policy_version=copy.version,
            env_steps=copy.env_steps + timed.other_steps,
            train_seconds=timed.train_seconds,
            updates=copy.updates,
            success_rate=evaluator.success_rate,
            level_returns=evaluator.level_returns,
        )

    async def _confirm(self, timed: TimedCopy) -> EvaluationResult:
        """Play fresh episodes with the same weights; training is held until `_resume_training`."""
        self.holds_training = True
        if not self._training_ended:
            await self._learner.hold()
            self._clock.pause()
        key = CONFIRMATION, self.rounds
        return await self._play_within_limit(timed, self._config.confirming_episodes, key)

    def _resume_training(self) -> None:
        if not self._training_ended and self.holds_training:
            self.holds_training = False
            self._clock.resume()
            self._learner.resume()

    async def _record(
        self, result: EvaluationResult, weights: NDArray[np.float32], key: tuple[int, ...]
    ) -> None:
        self.evaluations += (result,)
        if len(self.evaluations) > MOST_EVALUATIONS:
            self.evaluations = self.evaluations[::-2][::-1]  # the last one stays
        before = self.best
        # The best of many means over few episodes is biased upwards; one over more, of the same weights, replaces it.
        corrects = (
            before is not None
            and self.best_weights is not None
            and result.episodes > before.episodes
            and np.array_equal(weights, self.best_weights.acting)
        )
        best = before is None or corrects or result.return_mean > before.return_mean
        if best:
            # Before both are set: the end of the run may cancel it.
            critics = await self._learner.critics()
            self.best = result
            self.best_weights = PolicyWeights(weights, critics, self._learner.reward_scale)
        await self._run.evaluated(result, weights, key, best=best)


class EvaluationFilms:
    """Films the first episode of the newest evaluation, one film at a time; event-loop thread only.

    A film is made in a process of its own and of lower priority, after its evaluation was recorded. Training and
    evaluations never wait for it. Evaluations that end meanwhile wait as one: the newest of them is filmed next. A film
    that fails or takes too long is given up with one warning (ASYNC041); where the environment cannot be rendered, no
    further one is tried.

    Args:
        server: fork server, for the process of a film.
        evaluator: knows environment, policy and seeds of the evaluations.
        directory: the run's directory; without one the film is in a temporary folder, until `close`.
        on_film: called when there is a new film.

    Attributes:
        newest: the newest film, None before the first.

    Raises:
        ConfigurationError: imageio-ffmpeg is not installed (ASYNC017).
    """

    def __init__(
        self,
        server: ForkServer,
        evaluator: RemoteEvaluator,
        directory: RunDirectory,
        on_film: Callable[[], None],
    ) -> None:
        self.newest: EvaluationFilm | None = None
        self._server, self._evaluator, self._directory, self._on_film = server, evaluator, directory, on_film
        require_video((directory.path or Path(tempfile.gettempdir())) / FILM_FILE)
        self._temporary = Path(tempfile.mkdtemp(prefix="asyncrl-film-")) if directory.path is None else None
        self._waiting: tuple[EvaluationResult, NDArray[np.float32], tuple[int, ...]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._warned = self._given_up = False

    @property
    def path(self) -> Path:
        """File of the newest film."""
        folder = self._temporary or self._directory.path
        assert folder is not None
        return folder / FILM_FILE

    def evaluated(self, result: EvaluationResult, weights: NDArray[np.float32], key: tuple[int, ...]) -> None:
        """Film the first episode of this evaluation, once the present film is finished; never blocks."""
        if self._given_up:
            return
        self._waiting = result, weights, key
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._film_waiting(), name="film")

    async def finish(self, interrupted: asyncio.Event) -> None:
        """Wait for the film of the last evaluation, for a limited time and until the run is `interrupted`."""
        if self._task is None:
            return
        either = {self._task, waiting := asyncio.create_task(interrupted.wait(), name="interrupted")}
        await asyncio.wait(either, timeout=LAST_FILM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def close(self) -> None:
        """End the process of a film, and remove what is not finished; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        elif (folder := self._directory.current) is not None:
            for unfinished in folder.glob(f".{self.path.stem}.*.tmp{self.path.suffix}"):
                with contextlib.suppress(OSError):
                    unfinished.unlink()

    async def _film_waiting(self) -> None:
        while self._waiting is not None:
            (result, weights, key), self._waiting = self._waiting, None
            if self._temporary is None and self._directory.current is None:
                return  # a warning was given
            plan = self._evaluator.film_of(weights, key, self.path, MOST_FILM_STEPS)
            try:
                frame = await film_episode(self._server, plan, FILM_SECONDS)
            except Exception as error:
                self._warn(error)
                continue
            self.newest = EvaluationFilm(
                result.env_steps, **{name: frame[name] for name in ("return_sum", "length", "cut")}
            )
            self._on_film()

    def _warn(self, error: Exception) -> None:
        if isinstance(error, ConfigurationError):
            self._given_up, self._waiting = True, None
        if not self._warned:
            self._warned = True
            text = f"[ASYNC041] an evaluation has no film; training and evaluations go on: {describe_error(error)}"
            warn(EvaluationIncomplete(text))
