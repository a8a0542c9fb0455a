"""Statistics of a group's fusion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusionStatistics:
    """Statistics of one group's fusion.

    Attributes:
        fusions: number of fusions of this group's vector; on rank 0 of `async`, of the deltas of all groups.
        discarded: number of deltas that were too stale and dropped; counted on rank 0 of `async` only.
        sent_bytes, received_bytes: payload of the messages.
        wait_seconds: time that the learner has waited for other groups; measured with fused gradients only.
        staleness_mean, staleness_max: fusions between a delta's base and its own fusion; 0 except with `async`.
    """

    fusions: int = 0
    discarded: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_seconds: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
