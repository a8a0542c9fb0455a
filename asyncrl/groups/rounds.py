"""Rounds of collective messages: every rank gives one vector and gets the weighted mean of all.

The message also has the rank's row of a small table: its weight, whether it has finished, whether it ends its pass
here, a scale, further values, and its statistics. So all ranks have the rows of all ranks after every round, and a rank
that has finished stays in the rounds of those that have not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.groups.device_sums import Sums
from asyncrl.groups.messages import Encoding, Feedback
from asyncrl.groups.peers import Peers
from asyncrl.groups.shared_statistics import SharedStatistics

_WEIGHT, _FINISHED, _ENDS, _SCALE, _TAIL = range(5)


@dataclass(frozen=True)
class Round:
    """Result of a round, equal on all ranks; valid until the next one.

    Attributes:
        total: `[P]`, sum of weight times vector, whose scaled part is multiplied by the rank's scale.
        weight: sum of the weights; 0 if no rank gave a vector.
        finished: whether every rank has finished.
        table: `[ranks, columns]` float32, the rows of all ranks.
        tail: K, number of further values per rank.
    """

    total: Tensor
    weight: float
    finished: bool
    table: NDArray[np.float32]
    tail: int

    def mean(self, out: Tensor, part: slice = slice(None)) -> Tensor:
        """Write the weighted mean of `part` into `out`, on any device, and return it; needs a weight above 0."""
        total = self.total[part]
        if out.device == total.device:
            return torch.div(total, self.weight, out=out)
        return out.copy_(total).div_(self.weight)

    @property
    def finished_ranks(self) -> NDArray[np.bool_]:
        """`[ranks]`, whether each rank has finished, as a copy."""
        return self.table[:, _FINISHED] > 0

    @property
    def largest_scale(self) -> float:
        """Largest scale of the ranks that gave a vector; 0 if none did."""
        return float(self.table[:, _SCALE].max())

    @property
    def ends(self) -> bool:
        """Whether any rank ends its pass."""
        return bool(self.table[:, _ENDS].any())

    @property
    def tails(self) -> NDArray[np.float32]:
        """Further values of each rank, `[ranks, K]`."""
        return self.table[:, _TAIL : _TAIL + self.tail]


class Rounds:
    """Sequence of rounds of one rank, in the same order on every rank; one thread.

    Args:
        peers: the connection of all ranks.
        encoding: encoding of the vectors. An exact one takes one all-reduce; others are gathered, summed in rank order.
        tail: K, number of further values per rank.
        shared: statistics that are part of every round.
        sums: sums by which vectors with an exact encoding are exchanged; None for those of `peers`.
        scaled: part of the vectors that is multiplied by the ranks' scales. A lossy message holds it unscaled, so that
            its error keeps its meaning in the next one, whose scale may be another.

    Attributes:
        count: number of rounds so far.
        room: `[P]` on the sums' device; a vector that is written into it before `begin` is not copied.
    """

    def __init__(
        self,
        peers: Peers,
        encoding: Encoding,
        tail: int = 0,
        shared: SharedStatistics | None = None,
        sums: Sums | None = None,
        scaled: slice = slice(0),
    ) -> None:
        self.peers, self.count, self._scaled = peers, 0, scaled
        self._encoding, self._tail = encoding, tail
        self._shared = shared if shared is not None and shared.size else None
        statistics = self._shared.size if self._shared is not None else 0
        ranks, columns, size = peers.size, _TAIL + tail + statistics, encoding.size
        self._feedback = Feedback(encoding)
        self._sums = sums if sums is not None and encoding.exact else peers
        self._sum = torch.zeros(size + ranks * columns, device=self._sums.device)
        self.room, self._sent_rows = self._sum[:size], self._sum[size:].view(ranks, columns)
        self._rows = self._sent_rows if self._sums is peers else self._sent_rows.to("cpu", copy=True)
        self._table: NDArray[np.float32] = self._rows.numpy()
        # One number costs a tenth of what it costs through NumPy.
        self._cells: Any = memoryview(self._table.data)
        self._statistics = tuple(self._table[:, _TAIL + tail :])
        self._work: Any = None
        if not encoding.exact:
            length = 4 * columns + encoding.message_bytes
            length += -length % 4
            self._message = torch.zeros(length, dtype=torch.uint8)
            self._messages = [torch.zeros(length, dtype=torch.uint8) for _ in range(ranks)]
            self._decoded = torch.zeros(size)

    def exchange(self, vector: Tensor | None, weight: float = 1.0, **row: Any) -> Round:
        """Take part in the next round and wait for all ranks; arguments as for `begin`."""
        self.begin(vector, weight, **row)
        return self.end()

    def begin(
        self,
        vector: Tensor | None,
        weight: float = 1.0,
        *,
        scale: float = 1.0,
        finished: bool = False,
        ends: bool = False,
        tail: tuple[float, ...] = (),
        part: slice = slice(None),
    ) -> None:
        """Begin to take part in the next round; does not wait. Raises `PeerLost`.

        Args:
            vector: `[P]` on any device, copied; None is a vector of zeros with weight 0.
            weight: weight of the vector; 0 is as without one.
            scale: factor on the vector's scaled part, above 0.
            finished: whether this rank makes no further updates.
            ends: whether this rank ends its pass.
            tail: at most K values; missing ones are 0.
            part: part of the vector that all ranks use; a lossy message holds zeros for the rest.
        """
        rank, cells = self.peers.rank, self._cells
        self._table.fill(0.0)
        vector = vector if weight > 0 else None
        given = vector is not None
        row = (weight if given else 0.0, finished, ends, scale if given else 0.0, *tail)
        for column, value in enumerate(row):
            cells[rank, column] = value
        if self._shared is not None:
            self._shared.take_message(out=self._statistics[rank])
        if not self._encoding.exact:
            self._begin_gather(vector, part)
            return
        if vector is None:
            self.room.zero_()
        else:
            if vector is not self.room:
                self.room.copy_(vector)
            if scale != 1.0:
                self.room[self._scaled].mul_(scale)
            if weight != 1.0:
                self.room.mul_(weight)
        if self._rows is not self._sent_rows:
            self._sent_rows.copy_(self._rows)
        self._work = self._sums.begin_sum(self._sum)

    def done(self) -> bool:
        """Whether `end` would not wait."""
        return bool(self._work.is_completed())

    def end(self) -> Round:
        """Wait until every rank takes part in the round; returns the result. Raises `PeerLost`."""
        self._sums.wait(self._work)
        self._work = None
        if not self._encoding.exact:
            self._decode()
        elif self._rows is not self._sent_rows:
            self._rows.copy_(self._sent_rows)
        self.count += 1
        cells, ranks = self._cells, range(self.peers.size)
        if self._shared is not None:
            for rank in ranks:
                if rank != self.peers.rank:
                    self._shared.merge(self._statistics[rank])
        weight = sum(cells[rank, _WEIGHT] for rank in ranks)
        finished = all(cells[rank, _FINISHED] for rank in ranks)
        return Round(self.room, weight, finished, self._table, self._tail)

    def statistics(self) -> dict[str, float]:
        """Number of rounds and payload of their messages, by attributes of `GroupStatistics`; any thread."""
        return {
            "fusions": self.count,
            "sent_bytes": self.peers.sent_bytes,
            "received_bytes": self.peers.received_bytes,
        }

    def _begin_gather(self, vector: Tensor | None, part: slice) -> None:
        row = self._rows[self.peers.rank]
        head, length = 4 * row.numel(), self._encoding.message_bytes
        self._message[:head].view(torch.float32).copy_(row)
        if vector is not None:
            self._feedback.encode(vector.cpu(), self._message[head : head + length], part)
        self._work = self.peers.begin_gather(self._message, self._messages)

    def _decode(self) -> None:
        head, length = 4 * self._rows.shape[1], self._encoding.message_bytes
        self.room.zero_()
        for rank, message in enumerate(self._messages):
            self._rows[rank] = message[:head].view(torch.float32)
            weight = float(self._table[rank, _WEIGHT])
            if weight > 0:
                self._encoding.decode(message[head : head + length], self._decoded)
                self._decoded[self._scaled].mul_(float(self._table[rank, _SCALE]))
                self.room.add_(self._decoded, alpha=weight)
