"""Protocol of update loops, which turn rows into updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asyncrl.learning.divergence import Divergence
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.pace import BalanceStatistics
from asyncrl.learning.publication import Publisher
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.protocols import Updater
from asyncrl.shm.ring import RingReader

TICK_SECONDS = 0.001
"""Duration of the updates of a tick, after which new rows are received."""


@dataclass(frozen=True)
class LoopStatistics:
    """Statistics of an update loop.

    Attributes:
        balance: statistics of the balance.
        staleness: meter of the samples used.
        policy_lag: policy lag of the steps received.
        stored_steps: environment steps that can be trained on at present.
        discarded_steps: environment steps discarded as too stale (segments also by a faulty ring).
    """

    balance: BalanceStatistics
    staleness: StalenessMeter
    policy_lag: Histogram
    stored_steps: int
    discarded_steps: int


class UpdateLoop(Protocol):
    """Loop that turns rows into updates. Created on any thread; used on the learner's only, except for both counters.

    Attributes:
        core: network, optimiser and loss.
        rings: source of the rows.
        publisher: publishes the weights.
        divergence: checks the loss.
        polls_while_dense: whether the learner polls every millisecond in place of arming the doorbell while traffic is
            dense: True if any row can be used, False if only whole segments or quanta can.
        updates: gradient steps so far.
        inserted_steps: environment steps received so far, RESET rows excluded.
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
        """Publish the first weights, for which the actors wait; called once, before the first tick."""
        ...

    def tick(self) -> bool:
        """Receive new rows, grant rows, train for `TICK_SECONDS`; return False if there was nothing to do."""
        ...

    def finished(self) -> bool:
        """Whether the run's steps are used up; called after a tick that found nothing to do."""
        ...

    def wake_positions(self) -> list[int]:
        """Position per ring at which the actor should wake the learner. Loop thread, while no burst runs."""
        ...

    def statistics(self) -> LoopStatistics:
        """Present statistics, a frozen record."""
        ...
