"""Rules for the priorities of a replay.

Priorities do not decay with staleness. DistRL (arXiv 2410.14803) puts a factor for the policies' ratio and one for the
age on |error|^alpha. No replay here stores the behaviour policy's probability, so only the age could be tried: the
factor (1 + s)^-c, s updates since the acting weights. DQN on CartPole-v1, one of eight actors ten times slower, replay
of 4,096 steps (`benchmarks/learning/priority_decay.py`, 5 seeds, steps to a greedy 475):

    uniform             36,000 (3 of 5 within 40,000)
    prioritized         29,000 (5 of 5; worst 34,500)
    c = 0.25            25,000 (5 of 5; worst 33,500), by seed +5,000, -7,500, -2,500, +3,000 and -9,500
    c = 1               24,500 (4 of 5)

It makes samples younger (95th percentile of s 768, 448, 320 updates), but no difference to `prioritized` is beyond the
spread of the seeds, and c = 1 loses one. So there is no option for it.
"""

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
