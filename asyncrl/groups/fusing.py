"""Options and statistics of a fusion, and the callbacks of a session to its run."""

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
class FusionStatistics:
    """Statistics of one group's fusion.

    Attributes:
        fusions: number of fusions of this group's vector; on rank 0 of `async`, of the deltas of all groups.
        discarded: number of deltas that were too stale and dropped; counted on rank 0 of `async` only.
        sent_bytes, received_bytes: payload of the messages.
        wait_seconds: time that the learner has waited for other groups; measured with fused gradients only.
        staleness_mean, staleness_max: fusions between a delta's base and its own fusion; 0 except with `async`.
    """

    fusions: int = 0
    discarded: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_seconds: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0


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
