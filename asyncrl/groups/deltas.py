"""Changes of a learner's vector since a base, as groups send and add them.

A vector may contain running statistics, such as the means and variances of batch normalisation. These are not sums of
steps: added to each other, or extrapolated, changes of a variance make it negative. So a message holds a statistic's
value in place of its change, and fusing mixes values.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Deltas:
    """Rules by which a vector's values are sent and fused.

    Args:
        buffers: `[K]` int64, positions of the running statistics; None or empty without any.

    Attributes:
        buffers: as given; None without any.
    """

    def __init__(self, buffers: Tensor | None = None) -> None:
        self.buffers = buffers if buffers is not None and buffers.numel() else None

    def between(self, base: Tensor, vector: Tensor, out: Tensor) -> Tensor:
        """Write the change from `base` to `vector` into `out` and return it, all `[P]`; values of the statistics."""
        torch.sub(vector, base, out=out)
        if self.buffers is not None:
            out[self.buffers] = vector[self.buffers]
        return out

    def add(self, base: Tensor, delta: Tensor, weight: float = 1.0) -> None:
        """Add `weight * delta` to `base` in place; statistics become (1 - weight) base + weight delta.

        Args:
            base: `[P]`.
            delta: `[P]`, as `between` returns it.
            weight: from 0 to 1.
        """
        if self.buffers is None:
            base.add_(delta, alpha=weight)
            return
        mixed = torch.lerp(base[self.buffers], delta[self.buffers], weight)
        base.add_(delta, alpha=weight)
        base[self.buffers] = mixed
