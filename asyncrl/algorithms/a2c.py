"""A2C, the synchronous advantage actor-critic: IMPALA without policy lag.

    Mnih et al. 2016        Asynchronous methods for deep reinforcement learning
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation

Actors wait until the learner has trained on their segments, so every action comes from the newest policy, V-trace
equals generalized advantage estimation (`returns.py`), and no correction is needed. With another `discipline` it is the
uncorrected asynchronous actor-critic, the baseline for IMPALA.

Segments have 5 steps, as in Mnih et al., and a gradient step has 20 environment steps or more with discrete actions and
40 with real-valued ones, 4 or 8 streams of them, however many streams there are. With segments of 20 steps and one
gradient step for all streams, as IMPALA has, it learned far less in 100,000 steps (docs/results.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from asyncrl.algorithms.impala import IMPALA
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import BoxAction, EnvSpec

GRADIENT_STEPS, BOX_GRADIENT_STEPS = 20, 40
"""Environment steps of a gradient step where `minibatches` is none, for discrete and for real-valued actions."""


@dataclass(frozen=True, kw_only=True)
class A2C(IMPALA):
    """Hyper-parameters of A2C: those of IMPALA, with other defaults."""

    name: ClassVar[str] = "a2c"

    segment_length: int = 5
    minibatches: int | None = None
    correction: Literal["vtrace", "none"] = "none"
    discipline: Literal["relaxed", "lockstep", "synchronous"] = "synchronous"

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `SegmentLearning.for_run`; the number of minibatches follows from the streams of a batch."""
        record = super().for_run(config, spec)
        if record.minibatches is not None:
            return record
        streams = self.streams_of_batch(config, spec)
        steps = BOX_GRADIENT_STEPS if isinstance(spec.action, BoxAction) else GRADIENT_STEPS
        count = streams * record.segment_rows // steps
        return dataclasses.replace(record, minibatches=max(1, min(streams, count)))
