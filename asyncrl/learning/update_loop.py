"""Protocol of the update loops: how rows become updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asyncrl.learning.balance_statistics import BalanceStatistics
from asyncrl.learning.divergence import Divergence
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.publication import Publisher
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.protocols import Updater
from asyncrl.shm.ring import RingReader

TICK_SECONDS = 0.001
"""Seconds of updates in a tick, before new rows are looked at and weights are published."""


@dataclass(frozen=True)
class LoopStatistics:
    """Statistics of an update loop.

    Attributes:
        balance: the pace.
        staleness: the meter of what was used.
        policy_lag: the age of the acting weights.
        stored_steps: environment steps that could be trained on now.
        discarded_steps: environment steps that were given up because they were too stale.
    """

    balance: BalanceStatistics
    staleness: StalenessMeter
    policy_lag: Histogram
    stored_steps: int
    discarded_steps: int


class UpdateLoop(Protocol):
    """Turns rows into updates; made on any thread, used on the learner's only (but for the two counters).

    Attributes:
        core: network, optimiser and loss.
        rings: where rows come from.
        publisher: where weights go to.
        divergence: watches the loss.
        polls_while_dense: whether to look again after a millisecond instead of arming the doorbell while traffic is
            dense: yes where any row can be used, no where only a whole segment can.
        updates: gradient steps so far.
        inserted_steps: environment steps taken in so far, RESET rows excluded.
    """

    rings: tuple[RingReader, ...]
    publisher: Publisher
    divergence: Divergence
    polls_while_dense: bool
    inserted_steps: int

    @property
    def updates(self) -> int: ...  # noqa: D102

    @property
    def core(self) -> Updater: ...  # noqa: D102

    def prepare(self) -> None:
        """Publish the first weights, for which actors wait; called once, before the first tick."""
        ...

    def tick(self) -> bool:
        """Take in what is new, let actors go on, learn for `TICK_SECONDS`; False where there is nothing to do."""
        ...

    def end_burst(self) -> None:
        """Called after the last tick of a burst."""
        ...

    def finished(self) -> bool:
        """Whether the run's steps are used up; asked after a tick that found nothing."""
        ...

    def wake_positions(self) -> list[int]:
        """Per ring, the position from which on looking again is worth while. Loop thread, while no burst runs."""
        ...

    def statistics(self) -> LoopStatistics:
        """A frozen record of the loop as it stands."""
        ...
