"""Statistics of a group's fusion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusionStatistics:
    """Statistics of one group's fusion.

    Attributes:
        fusions: times that this group's vector was fused with those of others.
        discarded: of them, deltas that were too stale to count.
        sent_bytes, received_bytes: payload of the messages.
        wait_seconds: how long the learner has waited for other groups.
        staleness_mean, staleness_max: fusions of other groups between a delta's base and its fusion; 0 but for `async`.
    """

    fusions: int = 0
    discarded: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_seconds: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
