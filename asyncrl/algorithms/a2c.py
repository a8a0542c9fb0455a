"""A2C, the synchronous advantage actor-critic: IMPALA without policy lag.

    Mnih et al. 2016        Asynchronous methods for deep reinforcement learning
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation

Actors wait until the learner has trained on their segments, so every action comes from the newest policy, V-trace
equals generalized advantage estimation (`returns.py`), and no correction is needed. With another `discipline` it is the
uncorrected asynchronous actor-critic, the baseline for IMPALA.

Discrete actions: segments have 5 steps, as in Mnih et al., and a gradient step has 20 environment steps or more, 4
streams of them, however many streams there are. With segments of 20 steps and one gradient step for all streams, as
IMPALA has, it learned far less in 100,000 steps (docs/defaults-study.md).

Real-valued actions: see `impala.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from asyncrl.algorithms.impala import DISCRETE, IMPALA
from asyncrl.options import Count


@dataclass(frozen=True, kw_only=True)
class A2C(IMPALA):
    """Hyper-parameters of A2C: those of IMPALA, with other defaults."""

    name: ClassVar[str] = "a2c"

    _discrete: ClassVar[Mapping[str, Any]] = {**DISCRETE, "segment_length": 5}
    _gradient_steps: ClassVar[int | None] = 20

    correction: Literal["vtrace", "none"] = "none"
    discipline: Literal["relaxed", "lockstep", "synchronous"] = "synchronous"

    segment_length: Count | None = None
    """Steps of each environment in a segment; none: 5 (real-valued actions 16)."""

    minibatches: Count | None = None
    """Minibatches per pass, each of whole streams; none: gradient steps of 20 steps (real-valued actions 64)."""
