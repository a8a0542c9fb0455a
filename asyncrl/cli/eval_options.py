"""Options of `asyncrl eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asyncrl.options import require_at_least


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `asyncrl eval`."""

    run: str
    """Directory of a run, or a checkpoint file."""

    episodes: int = 20
    """Greedy episodes to play."""

    checkpoint: str = "latest"
    """Checkpoint of the run: latest, best, or a number of steps."""

    seed: int = 0
    """Seed of the episodes."""

    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        require_at_least("episodes", self.episodes, 1)
        require_at_least("seed", self.seed, 0)

    @property
    def path(self) -> Path:
        """The checkpoint file."""
        run = Path(self.run)
        return run / "checkpoints" / self.checkpoint if run.is_dir() else run
