"""Options common to the algorithms that learn from a dataset alone, with their ranges.

They have no actors, hence no exploration, pace or staleness: the numbers of a run depend on dataset, options and seed
only. A step of such a run is an update.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from asyncrl.acting.schedules import Rate, value_at
from asyncrl.algorithms.action_spaces import check_action_space
from asyncrl.algorithms.hyperparameters import Hyperparameters
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.options import Count, Positive, Widths
from asyncrl.protocols import UpdateLoopName


@dataclass(frozen=True, kw_only=True)
class Offline(Hyperparameters):
    """Options common to all algorithms that learn from a dataset; their records extend this one."""

    update_loop: ClassVar[UpdateLoopName] = "dataset"
    discipline: ClassVar[str] = "lockstep"  # type: ignore[misc]
    inference: ClassVar[Literal["actor", "server"]] = "actor"  # type: ignore[misc]
    prioritized: ClassVar[bool] = False
    n_step: ClassVar[int] = 1
    given_reward_scale: ClassVar[float | None] = 1.0
    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool] = True

    learning_rate: Rate = 3e-4

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rate: constant, or cosine to 0 at the end of the run's steps."""

    batch_size: Count = 256
    """Transitions per update."""

    hidden_sizes: Widths = (256, 256)
    """Widths of a perceptron's hidden layers; a convolutional network has its own."""

    normalize_observations: bool | None = None
    """Normalise observations by mean and standard deviation of the dataset, and clip them to +-10; none: where they are
    bytes from 0 to 255 that are no image or grid."""

    adam_eps: Positive = 1e-8
    """Epsilon of Adam."""

    max_grad_norm: Positive | None = None
    """Maximum gradient norm; none disables clipping."""

    matmul_precision: Literal["highest", "medium", "bfloat16"] = "highest"
    """Matrix products: highest (float32), medium (TF32 on a GPU, bfloat16 with AMX), or bfloat16 (autocast)."""

    cuda_graph: bool | None = None
    """On a GPU, run an update as one CUDA graph, which saves kernel launches; none: yes, unless `network` is given."""

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """This record with `normalize_observations` chosen where it is left to the run: as inputs bytes saturate."""
        if self.normalize_observations is not None:
            return self
        return dataclasses.replace(self, normalize_observations=spec.observation_kind == "bytes")

    def check(self, spec: EnvSpec) -> None:
        """Refuse spaces that the algorithm does not support. Raises `SpacesDoNotFit` (ASYNC005)."""
        check_action_space(self, spec)

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """No fields: a dataset has none."""
        return ()

    def learning_rate_at(self, updates: int, progress: float) -> float:
        """Learning rate of the update after `updates` others, at this progress of the run."""
        return scheduled(self.learning_rate, self.learning_rate_schedule, progress)


def scheduled(rate: Rate, schedule: str, progress: float) -> float:
    """Learning rate at `progress`, 0 to 1; a cosine schedule falls from `rate` to 0 (Loshchilov & Hutter 2017)."""
    value = value_at(rate, progress)
    return value * 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule == "cosine" else value
