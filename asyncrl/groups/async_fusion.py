"""Fusion of weights by `async`: rank 0 owns the fused weights F, and every group sends it its changes when it likes.

    group     delta since its base  ──────>  rank 0    F += weight * delta
              base = F              <──────            its newest F

    Dean et al. 2012           Large scale distributed deep networks (Downpour SGD: updates are added as they arrive)
    Xie, Koyejo, Gupta 2019    Asynchronous federated optimization (polynomial weight (1 + s)^-a)

A delta is the change of a group's weights since it received the fused weights of version b. If it arrives at version v,
its staleness is s = v - b fusions, and

    F += (1 + s)^-a delta,  v += 1        for s <= the maximum staleness; otherwise it is counted and dropped.

FedAsync mixes instead, F <- (1 - w) F + w x with the group's weights x. Here deltas are added in full: N groups of one
speed move F by the sum of what they learned, about sqrt(N) times the mean if their deltas are independent.

Fusing three deltas at a time (FedBuff, Nguyen et al. 2022), as a sum or a mean, took as many steps and bytes to a
target as fusing each as it comes (docs/results.md, "Buffered fusion"), so there is no option for it.

Of running statistics a delta holds the values x, and F <- (1 - w) F + w x with the same weight w = (1 + s)^-a.

Each group has its own connection, served by a thread of rank 0, so that a slow, suspended or dead group delays no
other. A group that was restarted makes a new connection, receives the fused weights, and continues.

If the encoding of messages (`AsyncMessage`) is lossy, rank 0 keeps a copy of the weights that the group has and
sends the difference to them, so that the error of one message is corrected by the next. For each group it also merges
the other groups' statistics that have not been sent to it yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.groups.messages import AsyncMessage, Encoding, Feedback
from asyncrl.groups.peers import Peers
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.weight_fusion import Deltas

EXPONENT = 0.5
"""a, as in Xie et al."""
LOOK_SECONDS = 0.2
"""Interval at which a new connection of a group is polled for."""
FINISH_SECONDS = 30.0
"""Time limit, at the end, of waiting for the other groups' last deltas."""

Connect = Callable[[int], Peers | None]
"""Function from a rank to its next connection; None while there is none."""


class FusedWeights:
    """Fused weights F and their version; any thread.

    Args:
        weights: `[P]`, version 0; copied.
        max_staleness: largest staleness of a delta that is fused.
        deltas: rules of the deltas.

    Attributes:
        deltas: as given.
        version: number of deltas that were fused.
        discarded: number of deltas that were too stale.
    """

    def __init__(self, weights: Tensor, max_staleness: int, deltas: Deltas | None = None) -> None:
        self.deltas = deltas or Deltas()
        self._weights = weights.detach().to("cpu", torch.float32, copy=True)
        self._max_staleness = max_staleness
        self._lock = threading.Lock()
        self.version = self.discarded = 0

    def take(self, delta: Tensor, base: int, out: Tensor) -> tuple[int, int]:
        """Fuse `delta` `[P]`, learned since version `base`; copy the fused weights into `out`.

        Returns:
            The version of `out`, and the staleness of `delta`.
        """
        with self._lock:
            staleness = self.version - base
            assert staleness >= 0, "a base is a version that was handed out"
            if staleness <= self._max_staleness:
                self.deltas.add(self._weights, delta, self.weight(staleness))
                self.version += 1
            else:
                self.discarded += 1
            out.copy_(self._weights)
            return self.version, staleness

    def copy(self, out: Tensor) -> int:
        """Copy the fused weights into `out`; returns their version."""
        with self._lock:
            out.copy_(self._weights)
            return self.version

    def weight(self, staleness: int) -> float:
        """Weight of a delta of that staleness."""
        return float((1 + staleness) ** -EXPONENT)


class AsyncServer:
    """Serves the fused weights to the other ranks and, as its `Fuser`, to rank 0's own learner.

    Attributes:
        lost: ranks that are disconnected now, with the cause.
    """

    def __init__(
        self,
        weights: FusedWeights,
        encoding: Encoding,
        ranks: Sequence[int],
        connect: Connect,
        shared: SharedStatistics,
    ) -> None:
        self.lost: dict[int, str] = {}
        self._weights, self._encoding, self._connect = weights, encoding, connect
        self._shared = shared
        self._unsent = {rank: np.zeros(shared.size, np.float32) for rank in (0, *ranks)}
        self._base, self._delta = torch.empty(encoding.size), torch.empty(encoding.size)
        self._ending = False
        self._version = weights.copy(self._base)
        self._closed = threading.Event()
        self._finished: set[int] = set()
        self._changed = threading.Condition()
        self._connections: dict[int, Peers] = {}
        self._fusions = self._staleness_sum = self._staleness_max = 0
        self._bytes = [0, 0]
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"asyncrl-group-{rank}", daemon=True)
            for rank in ranks
        ]
        for thread in self._threads:
            thread.start()

    # --- rank 0's own learner ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """See `Fuser`; the snapshot is fused at once."""
        delta = self._weights.deltas.between(self._base, snapshot, self._delta)
        self._version, staleness = self._weights.take(delta, self._version, self._base)
        self._count(staleness)
        self._ending = finished
        self._shared.merge(self._pass_on(0, self._shared.take_message()))

    def done(self) -> bool:
        """See `Fuser`."""
        return True

    def end(self) -> tuple[Tensor, bool]:
        """See `Fuser`; the last one waits for the groups that are connected, at most `FINISH_SECONDS`.

        A group that has finished, is lost or has not come yet has no delta to wait for.
        """
        if self._ending:
            with self._changed:
                self._changed.wait_for(self._all_gone, FINISH_SECONDS)
            self._version = self._weights.copy(self._base)
        return self._base, self._ending

    def _all_gone(self) -> bool:
        return self._closed.is_set() or not self._connections

    def close(self) -> None:
        """Close all connections and end the threads; any thread, idempotent."""
        self._closed.set()
        with self._changed:
            for peers in self._connections.values():
                peers.close()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def statistics(self) -> dict[str, float]:
        """See `Fuser`; counts the deltas of all groups."""
        sent, received = self._bytes
        for peers in list(self._connections.values()):
            sent, received = sent + peers.sent_bytes, received + peers.received_bytes
        return {
            "fusions": self._weights.version,
            "discarded": self._weights.discarded,
            "sent_bytes": sent,
            "received_bytes": received,
            "staleness_mean": self._staleness_sum / max(1, self._fusions),
            "staleness_max": self._staleness_max,
        }

    def _count(self, staleness: int) -> None:
        with self._changed:  # every group has its thread
            self._fusions += 1
            self._staleness_sum += staleness
            self._staleness_max = max(self._staleness_max, staleness)

    # --- a group's thread --------------------------------------------------------------------------------------------

    def _serve(self, rank: int) -> None:
        """Serve the group's connections, one after the other."""
        torch.set_num_threads(1)
        while not self._closed.is_set() and rank not in self._finished:
            try:
                peers = self._connect(rank)
                if peers is None:
                    self._closed.wait(LOOK_SECONDS)
                    continue
                self._note(rank, peers)
                self._serve_life(rank, peers)
            except Exception as error:  # a broken connection; a store or a learner that does not answer
                self._note(rank, None, str(error) or type(error).__name__)
                self._closed.wait(LOOK_SECONDS)

    @torch.no_grad()
    def _serve_life(self, rank: int, peers: Peers) -> None:
        encoding, deltas = self._encoding, self._weights.deltas
        fused = torch.empty(encoding.size)
        version = self._weights.copy(fused)
        held, delta = fused.clone(), torch.empty(encoding.size)
        peers.broadcast(torch.tensor([version]), 0)
        peers.broadcast(held.clone(), 0)
        message = AsyncMessage(encoding, self._shared.size)
        while True:
            peers.broadcast(message.bytes, 1)
            base, finished = int(message.head[0]), bool(message.head[1])
            encoding.decode(message.body, delta)
            version, staleness = self._weights.take(delta, base, fused)
            self._count(staleness)
            message.head[0], message.head[1] = version, staleness
            message.statistics[:] = self._pass_on(rank, message.statistics)
            encoding.encode(fused if encoding.exact else deltas.between(held, fused, delta), message.body)
            if not encoding.exact:
                encoding.decode(message.body, delta)
                deltas.add(held, delta)
            peers.broadcast(message.bytes, 0)
            if finished:
                self._note(rank, None, finished=True)
                return

    def _pass_on(self, rank: int, statistics: NDArray[np.float32]) -> NDArray[np.float32]:
        """Store the statistics from `rank` for the other groups; returns theirs since the last message to `rank`."""
        if not self._shared.size:
            return statistics
        with self._changed:
            for other, unsent in self._unsent.items():
                if other != rank:
                    self._unsent[other] = self._shared.merged(unsent, statistics)
            collected, self._unsent[rank] = self._unsent[rank], np.zeros(self._shared.size, np.float32)
            return collected

    def _note(self, rank: int, peers: Peers | None, cause: str = "", finished: bool = False) -> None:
        """Record that a group has connected (with `peers`), has finished, or was lost."""
        with self._changed:
            before = self._connections.pop(rank, None)
            if before is not None:
                self._bytes = [self._bytes[0] + before.sent_bytes, self._bytes[1] + before.received_bytes]
            self.lost.pop(rank, None)
            if finished:
                self._finished.add(rank)
            elif peers is not None:
                self._connections[rank] = peers
                # It has just received rank 0's state.
                self._unsent[rank] = np.zeros(self._shared.size, np.float32)
            else:
                self.lost[rank] = cause
            self._changed.notify_all()


class AsyncClient:
    """A group's connection to the fused weights. Implements `Fuser`; see `AsyncServer` for the messages.

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
