"""Protocols of an algorithm: its policy in the actors, its updater in the learner, its record of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:  # the command line lists algorithms without NumPy
    import numpy as np
    from numpy.typing import NDArray

    from asyncrl.interfaces import Batch, EnvSpec, FieldSpec, Segment, SequenceBatch, UpdateResult

UpdateLoopName = Literal["replay", "sequences", "joint", "segments", "dataset"]
"""Training data of an algorithm: replay of transitions, sequences or joint transitions, segments, or a dataset."""


class Memory(Protocol):
    """Recurrent state of a policy, one row per stream; the attribute `memory` of a recurrent policy.

    `act` and `greedy` take one observation of every stream, in stream order, and advance the state.
    """

    state: NDArray[np.float32]
    """`[E, state_size]`, state before the next observation; may be set to an array of any number of streams."""

    def begin(self, streams: Any) -> None:
        """Reset the state of `streams` (an index, or a list or array of them) for the start of an episode."""
        ...

    def forget(self, rows: int) -> None:
        """Replace the state by initial states of `rows` streams."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Policy in an actor process: NumPy (or numba) only, picklable, one per actor.

    An actor calls `assign_streams` before the first row and `act` once per row. If the mailbox has a newer version, the
    actor copies it directly into `weights` and calls `weights_changed`.
    """

    weight_count: int
    """Number of float32 values in the flat weight block."""

    frame_stack: int
    """k, observations of a stream stacked in `obs`, `[E, k, *obs_shape]`; 1: `[E, *obs_shape]`."""

    @property
    def weights(self) -> NDArray[np.float32]:
        """The flat weight block that the policy uses, `[weight_count]`, not a copy."""
        ...

    def weights_changed(self) -> None:
        """Called after `weights` was written."""
        ...

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Set the streams of this policy: `first .. first + count - 1` of `total` over all actors."""
        ...

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` (flat, `[weight_count]`) into the policy."""
        ...

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        """Exploring actions `[E, *act_shape]` in storage form, and one `[E, ...]` array per extra field.

        Args:
            obs: `[E, *obs_shape]`; may be a strided view; must not be kept.
            rng: the actor's own generator.
            total_steps: estimate of the environment steps taken so far over all actors, for schedules.
        """
        ...

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Deterministic action for each observation, `[E, *act_shape]` in storage form."""
        ...

    @property
    def exploration_rate(self) -> float:
        """Mean exploration rate (or noise scale) over this policy's streams at the last `act`."""
        ...


class Updater(Protocol):
    """Network, optimiser and loss of an algorithm; learner thread only."""

    weight_count: int
    """Number of float32 values that `write_weights` fills; equals the policy's `weight_count`."""

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the acting weights into `out` (flat, `[weight_count]`), in the policy's order."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Scalars of the last update (`train/loss`, `train/learning_rate`, ...); may wait for the device."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Complete state for an exact continuation: nested dicts of tensors, arrays, numbers and strings."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `state_dict`. Raises ValueError if it does not fit."""
        ...


class ReplayUpdater(Updater, Protocol):
    """Updater of an algorithm that learns from replay."""

    def update(self, batch: Batch) -> UpdateResult:
        """Make one gradient step on `batch`. Must not keep a reference to the batch's arrays."""
        ...


class DatasetUpdater(ReplayUpdater, Protocol):
    """Updater of an algorithm that learns from a dataset alone."""

    def observe_dataset(
        self, obs: NDArray[Any], reward: NDArray[np.float32], flags: NDArray[np.uint8]
    ) -> None:
        """Take what is needed of the whole dataset, before the first update.

        Args:
            obs: `[R, *obs_shape]`, rows of the dataset in storage dtype, episode after episode.
            reward: `[R]`.
            flags: `[R]`; an episode ends with a RESET row, which has the final observation.
        """
        ...


class SequenceUpdater(Updater, Protocol):
    """Updater of a recurrent algorithm that learns from replay of sequences."""

    def update(self, batch: SequenceBatch) -> UpdateResult:
        """Make one gradient step on `batch`; returns `priorities` `[B]` of its sequences. Must not keep `batch`."""
        ...


class SegmentUpdater(Updater, Protocol):
    """Updater of an algorithm that learns from segments: one `begin` and several `step`s are one iteration.

    Between two steps the learner's thread can report, pause or end. The numbers do not depend on where it does.
    """

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        """Begin an iteration on `segments`. Copies what it needs, so the segments may be released afterwards.

        Args:
            segments: at least one, all of one shape; the numbers depend on their order.
            progress: fraction of the run's steps done, 0 to 1, for schedules; 0 if the run has no limit.
        """
        ...

    def step(self) -> bool:
        """Make one gradient step; returns whether the iteration has another step."""
        ...

    @property
    def samples(self) -> int:
        """Samples trained on since the start, RESET rows excluded; an environment step counts once per use."""
        ...

    def batch(self) -> Mapping[str, NDArray[Any]]:
        """Training data of the current iteration as host copies, for inspection after a divergence."""
        ...

    def reuse(self) -> bool:
        """Begin another pass over the data of the last `begin`, when no new data is ready; False if not allowed."""
        ...


class Algorithm(Protocol):
    """Frozen, picklable record of an algorithm's hyper-parameters, and factory of its policy and updater."""

    name: ClassVar[str]
    update_loop: ClassVar[UpdateLoopName]
    """Name of the loop that trains the algorithm (`asyncrl.learning.make_loop`)."""

    @property
    def exact(self) -> bool:
        """Whether the numbers of a run do not depend on timing: lockstep and synchronous."""
        ...

    def check(self, spec: EnvSpec) -> None:
        """Check that the algorithm can learn the environment. Raises `SpacesDoNotFit` (ASYNC005)."""
        ...

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """Fields of a row beside observation, action, reward and flags."""
        ...

    def make_policy(self, spec: EnvSpec) -> Policy:
        """Create a policy with uninitialised weights; must not import torch if the actors are to run without it."""
        ...

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Updater:
        """Create the updater on `device` (`"cpu"` or `"cuda"`), initialised from `seed`."""
        ...
