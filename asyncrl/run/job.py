"""A run to be made: all that says what it trains, in one value that other processes can be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.protocols import Algorithm

if TYPE_CHECKING:
    from asyncrl.storage.resume import Resumption


@dataclass(frozen=True)
class Job:
    """A run to be made: all its options, the environment, and the checkpoint to resume from, None for a new run."""

    config: TrainerConfig
    algorithm: Algorithm
    source: EnvSource
    resumed: Resumption | None = None
