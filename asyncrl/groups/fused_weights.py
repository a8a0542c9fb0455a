"""Fused weights of `async`: deltas are added in order of arrival, weighted by their staleness. No communication here.

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
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from asyncrl.groups.deltas import Deltas

EXPONENT = 0.5
"""a, as in Xie et al."""


class FusedWeights:
    """Fused weights F and their version; any thread.

    Args:
        weights: `[P]`, version 0; copied.
        max_staleness: largest staleness of a delta that is fused.
        exponent: a; 0 gives all deltas weight 1.
        deltas: rules of the deltas.

    Attributes:
        deltas: as given.
        version: number of deltas that were fused.
        discarded: number of deltas that were too stale.
    """

    def __init__(
        self,
        weights: Tensor,
        max_staleness: int,
        exponent: float = EXPONENT,
        deltas: Deltas | None = None,
    ) -> None:
        self.deltas = deltas or Deltas()
        self._weights = weights.detach().to("cpu", torch.float32, copy=True)
        self._max_staleness, self._exponent = max_staleness, exponent
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
        return float((1 + staleness) ** -self._exponent)
