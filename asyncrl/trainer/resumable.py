"""`Trainer.resume`: a trainer that resumes a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from asyncrl.actors.forkserver import ForkServer


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
        checkpoint: str = "latest",
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

        config, algorithm, resumed = prepare_resumption(
            Path(run).expanduser(), checkpoint, total_steps, changes, restore_episodes
        )
        maker: Any = cls  # a `Trainer`
        trainer = maker.from_config(config, algorithm, server=server, started=started)
        trainer._run.resumed = resumed
        made: Self = trainer
        return made
