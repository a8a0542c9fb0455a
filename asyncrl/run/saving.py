"""Checkpoints of a run: at intervals, at the end, and of the best weights.

Writing may fail because the disk is full, or the directory is gone or read-only. Training then continues, one warning
(ASYNC040) is given until a save succeeds again, existing checkpoints stay intact, and the next save tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.config import TrainerConfig
from asyncrl.errors import FilesNotWritten, ResourceError, TrainingDiverged
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.policies.portable_policy import PolicyOrigin
from asyncrl.run.run_state import RunState
from asyncrl.run.slow_stop import within_limit
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.checkpoint import CheckpointMeta
from asyncrl.storage.disk_space import reason_of, warn_of_little_space
from asyncrl.storage.run_directory import DirectoryLost, RunDirectory

BEST_SECONDS = 60.0
"""Time that an evaluation waits until the best weights are written; a disk that hangs would end no run."""


class CheckpointSaver:
    """Writes the checkpoints of one run, one at a time, in a worker thread; event-loop thread only.

    Args:
        config: the run's options.
        directory: the run directory; without a path nothing is saved.
        origin: algorithm, environment and metadata of the run.
        learner: the learner to save.
        clock: the training clock.
        state: takes the state of the run.
        on_saved: called with the path of every checkpoint that was written.

    Attributes:
        failure: why the last save failed, "" if it succeeded.
        hangs: whether a save at the end failed or did not answer in time; no further save is tried then.
    """

    def __init__(
        self,
        config: TrainerConfig,
        directory: RunDirectory,
        origin: PolicyOrigin,
        learner: Learner,
        clock: TrainClock,
        state: RunState,
        on_saved: Callable[[str], None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._meta_at_start = origin.meta
        self._learner = learner
        self._clock = clock
        self._state = state
        self._on_saved = on_saved
        self._turn = asyncio.Lock()
        self._unsaved_best: tuple[dict[str, Any], CheckpointMeta] | None = None
        self._written: tuple[str, tuple[object, ...]] = ("", ())
        self.failure = ""
        self.hangs = False

    async def look_at_disk(self, rows_bytes: int) -> None:
        """Warn if there is little space for the checkpoints; `rows_bytes` are those of the rows of all rings."""
        if self._directory.path is None:
            return
        core = (await self._learner.state_dict())["core"]
        rows_bytes *= self._state.rows
        warn_of_little_space(
            self._directory.path,
            self._config.checkpoints_kept,
            core,
            self._learner.core.weight_count,
            rows_bytes,
        )

    async def save_latest(self, weights: NDArray[np.float32] | None = None) -> str:
        """Save the learner with these acting weights, or its current ones; returns the path, "" if none was written.

        A state that is already on disk is not written again: the end of a run saves before every step that may fail.

        Raises:
            TrainingDiverged: the weights are NaN or infinite.
        """
        return await self._save(weights, None)

    async def save_best(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        """Save the learner with the best weights so far; if this fails, the next save writes them too.

        Evaluations go on after `BEST_SECONDS`, while the file is still being written.
        """
        if self.hangs:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEST_SECONDS):
                await self._save(weights, result)

    async def save_on_request(self) -> str:
        """Save the learner now; returns the path, "" without a directory.

        Raises:
            ResourceError: it cannot be written.
        """
        path = await self.save_latest()
        if not path and self.failure:
            raise ResourceError(
                f"The checkpoint cannot be written: {self.failure}.",
                facts={"run_dir": self._directory.path},
                fix="make space, or make the directory writable; training goes on meanwhile",
            )
        return path

    async def save_regularly(self) -> None:
        """Save at every `checkpoint_interval_seconds`, until cancelled."""
        while self._directory.path is not None:
            await asyncio.sleep(self._config.checkpoint_interval_seconds)
            await self.save_latest()

    async def save_before_evaluating(self, weights: NDArray[np.float32] | None = None) -> None:
        """Save like `save_latest` after training, before anything that may fail or take long.

        Raises `TrainingDiverged` if they are NaN or infinite. Any other error, or no answer within the limit of a
        step, gives a warning and sets `hangs`; later calls then return at once, so that a disk that hangs is waited
        for once.
        """
        if self.hangs:
            return
        try:
            await within_limit(self.save_latest(weights))
        except TrainingDiverged:
            raise
        except Exception as error:
            self.hangs = True
            warn_of_file("the last checkpoint", error)

    async def _save(self, weights: NDArray[np.float32] | None, best: EvaluationResult | None) -> str:
        # If the caller is cancelled, the task keeps the lock until its file is written: no two threads write at a time.
        saving = asyncio.create_task(self._save_in_turn(weights, best), name="save-checkpoint")
        saving.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(saving)

    async def _save_in_turn(self, weights: NDArray[np.float32] | None, best: EvaluationResult | None) -> str:
        if self._directory.path is None:
            return ""
        async with self._turn:
            try:
                self._directory.check()
                if weights is None:
                    weights, _ = await self._learner.current_weights()
                what = self._what(weights)
                if best is None and self._stands(what):
                    return self._written[0]
                state = {"weights": weights, **await self._taken(rows=best is None)}
                meta = self._meta(best)
                if best is not None:
                    self._unsaved_best = (state, meta)
                if self._unsaved_best is not None:
                    path = await self._write(*self._unsaved_best, best=True)
                    self._unsaved_best = None
                if best is None:
                    path = await self._write(state, meta, best=False)
                    self._written = (path, what)
            except TrainingDiverged:
                raise
            except Exception as error:  # a full disk or a bug must not end training
                self._warn(error)
                return ""
            self.failure = ""
            return path

    def _stands(self, what: tuple[object, ...]) -> bool:
        """Whether this state was the last one written, and its file still exists."""
        return self._written[1] == what and Path(self._written[0]).exists()

    def _what(self, weights: NDArray[np.float32]) -> tuple[object, ...]:
        """Key that identifies a state of the run."""
        learner = self._learner
        counters = (learner.updates, learner.inserted_steps, self._state.evaluations)
        return (*counters, self._unsaved_best is None, weights.tobytes())

    async def _taken(self, *, rows: bool) -> dict[str, Any]:
        """State to resume from; with rows if the run keeps them and `rows` is set (not for the best weights)."""
        folder = self._directory.checkpoints
        assert folder is not None
        with_rows = rows and self._state.rows
        return await (self._state.take_with_rows(folder.directory) if with_rows else self._state.take())

    async def _write(self, state: dict[str, Any], meta: CheckpointMeta, *, best: bool) -> str:
        self._directory.check()
        folder = self._directory.checkpoints
        assert folder is not None
        # The best weights are written without rows, so that file is not the one to resume from.
        latest = not (best and self._state.rows)
        path = str(await asyncio.to_thread(folder.save, state, meta, best=best, latest=latest))
        self._on_saved(path)
        return path

    def _warn(self, error: Exception) -> None:
        before, self.failure = self.failure, reason_of(error)
        if not before and not isinstance(error, DirectoryLost):
            text = (
                f"[ASYNC040] the checkpoint of update {self._learner.updates:,} cannot be written: {self.failure}; "
                "training goes on, the checkpoints that are there stay, and the next one is tried as usual; make "
                "space, or make the directory writable"
            )
            warnings.warn(FilesNotWritten(text), stacklevel=2)

    def _meta(self, evaluation: EvaluationResult | None) -> CheckpointMeta:
        return replace(
            self._meta_at_start,
            env_steps=self._learner.inserted_steps,
            updates=self._learner.updates,
            episodes=self._state.episodes,
            policy_version=evaluation.policy_version if evaluation else self._learner.policy_version,
            train_seconds=self._clock.train_seconds,
            weights_env_steps=evaluation.env_steps if evaluation else None,
            return_mean=evaluation.return_mean if evaluation else None,
        )


def warn_of_file(what: str, error: Exception) -> None:
    """Warn (ASYNC040) that this file of the end of a run cannot be written."""
    text = (
        f"[ASYNC040] {what} cannot be written: {reason_of(error)}; the result holds what it would have held"
    )
    warnings.warn(FilesNotWritten(text), stacklevel=3)
