"""A2C, the synchronous advantage actor-critic: IMPALA without policy lag.

    Mnih et al. 2016        Asynchronous methods for deep reinforcement learning
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation

Actors wait until the learner has trained on their segments, so every action comes from the newest policy, V-trace
equals generalized advantage estimation (`returns.py`), and no correction is needed. With another `discipline` it is the
uncorrected asynchronous actor-critic, the baseline for IMPALA.

Discrete actions: segments have 5 steps, as in Mnih et al., and a gradient step has 20 environment steps or more, 4
streams of them, however many streams there are. With segments of 20 steps and one gradient step for all streams, as
IMPALA has, it learned far less in 100,000 steps (docs/results.md).

Real-valued actions: rewards and observations are normalised, segments have 16 steps, a gradient step has 64, those of
four streams, and the rate falls to 0 (`BOX`). They were chosen together, on one to three seeds of HalfCheetah, Hopper,
Pendulum and FetchReachDense: segments of 5 or 8, a constant rate, a rate of 0.002 and raw observations learned less,
and gradient steps of one stream lost FetchReachDense.

Two options keep a run from ending worse than it began, as some of Reacher and FetchReachDense did (docs/results.md).
The value function comes from 0 to its level in the first 250 gradient steps, and meanwhile the policy follows its
errors into constant actions: so the value network has four passes of its own over every batch (`value_epochs`). Beyond
the bounds all actions are alike, so that a mean which got there would stay: `bounds_coef` leads it back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from asyncrl.acting.images import ImageNetwork
from asyncrl.algorithms.impala import IMPALA, fuses_gradients
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import Coefficient, Count, Fraction, NotNegative

DISCRETE: Mapping[str, Any] = {
    "bounds_coef": 0.0,
    "ent_coef": 0.01,
    "gae_lambda": 1.0,
    "learning_rate_schedule": "constant",
    "normalize_rewards": False,
    "segment_length": 5,
    "value_epochs": 0,
}
BOX: Mapping[str, Any] = {
    "bounds_coef": 0.5,
    "ent_coef": 0.0,
    "gae_lambda": 0.95,
    "learning_rate_schedule": "linear",
    "normalize_observations": True,
    "normalize_rewards": True,
    "segment_length": 16,
    "value_epochs": 4,
}
"""Options for discrete and for real-valued actions that are chosen where they are none."""
GRADIENT_STEPS, BOX_GRADIENT_STEPS = 20, 64
"""Environment steps of a gradient step where `minibatches` is none, for discrete and for real-valued actions."""


@dataclass(frozen=True, kw_only=True)
class A2C(IMPALA):
    """Hyper-parameters of A2C: those of IMPALA, with other defaults."""

    name: ClassVar[str] = "a2c"

    correction: Literal["vtrace", "none"] = "none"
    discipline: Literal["relaxed", "lockstep", "synchronous"] = "synchronous"

    # What is none here `for_run` chooses; records of IMPALA refuse none.
    bounds_coef: Coefficient | None = None  # type: ignore[assignment]
    """Coefficient of the penalty for mean actions beyond the bounds, squared, in units of half the action range; none:
    0.5 for real-valued actions."""

    ent_coef: Coefficient | None = None  # type: ignore[assignment]
    """Entropy coefficient of the loss; none: 0.01 for discrete actions, 0 for real-valued ones."""

    gae_lambda: Fraction | None = None  # type: ignore[assignment]
    """Lambda of the value targets and advantages: 0 is one step, 1 the rest of the segment; none: 1 (real-valued
    actions 0.95)."""

    learning_rate_schedule: Literal["constant", "linear"] | None = None  # type: ignore[assignment]
    """Schedule of the learning rate: constant, or linear to 0 at the end of the run's steps; none: constant (linear for
    real-valued actions where `total_steps` is given)."""

    normalize_observations: bool | None = None
    """Normalise observations by their running mean and standard deviation, and clip them to +-10; none: for real-valued
    actions, unless observations are bytes, and for bytes from 0 to 255 that are no image or grid."""

    normalize_rewards: bool | None = None  # type: ignore[assignment]
    """Divide rewards by the running standard deviation of the discounted return, and clip them to +-10; none: for
    real-valued actions."""

    segment_length: Count | None = None  # type: ignore[assignment]
    """Steps of each environment in a segment; none: 5 (real-valued actions 16)."""

    value_epochs: NotNegative | None = None  # type: ignore[assignment]
    """Passes over a batch that train the value network alone, before the epochs; none: 4 for real-valued actions, 0 for
    discrete ones, convolutional networks, recurrent policies and fused gradients."""

    minibatches: Count | None = None
    """Minibatches per pass, each of whole streams; none: gradient steps of 20 steps (real-valued actions 64)."""

    def _convolves(self, spec: EnvSpec) -> bool:
        return isinstance(self.network_for(spec), ImageNetwork)

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `SegmentLearning.for_run`; what is none follows from the kind of actions and the number of streams."""
        real = isinstance(spec.action, BoxAction)
        chosen = dict(BOX if real else DISCRETE)
        if spec.observation_dtype == "uint8":
            chosen.pop("normalize_observations", None)
        if real and (self._convolves(spec) or self.cell is not None or fuses_gradients(config)):
            chosen["value_epochs"] = 0
        if config.total_steps is None or callable(self.learning_rate):
            chosen["learning_rate_schedule"] = "constant"
        left = {name: value for name, value in chosen.items() if getattr(self, name) is None}
        record = super(A2C, dataclasses.replace(self, **left)).for_run(config, spec)
        if record.minibatches is not None:
            return record
        streams = self.streams_of_batch(config, spec)
        count = streams * record.segment_rows // (BOX_GRADIENT_STEPS if real else GRADIENT_STEPS)
        return dataclasses.replace(record, minibatches=max(1, min(streams, count)))
