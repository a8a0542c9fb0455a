"""Protocols that an algorithm implements: its policy in an actor, its updater in the learner, its record of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:  # the command line lists algorithms without NumPy
    import numpy as np
    from numpy.typing import NDArray

    from asyncrl.interfaces import Batch, EnvSpec, FieldSpec, Segment, UpdateResult
    from asyncrl.sequences import SequenceBatch

UpdateLoopName = Literal["replay", "sequences", "segments"]
"""How an algorithm is trained: from replay of transitions, from replay of sequences, or segment by segment."""


class Memory(Protocol):
    """Recurrent state of a policy, one row per stream: its attribute `memory`, where it has one.

    `act` and `greedy` take one observation of every stream, in their order, and advance the state.
    """

    state: NDArray[np.float32]
    """`[E, state_size]` before the next observation; it may be set, to an array of any number of streams."""

    def begin(self, streams: Any) -> None:
        """Begin episodes in `streams` (an index, or a list or array of them): their next observation is the first."""
        ...

    def forget(self, rows: int) -> None:
        """Begin episodes in `rows` streams, which are all there are."""
        ...


@runtime_checkable
class Policy(Protocol):
    """How an algorithm acts: NumPy (or numba) only, picklable, one per actor process.

    An actor calls `assign_streams` once and `act` once per row. Where the mailbox has moved it refreshes straight into
    `weights` and calls `weights_changed`.
    """

    weight_count: int
    """Number of float32 values in the flat weight block."""

    frame_stack: int
    """k: observations of a stream that one row of `obs` joins, `[E, k, *obs_shape]`; 1: `[E, *obs_shape]`."""

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


class Updater(Protocol):
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


class ReplayUpdater(Updater, Protocol):
    """The core of an algorithm that learns from replay."""

    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step on `batch`. Must not keep a reference to the batch's arrays."""
        ...


class SequenceUpdater(Updater, Protocol):
    """The core of a recurrent algorithm that learns from replay of sequences."""

    def update(self, batch: SequenceBatch) -> UpdateResult:
        """One gradient step on `batch`; `priorities` `[B]` are of its sequences. Must not keep a reference to it."""
        ...


class SegmentUpdater(Updater, Protocol):
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
    update_loop: ClassVar[UpdateLoopName]
    """Name of the loop that trains it (`asyncrl.run.update_loops`)."""

    def check(self, spec: EnvSpec) -> None:
        """Refuse an environment this algorithm cannot learn. Raises `SpacesDoNotFit` (ASYNC005)."""
        ...

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """What a row carries beside observation, action, reward and flags."""
        ...

    def make_policy(self, spec: EnvSpec) -> Policy:
        """A fresh policy with uninitialised weights; must not import torch where actors stay light."""
        ...

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> Updater:
        """The network, optimiser and loss on `device` (`"cpu"` or `"cuda"`), initialised from `seed`."""
        ...
