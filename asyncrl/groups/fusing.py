"""Options of a fusion, and the callbacks of a session to its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.errors import GroupLost
from asyncrl.groups.heartbeat import Status


@dataclass(frozen=True)
class FusionOptions:
    """Options of the fusion; see `TrainerConfig`.

    Attributes:
        mode: `gradients`, `average` or `async`.
        interval: number of updates between two fusions of weights.
        max_staleness: largest staleness of a delta that `async` fuses, in fusions.
        dtype: encoding of the messages.
        learning_rate, momentum: learning rate and momentum of the outer step of `average`.
        moments: whether `average` also fuses the optimiser's moments.
        exact: whether the same seed must give the same numbers, so that `average` waits at fixed updates.
    """

    mode: str
    interval: int
    max_staleness: int
    dtype: str
    learning_rate: float = 1.0
    momentum: float = 0.0
    moments: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Listeners:
    """Callbacks of a run, called on threads of its session.

    Attributes:
        status: returns this group's status for the others.
        stop: called with the reason when another rank has stopped the job.
        fail: called with the error when a rank is lost or has failed.
        beat: called with the statuses of all ranks after every beat.
        state: returns the learner's current state as bytes; rank 0 only.
    """

    status: Callable[[], Status]
    stop: Callable[[str], None]
    fail: Callable[[GroupLost], None]
    beat: Callable[[dict[int, Status]], None]
    state: Callable[[], bytes]
