"""How rows become updates: the one protocol that both disciplines answer, and what they report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from asyncrl.interfaces import Core
from asyncrl.learning.balance import BalanceStatistics
from asyncrl.learning.divergence import Divergence
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.publication import Publisher
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.shm.ring import RingReader

BEAT_SECONDS = 0.001
"""How long updates run before new rows are looked at and weights are published."""


@dataclass(frozen=True)
class Consumed:
    """What a consumption says of itself.

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


class Consumption(Protocol):
    """How rows become updates; made on any thread, used on the learner's only (but for the two counters).

    Attributes:
        core: network, optimiser and loss.
        rings: where rows come from.
        publisher: where weights go to.
        divergence: watches the loss.
        polls_while_dense: whether looking again after a millisecond beats the doorbell while traffic is dense: yes
            where any row is welcome, no where only a whole segment is.
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
    def core(self) -> Core: ...  # noqa: D102

    def prepare(self) -> None:
        """Before the first beat: publish the first weights, for which actors wait."""
        ...

    def beat(self) -> bool:
        """Take in what is new, let actors go on, learn for `BEAT_SECONDS`; False where there is nothing to do."""
        ...

    def end_burst(self) -> None:
        """After the last beat of a burst."""
        ...

    def finished(self) -> bool:
        """Whether the run's steps are used up; asked after a beat that found nothing."""
        ...

    def wake_positions(self) -> list[int]:
        """Per ring, the position from which on looking again is worth while. Loop thread, while no burst runs."""
        ...

    def consumed(self) -> Consumed:
        """What there is to report."""
        ...
