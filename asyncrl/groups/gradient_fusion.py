"""Fusion of gradients: at every update the mean over all groups' samples replaces each group's own gradient.

All groups make the same updates of the same weights, as one learner would with the union of their batches. A group that
has used up its steps stays in the rounds with weight 0; at the end it takes over the state of a group that continued.

If batches are drawn from replay, the groups' shards are one replay, stratified over the shards (the parallel learners
of Zhang et al. 2021, PAL). Let shard g have total priority P_g, let its group draw B items with probability p_i / P_g
each, and let f_i be the gradient at an item. An unbiased estimate of one replay's expectation is

    sum_g P_g mean_g(w_i f_i) / sum_g P_g                                                       (1)
    w_i = (p_i / p_min)^-beta        p_min the smallest p_i drawn by any group                   (2)

A group has divided its weights by its own largest, so it multiplies its gradient by that before the sum, and all groups
divide by the largest of all after it. This is exact, and needs no message before the update.
"""

from __future__ import annotations

import time

import torch

from asyncrl.groups.fusing import FusionStatistics
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.state import Core, share


class GradientFusion:
    """One group's side of the fusion of gradients; learner's thread only, except `close` and `statistics`.

    Args:
        rounds: rounds with the other groups, with a tail of one value.
        core: the learner's updater.
    """

    def __init__(self, rounds: Rounds, core: Core) -> None:
        self._rounds, self._core = rounds, core
        self._wait_seconds = 0.0
        core.vector.on_step = self._fuse

    def _fuse(self, samples: float, ends: bool) -> bool:
        """Make one update's round; returns whether the pass ends, which it does for all groups if for one."""
        started = time.perf_counter()
        vector = self._core.vector
        weight, largest, drawn = samples, 1.0, vector.drawn
        weighted = vector.gradient[vector.weighted]
        if drawn is not None:
            weight, largest = samples * drawn.priority, drawn.largest_weight
        if largest != 1.0:
            weighted.mul_(largest)
        self._rounds.begin(None if ends else vector.gradient, weight, ends=ends, tail=(largest,))
        round_ = self._rounds.end()
        if round_.weight > 0:
            round_.mean(out=vector.gradient)
            if (most := float(round_.tails.max())) != 1.0:
                weighted.div_(most)
        self._wait_seconds += time.perf_counter() - started
        return round_.ends

    def finish(self) -> None:
        """Stay in the rounds until every group has finished; then all have the same state. Raises `PeerLost`."""
        self._core.vector.on_step = None
        behind = False
        while not self._rounds.exchange(None, finished=True).finished:
            behind = True
        peers = self._rounds.peers
        flags = [torch.zeros(1) for _ in range(peers.size)]
        peers.gather(torch.tensor([float(behind)]), flags)
        if any(flags):
            share(self._core, peers, source=next(rank for rank, flag in enumerate(flags) if not flag))

    def close(self) -> None:
        """Close: a waiting call raises `PeerLost` within half a second. Any thread, idempotent."""
        self._rounds.peers.close()

    def statistics(self) -> FusionStatistics:
        """Statistics so far; any thread."""
        peers = self._rounds.peers
        return FusionStatistics(
            fusions=self._rounds.count,
            sent_bytes=peers.sent_bytes,
            received_bytes=peers.received_bytes,
            wait_seconds=self._wait_seconds,
        )
