"""The nouns of asyncrl on one page.

Everything that two rooms of the house must agree on stands here and nothing else: what an environment looks like from
outside (`EnvSpec`), what a row of a stream carries (`FieldSpec`, the flags), and what a learner receives and returns
(`Batch`, `Segment`, `UpdateResult`). What an algorithm implements stands in `protocols.py`. This module imports NumPy
only, so that an actor process can import it without torch.

Axes, used in every docstring of the package:

    E   environments (streams) of one actor         S   slots (rows) of a ring
    B   items of a training batch                   T   rows of a segment
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TERMINATED = 1
"""Flag of a row whose step reached a terminal state: the value of what follows is zero."""
TRUNCATED = 2
"""Flag of a row whose step was cut from outside (time limit): the value of what follows is bootstrapped."""
RESET = 4
"""Flag of a row whose action was not taken: the step only reset the environment (Gymnasium's NEXT_STEP autoreset)."""

LONGEST_N_STEP = 255
"""Most rewards that an n-step transition of the replay sums; the replay keeps n of each row in one byte."""


@dataclass(frozen=True)
class DiscreteAction:
    """Actions `start, start + 1, ..., start + n - 1`; rings and batches hold `action - start` as int64."""

    n: int
    start: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a scalar."""
        return ()

    @property
    def dtype(self) -> str:
        """Storage dtype of one action."""
        return "int64"


@dataclass(frozen=True)
class MultiDiscreteAction:
    """A vector of choices, the i-th of `nvec[i]`, each from zero; held as int64 of shape `[len(nvec)]`."""

    nvec: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return (len(self.nvec),)

    @property
    def dtype(self) -> str:
        """Storage dtype of one action."""
        return "int64"


@dataclass(frozen=True)
class BoxAction:
    """Real-valued actions between `low` and `high` (flat tuples in C order, infinite where unbounded); float32."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Storage dtype of one action."""
        return "float32"


ActionSpec = DiscreteAction | MultiDiscreteAction | BoxAction


@dataclass(frozen=True)
class Leaf:
    """One array of a structured observation (Dict, Tuple, Discrete, MultiDiscrete), as it stands in a row.

    Attributes:
        path: keys of a Dict and indices of a Tuple that lead to it; none where the observation is the leaf.
        kind: `"image"` (bytes, scaled to 0..1), `"choices"` (one-hot) or `"values"` (float32).
        shape: of its array, before choices become one-hot.
        choices: of choices, among how many each is.
        first: of choices, the smallest value of each.
    """

    path: tuple[str, ...]
    kind: Literal["image", "choices", "values"]
    shape: tuple[int, ...]
    choices: tuple[int, ...] = ()
    first: tuple[int, ...] = ()

    @property
    def values(self) -> int:
        """Numbers that a network sees of it."""
        return sum(self.choices) if self.kind == "choices" else math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Its bytes in a row of bytes."""
        return self.values * (1 if self.kind == "image" else 4)


@dataclass(frozen=True)
class EnvSpec:
    """What an environment looks like to a trainer; picklable, holds no environment and no gymnasium object.

    Attributes:
        name: what to call it (the id, or the factory's qualified name).
        observation_shape: shape of one observation.
        observation_dtype: NumPy dtype name in which observations are stored (float64 spaces are stored as float32).
        action: what actions it takes.
        max_episode_steps: time limit in steps, or None where there is none.
        reward_threshold: return from which the environment counts as solved, or None.
        vector_envs: how many environments one call of the factory makes where it returns a vector of them (then an
            actor has exactly so many), or None where it makes one.
        frame_stack: observations that are joined along the first axis of `observation_shape`, oldest first; 1: no such
            axis. An environment's own spec has 1, and rings hold single observations; see `stacked`.
        leaves: of a structured observation, which is one row `[n]`: float32, or, where an image is among them, bytes.
            Per-leaf columns of a ring were rejected: every reader of rings would have to know them, for the same bytes.
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    vector_envs: int | None = None
    frame_stack: int = 1
    leaves: tuple[Leaf, ...] = ()

    @property
    def observation_values(self) -> int:
        """Numbers that a network sees of an observation, or of a stack of them."""
        if not self.leaves:
            return math.prod(self.observation_shape)
        return self.frame_stack * sum(leaf.values for leaf in self.leaves)

    def stacked(self, frames: int) -> EnvSpec:
        """What a policy sees: the last `frames` observations `[frames, *observation_shape]`; itself for 1."""
        assert self.frame_stack == 1, "an environment's observations are stacked once"
        if frames == 1:
            return self
        return replace(self, observation_shape=(frames, *self.observation_shape), frame_stack=frames)


@dataclass(frozen=True)
class FieldSpec:
    """One array that every row of a stream carries beside the fixed ones: its name, per-step shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Batch:
    """What a learner trains on: B n-step transitions, gathered from the rings straight into these arrays.

    The arrays are owned by whoever created the batch and are overwritten by the next gather into it, so a learner
    that keeps a batch must copy it. All arrays are C-contiguous with axis 0 = B.

    Attributes:
        obs: `[B, *obs_shape]` in the ring's dtype, at step t.
        action: `[B, *act_shape]`.
        reward: `[B]` float32, the discounted sum of k <= n rewards from step t on.
        discount: `[B]` float32, `gamma**k`, or 0 where the k-th step terminated the episode; what multiplies the
            bootstrap value of `next_obs`.
        next_obs: `[B, *obs_shape]` at step t + k.
        weight: `[B]` float32, importance weight times staleness correction; multiplies the item's loss.
        ids: `[B]` int64, names the row for `update_priorities`; never reused during a run.
        version: `[B]` int64, policy version that acted at step t.
        policy_updates: `[B]` int64, updates that the learner had made when it published that version.
        staleness: `[B]` int64, updates made since then, filled by the learner when the batch is used.
        extras: what the algorithm added to a row, each `[B, ...]`, at step t.
        progress: share of the run's `total_steps` that is done, 0 to 1, for schedules; 0 where the run has no limit.
        source: `ObservationMirror` that gathers obs and next_obs on the learner's device; None where they are filled.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    next_obs: NDArray[Any]
    weight: NDArray[np.float32]
    ids: NDArray[np.int64]
    version: NDArray[np.int64]
    policy_updates: NDArray[np.int64]
    staleness: NDArray[np.int64]
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    progress: float = 0.0
    source: Any = None

    @classmethod
    def allocate(cls, batch_size: int, spec: EnvSpec, extra_fields: tuple[FieldSpec, ...] = ()) -> Batch:
        """An uninitialised batch of `batch_size` items for this environment."""
        obs = (batch_size, *spec.observation_shape)
        return cls(
            obs=np.empty(obs, spec.observation_dtype),
            action=np.empty((batch_size, *spec.action.shape), spec.action.dtype),
            reward=np.empty(batch_size, np.float32),
            discount=np.empty(batch_size, np.float32),
            next_obs=np.empty(obs, spec.observation_dtype),
            weight=np.empty(batch_size, np.float32),
            ids=np.empty(batch_size, np.int64),
            version=np.empty(batch_size, np.int64),
            policy_updates=np.empty(batch_size, np.int64),
            staleness=np.zeros(batch_size, np.int64),
            extras={f.name: np.empty((batch_size, *f.shape), f.dtype) for f in extra_fields},
        )

    @property
    def size(self) -> int:
        """B, the number of items."""
        return int(self.ids.shape[0])


@dataclass
class Segment:
    """What an on-policy learner trains on: T consecutive rows of the E streams of one actor, read where they lie.

    The big arrays are views into the actor's ring (or copies, where the rows wrap around the ring's end or the segment
    was kept for a second use) and must not be written; they are valid until the segment is released, which whoever
    took it from the queue decides. `weight` and `staleness` belong to the segment.

    How a trajectory is cut: a TERMINATED or TRUNCATED row is followed by a RESET row, whose observation is the true
    final one. Where an actor died and was started again, the first row of its new life is a RESET row too, so a row
    that is followed by a RESET row and carries neither flag was truncated by that death.

    Attributes:
        ring: index of the actor's ring.
        first: position of the first row; the segment is `[first, first + T)`.
        obs: `[E, T, *obs_shape]` in the ring's dtype.
        last_obs: `[E, *obs_shape]`, the observation after the last row; what the end of the segment is bootstrapped of.
        action: `[E, T, *act_shape]` in storage form.
        reward: `[E, T]` float32.
        flags: `[E, T]` uint8, `TERMINATED | TRUNCATED | RESET`; RESET rows are never trained on.
        version: `[T]` int64, policy version that acted in each row.
        policy_updates: `[T]` int64, updates that the learner had made when it published that version.
        extras: what the algorithm added to a row, each `[E, T, ...]`.
        weight: `[T]` float32, staleness correction of each row; 1 where there is none.
        staleness: `[T]` int64, publications since `version`, filled when the segment is used.
        fresh: whether it is used for the first time; running statistics are taken of fresh segments only.
    """

    ring: int
    first: int
    obs: NDArray[Any]
    last_obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]
    version: NDArray[np.int64]
    policy_updates: NDArray[np.int64]
    extras: Mapping[str, NDArray[Any]]
    weight: NDArray[np.float32]
    staleness: NDArray[np.int64]
    fresh: bool = True

    @property
    def num_envs(self) -> int:
        """E."""
        return int(self.reward.shape[0])

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """Environment steps in it, RESET rows excluded."""
        return int(np.count_nonzero((self.flags & RESET) == 0))


@dataclass(frozen=True)
class UpdateResult:
    """What one update returns.

    Attributes:
        priorities: `[B]` float32 host array of new priorities (absolute TD errors, before the exponent alpha), in the
            batch's order, or None where the algorithm has none. It may be overwritten by the next update.
    """

    priorities: NDArray[np.float32] | None = None
