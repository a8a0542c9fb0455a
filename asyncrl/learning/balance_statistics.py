"""Statistics of a balance, for reports; what the quantities mean stands in `balance.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceStatistics:
    """The balance at one moment.

    Attributes:
        target: samples per insert that is held, None where the pace is free.
        achieved: samples per step inserted after `learning_starts`; 0 before the first.
        inserted_steps, sampled: I and s.
        cursor: production ahead of consumption in samples, equation (1); 0 where the pace is free.
        error_samples: e, the half width of the band; 0 where the pace is free.
        rows_ahead: M, the most rows one ring may be granted ahead.
        received_steps: R, steps that the learner side received; for replay the same as I.
        discipline: `replay`, or the discipline in which segments are consumed.
    """

    target: float | None = None
    achieved: float = 0.0
    inserted_steps: int = 0
    sampled: int = 0
    cursor: float = 0.0
    error_samples: float = 0.0
    rows_ahead: int = 0
    received_steps: int = 0
    discipline: str = "replay"
