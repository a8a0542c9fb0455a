"""Rules that the records of all on-policy algorithms share."""

from __future__ import annotations

LAG = {"relaxed": 0, "lockstep": 1, "synchronous": 0}
"""Staleness that a segment has at least, once training goes on."""


def require_lag_within_bound(discipline: str, max_staleness: int | None) -> None:
    """Raise ValueError where the discipline's own lag is over the staleness bound: nothing could be learned from."""
    if max_staleness is not None and max_staleness < LAG[discipline]:
        raise ValueError(
            f"max_staleness must be at least {LAG[discipline]} with discipline {discipline!r}, whose segments are so "
            f"many versions old, got {max_staleness}"
        )
