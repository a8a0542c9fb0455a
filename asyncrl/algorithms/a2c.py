"""A2C, the synchronous advantage actor-critic: IMPALA without policy lag.

    Mnih et al. 2016        Asynchronous methods for deep reinforcement learning
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation

Actors wait until the learner has trained on their segments, so every action comes from the newest policy, V-trace
equals generalized advantage estimation (`returns.py`), and no correction is needed. With another `discipline` it is the
uncorrected asynchronous actor-critic, the baseline for IMPALA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from asyncrl.algorithms.impala import IMPALA


@dataclass(frozen=True, kw_only=True)
class A2C(IMPALA):
    """Hyper-parameters of A2C: those of IMPALA, with other defaults."""

    name: ClassVar[str] = "a2c"

    correction: Literal["vtrace", "none"] = "none"
    discipline: Literal["relaxed", "lockstep", "synchronous"] = "synchronous"
