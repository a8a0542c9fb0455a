"""Interfaces between a session and its run, and of a running fusion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.errors import GroupLost
from asyncrl.groups.heartbeat import Status
from asyncrl.groups.statistics import FusionStatistics


@dataclass(frozen=True)
class FusionOptions:
    """How groups are fused; see `TrainerConfig`.

    Attributes:
        mode: `gradients`, `average` or `async`.
        interval: updates between two fusions of weights.
        max_staleness: oldest delta that `async` takes, in fusions.
        dtype: encoding of the messages.
        learning_rate, momentum: of the outer step of `average`.
        moments: whether `average` fuses the optimiser's moments too.
        exact: whether the same seed gives the same numbers, so that `average` waits at fixed updates.
    """

    mode: str
    interval: int
    max_staleness: int
    dtype: str
    learning_rate: float = 1.0
    momentum: float = 0.0
    moments: bool = False
    exact: bool = False


class Fusion(Protocol):
    """A running fusion."""

    def finish(self) -> None:
        """Fuse for the last time; learner's thread."""
        ...

    def abort(self) -> None:
        """Let whoever waits in it raise `PeerLost` within a second; any thread."""
        ...

    def close(self) -> None:
        """End it and its threads; any thread."""
        ...

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        ...


@dataclass(frozen=True)
class Listeners:
    """What a run is told by its session, on threads of the session's.

    Attributes:
        status: makes this group's status for the others.
        stop: another rank has stopped the job, for that reason.
        fail: a rank is lost or has failed.
        beat: called with the statuses of all ranks.
        state: the learner's present state as bytes; rank 0 only.
    """

    status: Callable[[], Status]
    stop: Callable[[str], None]
    fail: Callable[[GroupLost], None]
    beat: Callable[[dict[int, Status]], None]
    state: Callable[[], bytes]
