"""The side of `async` that learns: sends what it has learned since its base, and goes on with the newest weights."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.groups.async_server import HEAD_BYTES
from asyncrl.groups.messages import Encoding, Feedback
from asyncrl.groups.peers import Peers
from asyncrl.groups.statistics import FusionStatistics


class AsyncClient:
    """A group's connection to the fused weights. Implements `Fuser`; see `AsyncServer` for the messages.

    Args:
        peers: the connection to rank 0.
        encoding: of the messages.

    Attributes:
        base: `[P]`, the fused weights as this group received them last; at first those to start from.

    Raises:
        PeerLost: rank 0 does not answer.
    """

    def __init__(self, peers: Peers, encoding: Encoding) -> None:
        self._peers, self._encoding = peers, encoding
        self.base = torch.empty(encoding.size)
        version = torch.empty(1, dtype=torch.int64)
        peers.broadcast(version, 0)
        peers.broadcast(self.base, 0)
        self._version = int(version)
        self._feedback = Feedback(encoding)
        self._message = torch.empty(HEAD_BYTES + encoding.message_bytes, dtype=torch.uint8)
        self._fusions = self._staleness_sum = self._staleness_max = 0

    @torch.no_grad()
    def fuse(self, snapshot: Tensor, finished: bool) -> tuple[Tensor, bool]:
        """See `Fuser`; final where `finished`. Raises `PeerLost`."""
        message, encoding = self._message, self._encoding
        head, body = message[:HEAD_BYTES].view(torch.int64), message[HEAD_BYTES:]
        head[0], head[1] = self._version, finished
        self._feedback.encode(snapshot - self.base, body)
        self._peers.broadcast(message, 1)
        self._peers.broadcast(message, 0)
        self._version, staleness = int(head[0]), int(head[1])
        if encoding.exact:
            encoding.decode(body, self.base)
        else:
            change = torch.empty(encoding.size)
            encoding.decode(body, change)
            self.base.add_(change)
        self._fusions += 1
        self._staleness_sum += staleness
        self._staleness_max = max(self._staleness_max, staleness)
        return self.base, finished

    def close(self) -> None:
        """See `Fuser`."""
        self._peers.close()

    def statistics(self) -> FusionStatistics:
        """See `Fuser`; of this group's own deltas."""
        return FusionStatistics(
            fusions=self._fusions,
            sent_bytes=self._peers.sent_bytes,
            received_bytes=self._peers.received_bytes,
            staleness_mean=self._staleness_sum / max(1, self._fusions),
            staleness_max=self._staleness_max,
        )
