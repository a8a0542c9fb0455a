"""Rules for the priorities of a replay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PriorityRules:
    """Rules that turn absolute TD errors into priorities.

    Attributes:
        alpha: exponent, 0 (uniform) to 1 (proportional).
        uniform: sample uniformly and ignore `update_priorities`.
        priority_eps: added to |TD error|, so that every priority is above zero; from 1e-30 to 1e30.
        priority_window_updates: calls of `update_priorities` in a window, at least 1; new rows get the largest priority
            of the current and the previous window.

    Raises:
        ValueError: a value is out of its range.
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
