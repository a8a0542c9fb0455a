"""Rules by which a replay makes priorities of errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PriorityRules:
    """How priorities are made of errors.

    Attributes:
        alpha: exponent, 0 (uniform) to 1 (proportional).
        uniform: sample all alike and ignore `update_priorities`.
        priority_eps: added to |TD error|, so that everything keeps a chance.
        priority_window_updates: calls of `update_priorities` in a window; what is new gets the largest priority of the
            present and the previous window.
    """

    alpha: float = 0.6
    uniform: bool = False
    priority_eps: float = 1e-6
    priority_window_updates: int = 1_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha must be between 0 and 1, got {self.alpha}")
        if not 1e-30 <= self.priority_eps <= 1e30:
            raise ValueError(f"priority_eps must be between 1e-30 and 1e30, got {self.priority_eps}")
        if self.priority_window_updates < 1:
            raise ValueError(
                f"priority_window_updates must be at least 1, got {self.priority_window_updates}"
            )
