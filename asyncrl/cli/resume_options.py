"""Options of `asyncrl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ResumeOptions:
    """Arguments of `asyncrl resume`.

    Attributes:
        run: directory of the run.
        steps: total steps, or `+N` for so many more; None leaves them.
        checkpoint: name of the checkpoint.
        restore_episodes: go on in the middle of the episodes that it holds.
        changes: options of the run and of its algorithm that are changed.
    """

    run: Path
    steps: str | None
    checkpoint: str
    restore_episodes: bool
    changes: dict[str, Any]
