"""Statistics of a balance, for reports; `balance.py` defines the quantities."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceStatistics:
    """State of a balance at one moment.

    Attributes:
        target: target of samples per insert; None if the pace is free.
        achieved: samples per step inserted after `learning_starts`; 0 before the first.
        inserted_steps, sampled: I and s.
        cursor: production ahead of consumption in samples, equation (1); 0 if the pace is free.
        error_samples: bound of the cursor in samples, see `balance.py`; 0 if the pace is free.
        rows_ahead: M, maximum number of rows granted ahead per ring.
        received_steps: steps received by the learner; equal to I for replay.
        discipline: `replay`, or the discipline of segments or lockstep replay.
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
