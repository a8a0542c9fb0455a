"""Time and restart limits of the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

READY_SECONDS = 60.0


@dataclass(frozen=True)
class ProcessLimits:
    """Time and restart limits of a process.

    Attributes:
        step_timeout_seconds: time limit of one step (or reset), after which its process counts as hung and is killed.
        ready_timeout_seconds: the same for building and resetting all environments of a process.
        max_restarts: limit of restarts of one process within a minute, after it was killed or hung; 0 for none.
            Restarts after the death of the fork server do not count: its own restart limit applies.
        max_actor_bytes: private memory beyond which an actor is killed, None without limit; see `private_bytes`.
    """

    step_timeout_seconds: float = 60.0
    ready_timeout_seconds: float = READY_SECONDS
    max_restarts: int = 3
    max_actor_bytes: int | None = None
