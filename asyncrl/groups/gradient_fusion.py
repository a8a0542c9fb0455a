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

If advantages are standardised, their mean and standard deviation are those of all groups' batches: before it
standardises, a group takes part in a round without a gradient. If the others are at a step then, because their batches
have more or fewer steps, the group makes that step too.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from asyncrl.groups.device_sums import Sums
from asyncrl.groups.messages import Encoding
from asyncrl.groups.peers import Peers
from asyncrl.groups.rounds import Round, Rounds
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.state import Core, share
from asyncrl.networks.flat_vector import NO_VALUES, Moments


class GradientFusion:
    """One group's side of the fusion of gradients; learner's thread only, except `close` and `statistics`.

    Args:
        core: the learner's updater.
        peers, encoding, shared, sums: see `Rounds`.
    """

    def __init__(
        self,
        core: Core,
        peers: Peers,
        encoding: Encoding,
        shared: SharedStatistics | None = None,
        sums: Sums | None = None,
    ) -> None:
        self._core, scaled = core, core.vector.weighted
        self._rounds = Rounds(peers, encoding, len(Moments._fields), shared=shared, sums=sums, scaled=scaled)
        self._wait_seconds = 0.0
        self._moments = NO_VALUES
        core.vector.on_step, core.vector.on_moments = self._fuse, self._union

    def _fuse(self, samples: float, ends: bool, part: slice) -> bool:
        """Make one update's round; returns whether the pass ends, which it does for all groups if for one."""
        started = time.perf_counter()
        vector = self._core.vector
        weight, largest, drawn = samples, 1.0, vector.drawn
        if drawn is not None:
            weight, largest = samples * drawn.priority, drawn.largest_weight
        given = None if ends else vector.gradient
        self._rounds.begin(given, weight, scale=largest, ends=ends, tail=self._moments, part=part)
        round_ = self._rounds.end()
        self._take(round_, part)
        self._wait_seconds += time.perf_counter() - started
        return round_.ends

    def _union(self, own: Moments) -> tuple[Moments, bool]:
        """Moments of all groups' batches, and whether there is a gradient for a step that the others make."""
        started = time.perf_counter()
        self._moments = own
        round_ = self._rounds.exchange(None, tail=own)
        count, mean, square = round_.tails.astype(np.float64).T
        total = max(1.0, count.sum())
        middle = (count * mean).sum() / total
        spread = (square + count * (mean - middle) ** 2).sum()
        stepped = self._take(round_)
        self._wait_seconds += time.perf_counter() - started
        return Moments(count.sum(), middle, spread), stepped

    def _take(self, round_: Round, part: slice = slice(None)) -> bool:
        """Fill a part of the gradient with the mean of a round; returns whether any group gave one."""
        if round_.weight <= 0:
            return False
        vector = self._core.vector
        round_.mean(vector.gradient[part], part)
        if (most := round_.largest_scale) != 1.0:
            vector.gradient[vector.weighted].div_(most)
        return True

    def finish(self) -> None:
        """Stay in the rounds until every group has finished; then all have the same state. Raises `PeerLost`."""
        self._core.vector.on_step = self._core.vector.on_moments = None
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

    def statistics(self) -> dict[str, float]:
        """Statistics so far; any thread."""
        return {**self._rounds.statistics(), "wait_seconds": self._wait_seconds}
