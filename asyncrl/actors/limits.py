"""Patience with the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

READY_SECONDS = 60.0


@dataclass(frozen=True)
class ProcessLimits:
    """How long a process may take, and how often another one takes its place.

    Attributes:
        step_timeout_seconds: how long one step (or reset) may take before its process counts as hung and is killed.
        ready_timeout_seconds: the same for building and resetting all environments of a process.
        max_restarts: how often one process may be started again within a minute, after it was killed or hung. 0: never.
            Processes that die with the fork server are started again as often as that is.
    """

    step_timeout_seconds: float = 60.0
    ready_timeout_seconds: float = READY_SECONDS
    max_restarts: int = 3
