"""Client of `async` fusion: sends the change of the weights since its base, and gets the newest fused weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.groups.deltas import Deltas
from asyncrl.groups.messages import AsyncMessage, Encoding, Feedback
from asyncrl.groups.peers import Peers
from asyncrl.groups.shared_statistics import SharedStatistics


class AsyncClient:
    """A group's connection to the fused weights. Implements `Fuser`; see `AsyncServer` for the messages.

    Args:
        peers: the connection to rank 0.
        encoding: encoding of the messages.
        shared: statistics that are part of the messages.
        deltas: rules of the deltas.

    Attributes:
        base: `[P]`, the fused weights that this group received last; at first those to start from.

    Raises:
        PeerLost: rank 0 does not answer.
    """

    def __init__(
        self, peers: Peers, encoding: Encoding, shared: SharedStatistics, deltas: Deltas | None = None
    ) -> None:
        self._deltas = deltas or Deltas()
        self._peers, self._encoding, self._shared = peers, encoding, shared
        self.base = torch.empty(encoding.size)
        version = torch.empty(1, dtype=torch.int64)
        peers.broadcast(version, 0)
        peers.broadcast(self.base, 0)
        self._version = int(version)
        self._feedback = Feedback(encoding)
        self._change = torch.empty(encoding.size)
        self._sent, self._answer = (AsyncMessage(encoding, shared.size) for _ in range(2))
        self._work: tuple[Any, Any] = (None, None)
        self._finished = False
        self._fusions = self._staleness_sum = self._staleness_max = 0

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """See `Fuser`. Raises `PeerLost`."""
        sent, peers = self._sent, self._peers
        sent.head[0], sent.head[1] = self._version, finished
        self._shared.take_message(out=sent.statistics)
        self._feedback.encode(self._deltas.between(self.base, snapshot, self._change), sent.body)
        self._finished = finished
        self._work = peers.begin_broadcast(sent.bytes, 1), peers.begin_broadcast(self._answer.bytes, 0)

    def done(self) -> bool:
        """See `Fuser`."""
        return bool(self._work[1].is_completed())

    def end(self) -> tuple[Tensor, bool]:
        """See `Fuser`; final if `finished`. Raises `PeerLost`."""
        for work in self._work:
            self._peers.wait(work)
        answer, encoding = self._answer, self._encoding
        self._version, staleness = int(answer.head[0]), int(answer.head[1])
        self._shared.merge(answer.statistics)
        if encoding.exact:
            encoding.decode(answer.body, self.base)
        else:
            encoding.decode(answer.body, self._change)
            self._deltas.add(self.base, self._change)
        self._fusions += 1
        self._staleness_sum += staleness
        self._staleness_max = max(self._staleness_max, staleness)
        return self.base, self._finished

    def close(self) -> None:
        """See `Fuser`."""
        self._peers.close()

    def statistics(self) -> dict[str, float]:
        """See `Fuser`; counts this group's own deltas."""
        return {
            "fusions": self._fusions,
            "sent_bytes": self._peers.sent_bytes,
            "received_bytes": self._peers.received_bytes,
            "staleness_mean": self._staleness_sum / max(1, self._fusions),
            "staleness_max": self._staleness_max,
        }
