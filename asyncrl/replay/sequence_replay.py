"""Prioritized replay of sequences over rings, in place: the replay of R2D2.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019, section 2.3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from asyncrl.replay import sequence_gather
from asyncrl.replay import tables as table
from asyncrl.replay.ring_replay import ReplayStatistics, RingReplay
from asyncrl.replay.tables import SequenceTable
from asyncrl.sequences import SequenceBatch


class SequenceReplay(RingReplay[SequenceBatch]):
    """Replay of sequences that begin at every `shape.period`-th row of a stream; see `RingReplay`.

    A sequence has one priority, at the leaf of its first row. It can be sampled from when its last row is published
    until its first row is retired or too stale: rows behind the first are never overwritten before it. One without a
    row to train on is never sampled.
    """

    WHAT: ClassVar[str] = "sequence"

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
