"""A round: every rank gives one vector and gets the weighted mean of all, in one message.

Each rank's row of a small table travels with the vector: its weight, whether it has finished, whether it ends its pass
here, and what else it tells the others. So all ranks know of every round who took part in it, and a rank that has
finished stays in the rounds of those that have not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.groups.messages import Encoding, Feedback
from asyncrl.groups.peers import Peers

_WEIGHT, _FINISHED, _ENDS, _TAIL = range(4)


@dataclass(frozen=True)
class Round:
    """What all ranks know after a round.

    Attributes:
        mean: `[P]`, sum of weight times vector over the sum of weights; valid until the next round. None where no rank
            gave a weight.
        weights, finished: of each rank.
        ends: whether a rank ends its pass.
        tails: `[ranks, K]`, what else each rank told.
    """

    mean: Tensor | None
    weights: tuple[float, ...]
    finished: tuple[bool, ...]
    ends: bool
    tails: Tensor


class Rounds:
    """The rounds of one rank, one after the other, in the same order on every rank.

    Args:
        peers: all ranks.
        encoding: of the vectors. An exact one takes one all-reduce; others are gathered and summed in rank order.
        tail: K, further values that each rank tells.

    Attributes:
        count: rounds so far.
    """

    def __init__(self, peers: Peers, encoding: Encoding, tail: int = 0) -> None:
        self.peers, self.count = peers, 0
        self._encoding, self._tail = encoding, tail
        ranks, columns, size = peers.size, _TAIL + tail, encoding.size
        self._feedback = Feedback(encoding)
        self._mean = torch.zeros(size + ranks * columns)
        self._vector, self._table = self._mean[:size], self._mean[size:].view(ranks, columns)
        if not encoding.exact:
            length = 4 * columns + encoding.message_bytes
            length += -length % 4
            self._message = torch.zeros(length, dtype=torch.uint8)
            self._messages = [torch.zeros(length, dtype=torch.uint8) for _ in range(ranks)]
            self._decoded = torch.zeros(size)

    def exchange(
        self,
        vector: Tensor | None,
        weight: float = 1.0,
        *,
        finished: bool = False,
        ends: bool = False,
        tail: Tensor | None = None,
    ) -> Round:
        """Take part in the next round; waits until every rank does. Raises `PeerLost`.

        Args:
            vector: `[P]` on any device; None counts as zeros of weight 0.
            weight: at least 0.
            finished: whether this rank makes no further updates.
            ends: whether this rank ends its pass.
            tail: `[K]`.
        """
        row = torch.zeros(_TAIL + self._tail)
        row[_WEIGHT], row[_FINISHED], row[_ENDS] = weight if vector is not None else 0.0, finished, ends
        if tail is not None:
            row[_TAIL:] = tail
        self._sum(vector, row) if self._encoding.exact else self._gather(vector, row)
        self.count += 1
        table = self._table
        total = float(table[:, _WEIGHT].sum())
        return Round(
            mean=self._vector.div_(total) if total > 0 else None,
            weights=tuple(table[:, _WEIGHT].tolist()),
            finished=tuple(bool(f) for f in table[:, _FINISHED].tolist()),
            ends=bool(table[:, _ENDS].any()),
            tails=table[:, _TAIL:],
        )

    def _sum(self, vector: Tensor | None, row: Tensor) -> None:
        self._mean.zero_()
        if vector is not None:
            self._vector.copy_(vector)
            if float(row[_WEIGHT]) != 1.0:
                self._vector.mul_(row[_WEIGHT])
        self._table[self.peers.rank] = row
        self.peers.sum(self._mean)

    def _gather(self, vector: Tensor | None, row: Tensor) -> None:
        head, length = 4 * row.numel(), self._encoding.message_bytes
        self._message[:head].view(torch.float32).copy_(row)
        if vector is not None:
            self._feedback.encode(vector.cpu(), self._message[head : head + length])
        self.peers.gather(self._message, self._messages)
        self._vector.zero_()
        for rank, message in enumerate(self._messages):
            self._table[rank] = message[:head].view(torch.float32)
            weight = float(self._table[rank, _WEIGHT])
            if weight > 0:
                self._encoding.decode(message[head : head + length], self._decoded)
                self._vector.add_(self._decoded, alpha=weight)
