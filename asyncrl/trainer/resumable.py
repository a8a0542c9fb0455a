"""`Trainer.resume`: a trainer that goes on with a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from asyncrl.actors.forkserver import ForkServer


class Resumable:
    """The part of `Trainer` that goes on with an earlier run."""

    @property
    def resumed_from(self) -> tuple[str, ...]:
        """What a resumed run goes on from, and what of it does not go on as it was, one line each; else empty."""
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
        """Make a trainer that goes on with a run, in its directory; `docs/resume.md` says what continues exactly.

        Args:
            run: directory of the run.
            total_steps: environment steps of the whole run; `"+100k"` is so many more; None leaves it as it was.
            checkpoint: name of the checkpoint to go on from: `latest`, or a number of steps.
            restore_episodes: go on in the middle of the episodes that the checkpoint holds.
            server: see `Trainer`.
            started: see `from_config`.
            changes: options of the run or of its algorithm to change.

        Raises:
            ConfigurationError: there is no run, it has nothing left to do, or an option may not change (ASYNC017).
            CheckpointError: the checkpoint is missing or damaged (ASYNC019).
        """
        # Imported here because torch comes with it.
        from asyncrl.storage.resume import prepare_resumption

        config, algorithm, resumed = prepare_resumption(
            Path(run).expanduser(), checkpoint, total_steps, changes, restore_episodes
        )
        maker: Any = cls  # a `Trainer`
        trainer = maker.from_config(config, algorithm, server=server, started=started)
        trainer._run.resumed = resumed
        made: Self = trainer
        return made
