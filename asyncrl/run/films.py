"""Films of evaluations: the first episode of the newest one, in a file beside the run.

A film is made in a process of its own and of lower priority, after its evaluation was recorded. Training and
evaluations never wait for it. Evaluations that end meanwhile wait as one: the newest of them is filmed next. A film
that fails or takes too long is given up with one warning (ASYNC041); where the environment cannot be rendered, no
further one is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import film_episode
from asyncrl.envs.video import require_video
from asyncrl.errors import ConfigurationError, EvaluationIncomplete, describe_error
from asyncrl.show.evaluation_result import EvaluationFilm, EvaluationResult
from asyncrl.storage.run_directory import RunDirectory

FILE = "evaluation.mp4"
MOST_STEPS = 1_000
"""Steps after which a film ends; at 320 pixels it has a few megabytes at most."""
FILM_SECONDS = 120.0
"""Time limit of a film."""
LAST_SECONDS = 60.0
"""Time that the end of a run waits for the film of its last evaluation."""


class EvaluationFilms:
    """Makes the films of one run, one at a time; event-loop thread only.

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
        self._temporary = Path(tempfile.mkdtemp(prefix="asyncrl-film-")) if directory.path is None else None
        self._waiting: tuple[EvaluationResult, NDArray[np.float32], tuple[int, ...]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._warned = self._given_up = False
        require_video(self.path)

    @property
    def path(self) -> Path:
        """File of the newest film."""
        folder = self._temporary or self._directory.path
        assert folder is not None
        return folder / FILE

    def evaluated(self, result: EvaluationResult, weights: NDArray[np.float32], key: tuple[int, ...]) -> None:
        """Film the first episode of this evaluation, once the present film is finished; never blocks."""
        if self._given_up:
            return
        self._waiting = result, weights, key
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._film_waiting(), name="film")

    async def finish(self) -> None:
        """Wait for the film of the last evaluation, for a limited time."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=LAST_SECONDS)

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
            plan = self._evaluator.film_of(weights, key, self.path, MOST_STEPS)
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
            warnings.warn(EvaluationIncomplete(text), stacklevel=2)
