"""Options of `asyncrl eval`."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.options import require_at_least


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `asyncrl eval`."""

    run: str
    """Directory of a run, a checkpoint file, or a policy file."""

    episodes: int = 20
    """Greedy episodes to play."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    seed: int = 0
    """Seed of the episodes."""

    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        require_at_least("episodes", self.episodes, 1)
        require_at_least("seed", self.seed, 0)
