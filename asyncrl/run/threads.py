"""Warning of more busy threads than cores."""

from __future__ import annotations

import warnings

from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.errors import TooManyThreads


def warn_of_too_many_threads(config: TrainerConfig) -> None:
    """Warn with ASYNC021 where actors alone, or torch's threads beside them, outnumber the cores."""
    cores = usable_cores()
    torch_threads = config.torch_threads
    if config.actors > cores or (torch_threads > 1 and config.actors + torch_threads > cores):
        warnings.warn(
            TooManyThreads(
                f"[ASYNC021] {config.actors} actors and {torch_threads} torch threads share {cores} cores; "
                f"set num_actors to {max(1, cores - torch_threads)} and torch_threads to 1"
            ),
            stacklevel=2,
        )
