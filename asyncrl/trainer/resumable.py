"""`Trainer.resume`: a trainer that resumes a run."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncrl.actors.forkserver import ForkServer
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.run.episode_window import EPISODE_WINDOW

if TYPE_CHECKING:
    from asyncrl.storage.resume import Resumption


class Resumable:
    """Part of `Trainer` that resumes an earlier run."""

    @property
    def resumed_from(self) -> tuple[str, ...]:
        """Lines about the checkpoint of a resumed run and about what does not continue exactly; empty for a new run."""
        trainer: Any = self
        resumed = trainer._run.resumed
        return () if resumed is None else resumed.lines()

    @classmethod
    def resume(
        cls,
        run: str | os.PathLike[str],
        total_steps: int | str | None = None,
        *,
        checkpoint: str | int = "latest",
        restore_episodes: bool = True,
        server: ForkServer | None = None,
        started: float | None = None,
        **changes: Any,
    ) -> Self:
        """Make a trainer that resumes a run in its directory; `docs/resume.md` lists what continues exactly.

        Args:
            run: directory of the run.
            total_steps: environment steps of the whole run; `"+100k"` adds that many; None leaves the number unchanged.
            checkpoint: name of the checkpoint to resume from: `latest`, or a number of steps.
            restore_episodes: whether to continue the unfinished episodes in the checkpoint.
            server: see `Trainer`.
            started: see `from_config`.
            changes: options of the run or of its algorithm to change.

        Raises:
            ConfigurationError: there is no run, it has no steps left, or an option may not change (ASYNC017).
            CheckpointError: the checkpoint is missing or damaged (ASYNC019).
        """
        # Imported here because it imports torch.
        from asyncrl.storage.resume import prepare_resumption

        steps: Any = total_steps
        if not isinstance(steps, str | int | None):  # 2e5, or a NumPy integer
            steps = str(steps)
        config, algorithm, resumed = prepare_resumption(
            Path(run).expanduser(), str(checkpoint), steps, changes, restore_episodes
        )
        if _training_target_reached(config, resumed):
            config, resumed = _without_training_target(config, resumed, total_steps is not None)
        maker: Any = cls  # a `Trainer`
        trainer = maker.from_config(config, algorithm, server=server, started=started)
        trainer._run.resumed = resumed
        made: Self = trainer
        return made


def _training_target_reached(config: TrainerConfig, resumed: Resumption) -> bool:
    """Whether the window of training episodes has reached the target, so that the run would end at once."""
    try:
        returns = resumed.run["episodes"]["returns"].tolist()
    except (AttributeError, LookupError, TypeError):  # damaged; refused when the run is built
        return False
    target = config.target_training_return
    return target is not None and len(returns) == EPISODE_WINDOW and sum(returns) / len(returns) >= target


def _without_training_target(
    config: TrainerConfig, resumed: Resumption, goes_on: bool
) -> tuple[TrainerConfig, Resumption]:
    """Drop a target that was reached if more steps were given. Raises `ConfigurationError` otherwise (ASYNC017)."""
    reached = f"{config.target_training_return:g}"
    if not goes_on:
        raise ConfigurationError(
            f"the run has reached its target_training_return, {reached}",
            facts={"run": config.run_dir},
            fix="give total_steps='+100k', on the command line --steps +100k, or a higher target_training_return",
        )
    note = f"target_training_return {reached} was reached and no longer ends the run"
    resumed = dataclasses.replace(resumed, notes=(*resumed.notes, note))
    return dataclasses.replace(config, target_training_return=None), resumed
