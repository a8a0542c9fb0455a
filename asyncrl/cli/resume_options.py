"""Options of `asyncrl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ResumeOptions:
    """Arguments of `asyncrl resume`.

    Attributes:
        run: the run directory.
        steps: total steps, or `+N` for N more; None leaves them unchanged.
        checkpoint: name of the checkpoint.
        restore_episodes: whether to continue the episodes in the checkpoint.
        changes: changed options of the run and of its algorithm.
    """

    run: Path
    steps: str | None
    checkpoint: str
    restore_episodes: bool
    changes: dict[str, Any]
