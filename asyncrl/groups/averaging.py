"""Fusion by the mean of the weights, with an outer step of Nesterov's momentum where it is asked for.

    Stich 2019             Local SGD converges fast and communicates little
    Douillard et al. 2023  DiLoCo: distributed low-communication training of language models

Every rank holds the same anchor a, the last fused weights. What travels is delta_k = w_k - a, which is small, so that
an encoding loses little of it:

    d = mean of delta_k          a += d                                without momentum: a is the mean of the weights
                                 v = mu v + d;  a += eta (mu v + d)    DiLoCo, with momentum mu and outer rate eta

Where the optimiser's moments are fused too they follow the weights in the vector, and are the plain mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.groups.rounds import Rounds
from asyncrl.groups.statistics import FusionStatistics


class AverageFuser:
    """One rank's half of averaging. Implements `Fuser`.

    Args:
        rounds: with the other groups.
        anchor: `[P]`, the values that all ranks start from; copied.
        learning_rate: eta, the outer rate.
        momentum: mu, 0 for the plain mean.
        weights: leading values that the outer step is for; None: all.

    Attributes:
        anchor: the last fused values, the same on every rank.
    """

    def __init__(
        self,
        rounds: Rounds,
        anchor: Tensor,
        *,
        learning_rate: float = 1.0,
        momentum: float = 0.0,
        weights: int | None = None,
    ) -> None:
        self._rounds = rounds
        self._rate, self._momentum = learning_rate, momentum
        self.anchor = anchor.detach().to("cpu", torch.float32, copy=True)
        self._weights = slice(weights)
        self._velocity = torch.zeros_like(self.anchor[self._weights])

    @torch.no_grad()
    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """See `Fuser`. Raises `PeerLost`."""
        self._rounds.begin(torch.sub(snapshot, self.anchor, out=self._rounds.room), finished=finished)

    def done(self) -> bool:
        """See `Fuser`."""
        return self._rounds.done()

    @torch.no_grad()
    def end(self) -> tuple[Tensor, bool]:
        """See `Fuser`; final where every group has finished. Raises `PeerLost`."""
        round_ = self._rounds.end()
        mean = round_.mean(out=round_.total)
        if self._momentum:
            self._velocity.mul_(self._momentum).add_(mean[self._weights])
            self.anchor[self._weights].add_(self._velocity, alpha=self._rate * self._momentum)
        if self._rate != 1.0:
            mean[self._weights].mul_(self._rate)
        self.anchor.add_(mean)
        return self.anchor, round_.finished

    def close(self) -> None:
        """See `Fuser`."""
        self._rounds.peers.close()

    def statistics(self) -> FusionStatistics:
        """See `Fuser`."""
        peers = self._rounds.peers
        return FusionStatistics(self._rounds.count, 0, peers.sent_bytes, peers.received_bytes)
