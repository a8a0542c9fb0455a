"""Prioritized replay of sequences, stored in the rings: the replay of R2D2.

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

    A sequence has one priority, at the leaf of its first row. It can be sampled from the publication of its last row
    until its first row is retired or too stale; later rows are never overwritten before the first. A sequence without a
    trained row is never sampled.
    """

    WHAT: ClassVar[str] = "sequence"

    def _describe(self, batch: SequenceBatch) -> SequenceTable:
        return SequenceTable(batch, self.rings[0], self.shape, int(self._state[table.STACK]))

    def _draw(self, to: SequenceTable, beta: float) -> None:
        sequence_gather.sample_sequences(
            *self._tree, self._numbers, beta, to.addresses, to.uniforms, to.rest, to.work
        )

    def statistics(self) -> ReplayStatistics:
        """Statistics in env-steps: `period` per sampleable or retired sequence, `length` per sampled one."""
        counted = super().statistics()
        return replace(
            counted,
            sampleable=counted.sampleable * self.shape.period,
            retired=counted.retired * self.shape.period,
            sampled=counted.sampled * self.shape.length,
        )
