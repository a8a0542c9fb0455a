"""Fusion by the mean of the weights, optionally with an outer step with Nesterov momentum.

    Stich 2019             Local SGD converges fast and communicates little
    Douillard et al. 2023  DiLoCo: distributed low-communication training of language models

Every rank has the same anchor a, the last fused weights. The messages contain delta_k = w_k - a, which is small, so
that lossy encodings have small errors:

    d = mean of delta_k          a += d                                without momentum: a is the mean of the weights
                                 v = mu v + d;  a += eta (mu v + d)    DiLoCo, with momentum mu and outer rate eta

Running statistics are averaged without an outer step (see `Deltas`).

If the optimiser's moments are fused too, they follow the weights in the vector, and are averaged without an outer step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.groups.deltas import Deltas
from asyncrl.groups.rounds import Rounds


class AverageFuser:
    """One rank's side of averaging. Implements `Fuser`.

    Args:
        rounds: rounds with the other groups.
        anchor: `[P]`, the values that all ranks start from; copied.
        learning_rate: eta, the outer learning rate.
        momentum: mu, 0 for the plain mean.
        weights: number of leading values to which the outer step applies; None for all.
        deltas: rules of the deltas.

    Attributes:
        anchor: the last fused values, equal on all ranks.
    """

    def __init__(
        self,
        rounds: Rounds,
        anchor: Tensor,
        *,
        learning_rate: float = 1.0,
        momentum: float = 0.0,
        weights: int | None = None,
        deltas: Deltas | None = None,
    ) -> None:
        self._rounds, self._deltas = rounds, deltas or Deltas()
        self._rate, self._momentum = learning_rate, momentum
        self.anchor = anchor.detach().to("cpu", torch.float32, copy=True)
        self._weights = slice(weights)
        self._velocity = torch.zeros_like(self.anchor[self._weights])

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """See `Fuser`. Raises `PeerLost`."""
        self._rounds.begin(self._deltas.between(self.anchor, snapshot, self._rounds.room), finished=finished)

    def done(self) -> bool:
        """See `Fuser`."""
        return self._rounds.done()

    def end(self) -> tuple[Tensor, bool]:
        """See `Fuser`; final if every group has finished. Raises `PeerLost`."""
        round_ = self._rounds.end()
        mean, buffers = round_.mean(out=round_.total), self._deltas.buffers
        statistics = mean[:0] if buffers is None else mean[buffers]
        if self._momentum:
            self._velocity.mul_(self._momentum).add_(mean[self._weights])
            self.anchor[self._weights].add_(self._velocity, alpha=self._rate * self._momentum)
        if self._rate != 1.0:
            mean[self._weights].mul_(self._rate)
        self.anchor.add_(mean)
        if buffers is not None:
            self.anchor[buffers] = statistics
        return self.anchor, round_.finished

    def close(self) -> None:
        """See `Fuser`."""
        self._rounds.peers.close()

    def statistics(self) -> dict[str, float]:
        """See `Fuser`."""
        return self._rounds.statistics()
