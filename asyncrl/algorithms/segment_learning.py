"""Base record of all algorithms that learn from segments: options, their ranges, and hooks of the updater.

`OnPolicy` extends it for actor-critics, `PQN` for action values. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from asyncrl.acting.schedules import falling, value_at
from asyncrl.algorithms.hyperparameters import Hyperparameters
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import BoxAction, EnvSpec, FieldSpec
from asyncrl.options import Coefficient, Count, Fraction, NotNegative, Positive, Widths
from asyncrl.protocols import UpdateLoopName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asyncrl.acting.recurrent import Cell
    from asyncrl.algorithms.rollout import Part

SHORTEST = 32
"""Shortest segment where `segment_length` is none."""
_LAG = {"relaxed": 0, "lockstep": 1, "synchronous": 0}
"""Least staleness of a segment, in policy versions, after the first iteration, by discipline."""


@dataclass(frozen=True, kw_only=True)
class SegmentLearning(Hyperparameters):
    """Options common to all algorithms that learn from segments."""

    update_loop: ClassVar[UpdateLoopName] = "segments"
    needs_bounds: ClassVar[bool] = False
    rollout_columns: ClassVar[tuple[str, ...]] = ()
    """Names of the rollout's columns, which `prepare` fills."""

    learning_rate_schedule: Literal["constant", "cooldown", "linear"] = "constant"
    """Schedule of the learning rate: constant, linear to 0 over the run's steps, or cooldown (linear to 0 over their
    last fifth)."""

    gamma: Fraction | None = None
    """Discount per environment step. None: 0.99, or 1 - 2 / T where a time limit of T < 200 steps ends the episodes."""

    epochs: Count = 1
    """Epochs over the segments of a batch."""

    max_grad_norm: Positive | None = 0.5
    """Maximum gradient norm, over all parameters; none disables clipping."""

    normalize_observations: bool | None = None
    """Normalise observations by their running mean and standard deviation, and clip them to +-10; none: where they are
    bytes from 0 to 255 that are no image or grid."""

    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return, and clip them to +-10; a rare penalty
    is not enlarged. If off, rewards whose first mean size is below 0.01 or at least 10 are scaled by the power of ten
    that brings it near 1."""

    hidden_sizes: Widths = (64, 64)
    """Widths of the policy's hidden layers, if it is a perceptron; a convolutional network has its own."""

    adam_eps: Positive = 1e-5
    """Epsilon of Adam."""

    segment_length: Count | None = None
    """Steps of each environment in a segment; none: as many as make a batch of 1,024 steps (real-valued actions
    2,048), at least 32."""

    segments_per_batch: Count | None = None
    """Segments of one batch; none takes as many as there are actors."""

    staggered_resets: bool | None = False
    """Truncate the first episodes at different steps, so that a batch shows all parts of an episode; none: where a
    known time limit is longer than a segment."""

    discipline: Literal["relaxed", "lockstep", "synchronous"] = "relaxed"
    """relaxed: segments in order of arrival; lockstep: one per actor, one version behind; synchronous: actors wait."""

    queue_batches: Count = 1
    """Maximum number of batches queued for the learner in relaxed runs."""

    max_staleness: NotNegative | None = None
    """Maximum staleness of a segment, in policy versions; none sets no bound."""

    staleness_rate: Coefficient = 0.5
    """Rate of the power and exponential corrections."""

    reuse_epochs: NotNegative = 0
    """Maximum additional epochs over a batch in relaxed runs while no new one has arrived."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lag = _LAG[self.discipline]
        if self.max_staleness is not None and self.max_staleness < lag:
            raise ValueError(
                f"max_staleness must be at least {lag} with discipline {self.discipline!r}, whose segments are so "
                f"many versions old, got {self.max_staleness}"
            )

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the recurrent cell; None without one."""
        return None

    @property
    def batch_steps(self) -> tuple[int, int]:
        """Steps of a batch where `segment_length` is none, for discrete and for real-valued actions."""
        return 1_024, 2_048

    @property
    def kept_segments(self) -> tuple[int, int, float | None]:
        """Capacity of the replay of past segments, number of them in every batch, and `newest` of `PastSegments`."""
        return 0, 0, None

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """Staleness correction that the update loop applies to a row's weight."""
        return "none"

    @property
    def value_passes(self) -> int:
        """Passes over a batch that train the value network alone, before the epochs."""
        return 0

    @property
    def samples_per_insert(self) -> float | None:
        """Number of times that a new step is trained on: once per pass."""
        return float(self.value_passes + self.epochs)

    def rate_may_fall(self, config: TrainerConfig) -> bool:
        """Whether the run has an end to which a schedule can fall, and the rate is a number."""
        return config.total_steps is not None and not callable(self.learning_rate)

    def learning_rate_at(self, progress: float) -> float:
        """Learning rate of an iteration that begins at this fraction of the run's steps."""
        if callable(self.learning_rate):
            return value_at(self.learning_rate, progress)
        return falling(self.learning_rate_schedule, self.learning_rate, 0.0, progress)

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """This record with a value for every option that is left to the run, so that its files show what was chosen.

        Segments are so long that a batch has `batch_steps`, whatever the number of actors and environments is, and at
        least `SHORTEST` rows, below which advantages would consist of little but the value network's error. Bytes are
        normalised: as inputs they saturate the first layer. `gamma` follows from the time limit, and first episodes are
        staggered where it is longer than a segment: episodes that all end by it stay in step, and a batch then shows
        one part of them. With self-play they are not, for an opponent changes when an episode ends, nor can they be in
        a vector environment that resets itself.

        Raises:
            ValueError: `staggered_resets` is true, and no time limit is known, or they cannot be staggered.
        """
        streams = self.streams_of_batch(config, spec)
        discrete, real_valued = self.batch_steps
        steps = real_valued if isinstance(spec.action, BoxAction) else discrete
        segment = self.segment_length or max(SHORTEST, steps // streams)
        normalized = self.normalize_observations
        return dataclasses.replace(
            self,
            gamma=self.gamma_for(spec),
            segment_length=segment,
            normalize_observations=spec.observation_kind == "bytes" if normalized is None else normalized,
            staggered_resets=self._staggered(config.self_play, spec, segment),
        )

    def _staggered(self, self_play: str, spec: EnvSpec, segment: int) -> bool:
        """Whether first episodes are staggered, with segments of so many steps; see `for_run`."""
        if not self.staggered_resets:
            left_to_run = self.staggered_resets is None and self_play == "none" and not spec.resets_itself
            return left_to_run and (spec.time_limit or 0) > segment
        if self_play != "none":
            raise ValueError(f"staggered_resets must be none or false with self_play={self_play!r}, got true")
        if spec.resets_itself:
            raise ValueError(
                f"staggered_resets must be none or false for {spec.name}, a vector environment that resets itself "
                "(autoreset mode NEXT_STEP), got true; make it with the mode DISABLED"
            )
        if spec.time_limit is None:
            raise ValueError(
                f"staggered_resets must be none or false for {spec.name}, whose time limit is not known, got true; "
                "register it with max_episode_steps, or give it an attribute max_steps"
            )
        return True

    def staggered_limit(self, spec: EnvSpec) -> int:
        """Time limit over which the first episodes are spread; 0 if they are not."""
        return (spec.time_limit or 0) if self.staggered_resets else 0

    def streams_of_batch(self, config: TrainerConfig, spec: EnvSpec) -> int:
        """Number of streams of a batch, with those of past segments."""
        past = self.kept_segments[1]
        return ((self.segments_per_batch or config.actors) + past) * config.envs * spec.num_agents

    @property
    def segment_rows(self) -> int:
        """`segment_length`, which `for_run` has chosen where it was left to the run."""
        assert self.segment_length is not None, "for_run chooses it"
        return self.segment_length

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """No fields: a row needs only observation, action, reward and flags."""
        return ()

    @property
    def static_steps(self) -> bool:
        """Whether a gradient step has the same operations at every step, and `cuda_graph` lets a graph repeat them."""
        return False

    # --- defined by an algorithm; called by `on_policy_update.py` on the learner's thread, under `torch.no_grad()` ----

    def prepare(self, rollout: Any) -> None:
        """Fill the rollout's columns before the first pass; does nothing by default."""

    def divide(self, rollout: Any, seed: Sequence[int]) -> list[Part]:
        """Divide the rows of one pass into gradient steps, in an order drawn from `seed`."""
        raise NotImplementedError

    def gradients(self, rollout: Any, batch: Any) -> Any:
        """Gradients of the loss with respect to `batch.outputs`; None ends the iteration."""
        raise NotImplementedError

    def metrics(self, rollout: Any, batch: Any) -> Mapping[str, float]:
        """Scalars of the last gradient step (`train/loss`, ...); may wait for the device."""
        raise NotImplementedError

    def values_and_returns(
        self, rollout: Any, batch: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Predicted values and returns of the same rows, `[rows]`, in the unit of the values; None by default."""
        return None
