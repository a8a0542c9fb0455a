"""Statistics of each group of a run, for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class GroupStatistics:
    """Latest reported statistics of one group of a run with several groups.

    Attributes:
        rank, host, fusion: the group's rank, its machine, and how the groups are fused.
        state: `"starting"`, `"training"`, `"finishing"`, `"finished"` or `"ended"`.
        fusions: fusions so far; rank 0 with `async` counts those of all groups.
        discarded: number of deltas discarded as too stale; counted by rank 0 of `async`.
        sent_bytes, received_bytes: payload of the group's messages.
        wait_seconds: time in which the group's learner waited for other groups; measured with fused gradients.
        policy_lag_mean: mean policy lag of all steps that the group has received, in updates.
        staleness_mean, staleness_max: fusions between the base of a delta and its own fusion (`async`).
    """

    rank: int
    host: str = ""
    fusion: str = ""
    state: str = "starting"
    env_steps: int = 0
    updates: int = 0
    env_steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    fusions: int = 0
    discarded: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_seconds: float = 0.0
    policy_lag_mean: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0


def summary_of(groups: Sequence[GroupStatistics]) -> dict[str, Any]:
    """Entries `groups` and `fusions` of `summary.json`; empty for a run with one group.

    With `async`, rank 0 counts the deltas of all groups; otherwise every group takes part in every fusion.
    """
    if not groups:
        return {}
    first = groups[0]
    return {
        "groups": [asdict(group) for group in groups],
        "fusions": {
            "mode": first.fusion,
            "count": first.fusions,
            "discarded": first.discarded,
            "sent_bytes": sum(group.sent_bytes for group in groups),
            "received_bytes": sum(group.received_bytes for group in groups),
            "staleness": {"mean": first.staleness_mean, "max": first.staleness_max},
        },
    }
