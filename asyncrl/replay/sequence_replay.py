"""Prioritized replay of sequences over rings, in place: the replay of R2D2.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019, section 2.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from asyncrl.replay import sequence_gather
from asyncrl.replay import tables as table
from asyncrl.replay.ring_replay import ReplayStatistics, RingReplay
from asyncrl.replay.tables import SequenceTable
from asyncrl.sequences import SequenceBatch, SequenceShape
from asyncrl.shm import RingReader


class SequenceReplay(RingReplay[SequenceBatch]):
    """Replay of sequences that begin at every `shape.period`-th row of a stream; see `RingReplay`.

    A sequence has one priority, at the leaf of its first row. It can be sampled from when its last row is published
    until its first row is retired or too stale: rows behind the first are never overwritten before it. One without a
    row to train on is never sampled.
    """

    WHAT: ClassVar[str] = "sequence"

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        shape: SequenceShape,
        alpha: float = 0.9,
        uniform: bool = False,
        frame_stack: int = 1,
        priority_eps: float = 1e-6,
        priority_window_updates: int = 1_000,
        rng: np.random.Generator,
    ) -> None:
        """Begin with nothing sampleable.

        Args:
            rings: at least one; all of one layout.
            shape: rows of a sequence.
            alpha: exponent of the priorities, 0 (uniform) to 1 (proportional).
            uniform: sample all sequences alike and ignore `update_priorities`.
            frame_stack: observations joined along a new axis 2 of `obs`; 1 means no such axis.
            priority_eps: added to priorities, so that every sequence keeps a chance.
            priority_window_updates: see `PrioritizedReplay`.
            rng: draws the strata.

        Raises:
            ValueError: an argument outside its range, rings of different layouts, or rings too small to hold one
                sequence.
        """
        super().__init__(
            rings,
            shape=shape,
            alpha=alpha,
            uniform=uniform,
            frame_stack=frame_stack,
            priority_eps=priority_eps,
            priority_window_updates=priority_window_updates,
            rng=rng,
        )

    def _describe(self, batch: SequenceBatch) -> SequenceTable:
        return SequenceTable(batch, self.rings[0], self.shape, int(self._state[table.STACK]))

    def _draw(self, to: SequenceTable, beta: float) -> None:
        sequence_gather.sample_sequences(
            *self._tree, self._numbers, beta, to.addresses, to.uniforms, to.rest, to.work
        )

    def statistics(self) -> ReplayStatistics:
        """The replay at this moment, in env-steps: a sequence that may be sampled stands for `period` of them."""
        counted = super().statistics()
        return replace(
            counted,
            sampleable=counted.sampleable * self.shape.period,
            retired=counted.retired * self.shape.period,
            sampled=counted.sampled * self.shape.length,
        )
