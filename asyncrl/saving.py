"""What a run saves of its learner, and when: checkpoints by time, at the end, and of the best weights."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.checkpoint import CheckpointMeta
from asyncrl.clock import TrainClock
from asyncrl.config import TrainerConfig
from asyncrl.core import Algorithm, EnvSpec
from asyncrl.learner import Learner
from asyncrl.metrics import EvaluationResult
from asyncrl.run_directory import RunDirectory


class CheckpointSaver:
    """Writes checkpoints of one run, off the loop's thread and one at a time; event-loop thread only.

    Args:
        config, algorithm, spec: what the run is.
        directory: where they go; one without a path saves nothing.
        learner: whose state.
        clock: the training clock.
        episodes: how many training episodes have ended.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: Algorithm,
        spec: EnvSpec,
        directory: RunDirectory,
        learner: Learner,
        clock: TrainClock,
        episodes: Callable[[], int],
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._spec = spec
        self._directory = directory
        self._learner = learner
        self._clock = clock
        self._episodes = episodes
        self._turn = asyncio.Lock()

    async def save_latest(self, weights: NDArray[np.float32] | None = None) -> str:
        """Save the learner with these acting weights, or its present ones; the file's path, "" without a directory."""
        return await self._save(weights, None)

    async def save_best(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        """Save the learner with weights that were evaluated best so far."""
        await self._save(weights, result)

    async def save_regularly(self) -> None:
        """Save at every `checkpoint_interval_seconds`, until cancelled."""
        while self._directory.path is not None:
            await asyncio.sleep(self._config.checkpoint_interval_seconds)
            await self.save_latest()

    async def _save(self, weights: NDArray[np.float32] | None, best: EvaluationResult | None) -> str:
        folder = self._directory.checkpoints
        if folder is None:
            return ""
        async with self._turn:
            if weights is None:
                weights, _ = await self._learner.current_weights()
            state = {"core": await self._learner.state_dict(), "weights": weights}
            meta = self._meta(best)
            return str(await asyncio.to_thread(folder.save, state, meta, best=best is not None))

    def _meta(self, evaluation: EvaluationResult | None) -> CheckpointMeta:
        return CheckpointMeta(
            env=self._config.env,
            algo=self._config.algo,
            spec=self._spec,
            options=dataclasses.asdict(self._algorithm),  # type: ignore[call-overload]
            seed=self._config.seed,
            env_steps=self._learner.inserted_steps,
            updates=self._learner.updates,
            episodes=self._episodes(),
            policy_version=evaluation.policy_version if evaluation else self._learner.policy_version,
            train_seconds=self._clock.train_seconds,
            return_mean=evaluation.return_mean if evaluation else None,
        )
