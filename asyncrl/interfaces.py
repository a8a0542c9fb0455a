"""The nouns of asyncrl on one page.

Everything that two rooms of the house must agree on stands here and nothing else: what an environment looks like from
outside (`EnvSpec`), what a row of a stream carries (`FieldSpec`, the flags), what a learner receives and returns
(`Batch`, `UpdateResult`), and the three protocols that an algorithm answers (`Policy`, `LearnerCore`, `Algorithm`).
This module imports NumPy only, so that an actor process can import it without torch.

Axes, used in every docstring of the package:

    E   environments (streams) of one actor         S   slots (rows) of a ring
    B   items of a training batch                   T   rows of a segment
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

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
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    vector_envs: int | None = None


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


@runtime_checkable
class Policy(Protocol):
    """How an algorithm acts: NumPy (or numba) only, picklable, one per actor process.

    An actor calls `assign_streams` once and `act` once per row. Where the mailbox has moved it refreshes straight into
    `weights` and calls `weights_changed`.
    """

    weight_count: int
    """Number of float32 values in the flat weight block."""

    @property
    def weights(self) -> NDArray[np.float32]:
        """The flat block that the policy multiplies with, `[weight_count]`, not a copy."""
        ...

    def weights_changed(self) -> None:
        """Note that `weights` was written."""
        ...

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Say which streams this copy acts for: `first .. first + count - 1` of `total` over all actors."""
        ...

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` (flat, `[weight_count]`) in."""
        ...

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        """Explore: actions `[E, *act_shape]` in storage form, and one `[E, ...]` array per extra field.

        Args:
            obs: `[E, *obs_shape]`; may be a strided view, is not kept.
            rng: the stream group's own generator.
            total_steps: environment steps taken so far over all actors, as far as this actor knows (for schedules).
        """
        ...

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        """The deterministic action for each observation, `[E, *act_shape]` in storage form."""
        ...

    @property
    def exploration_rate(self) -> float:
        """Mean exploration rate (or noise scale) over this copy's streams at the last `act`."""
        ...


class Core(Protocol):
    """An algorithm's network, optimiser and loss; lives on the learner's thread and is called from nowhere else."""

    weight_count: int
    """Number of float32 values that `write_weights` fills; equals the policy's."""

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the acting weights into `out` (flat, `[weight_count]`), in the order the policy reads them."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Scalars of the last update (`train/loss`, `train/learning_rate`, ...); may wait for the device."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Everything needed to go on to the same numbers: nested dicts of tensors, arrays, numbers and strings."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError where it does not fit."""
        ...


class LearnerCore(Core, Protocol):
    """The core of an algorithm that learns from replay."""

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step on `batch`. Must not keep a reference to the batch's arrays."""
        ...


class SegmentCore(Core, Protocol):
    """The core of an algorithm that learns from segments: one `begin` and several `step`s are one iteration.

    It is cut into steps so that the learner's thread can stop between two of them (to report, to stand still, to end)
    and go on to the same numbers, however the steps fall into bursts.
    """

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Take in what the next iteration trains on: everything needed is copied, so the segments may be released.

        Args:
            segments: at least one, all of one shape, in a fixed order (which the numbers depend on).
            progress: share of the run's steps that is done, 0 to 1, for schedules; 0 where the run has no limit.
        """
        ...

    def step(self) -> bool:
        """One gradient step; returns whether the iteration has another one to make."""
        ...

    @property
    def samples(self) -> int:
        """Samples trained on since the start, RESET rows excluded: a step counts as often as it is used."""
        ...

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """The arrays that the present iteration trains on, as host copies, to be looked at after a divergence."""
        ...

    def again(self) -> bool:
        """Begin another pass over what `begin` took in, because nothing new is there; False where none is allowed."""
        ...


class Algorithm(Protocol):
    """A frozen, picklable record of hyper-parameters that answers what the trainer asks of every algorithm."""

    name: ClassVar[str]
    update_loop: ClassVar[Literal["replay", "segments"]]
    """Name of the loop that trains it (`asyncrl.run.update_loops`): from replay, or segment by segment."""

    def check(self, spec: EnvSpec) -> None:
        """Refuse an environment this algorithm cannot learn. Raises `SpacesDoNotFit` (ASYNC005)."""
        ...

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """What a row carries beside observation, action, reward and flags."""
        ...

    def make_policy(self, spec: EnvSpec) -> Policy:
        """A fresh policy with uninitialised weights; must not import torch where actors stay light."""
        ...

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> Core:
        """The network, optimiser and loss on `device` (`"cpu"` or `"cuda"`), initialised from `seed`."""
        ...
