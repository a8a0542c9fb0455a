"""Fusion of gradients: at every update the mean over all groups' samples takes the place of the own gradient.

All groups make the same updates of the same weights, as one learner would with the union of their batches. A group that
has used up its steps stays in the rounds with weight 0; at the end it takes over the state of those that went on.
"""

from __future__ import annotations

import time

import torch

from asyncrl.groups.rounds import Rounds
from asyncrl.groups.state import Core, share
from asyncrl.groups.statistics import FusionStatistics


class GradientFusion:
    """One group's part in the fusion of gradients; learner's thread only.

    Args:
        rounds: with the other groups.
        core: the learner's.
    """

    def __init__(self, rounds: Rounds, core: Core) -> None:
        self._rounds, self._core = rounds, core
        self._wait_seconds = 0.0
        core.vector.on_step = self._fuse

    def _fuse(self, samples: float, ends: bool) -> bool:
        """One update's round. A pass ends for all groups where it ends for one."""
        started = time.perf_counter()
        gradient = self._core.vector.gradient
        round_ = self._rounds.exchange(None if ends else gradient, samples, ends=ends)
        self._wait_seconds += time.perf_counter() - started
        if round_.mean is not None:
            gradient.copy_(round_.mean)
        return round_.ends

    def finish(self) -> None:
        """Stay in the rounds until every group has finished; all of them have the same state then.

        Raises `PeerLost`.
        """
        self._core.vector.on_step = None
        behind = False
        while not all(self._rounds.exchange(None, finished=True).finished):
            behind = True
        peers = self._rounds.peers
        flags = [torch.zeros(1) for _ in range(peers.size)]
        peers.gather(torch.tensor([float(behind)]), flags)
        if any(flags):
            share(self._core, peers, source=next(rank for rank, flag in enumerate(flags) if not flag))

    def abort(self) -> None:
        """Let whoever waits raise `PeerLost` within half a second; any thread."""
        self._rounds.peers.close()

    def close(self) -> None:
        """See `abort`; there is no thread to end."""
        self.abort()

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        peers = self._rounds.peers
        return FusionStatistics(
            fusions=self._rounds.count,
            sent_bytes=peers.sent_bytes,
            received_bytes=peers.received_bytes,
            wait_seconds=self._wait_seconds,
        )
