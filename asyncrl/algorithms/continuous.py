"""Base record of all actor-critic algorithms on replay, and the squared error of critics.

The networks and optimisers are in `continuous_update.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from asyncrl.acting.schedules import Rate, value_at
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import Count, NotNegative, Widths

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout


class CriticLoss(NamedTuple):
    """Result of the critics' loss."""

    loss: Tensor
    """Scalar to minimise."""

    td: Tensor
    """Temporal-difference errors `[C, B, 1]`; the mean absolute value over the critics is the priority."""


class ActorLoss(NamedTuple):
    """Result of the actor's loss."""

    loss: Tensor
    """Scalar to minimise."""


def squared_error(q: Tensor, y: Tensor, weight: Tensor) -> CriticLoss:
    """Sum of `weight * (q - y)^2 / 2` over critics and batch.

    Args:
        q: Q(s, a) `[C, B, 1]`.
        y: targets `[B, 1]`.
        weight: `[B, 1]`, importance weights divided by B.
    """
    assert q.dim() == 3 and q.shape[1:] == y.shape == weight.shape and y.shape[1] == 1
    td = q - y
    return CriticLoss(0.5 * (weight * td.square()).sum(), td.detach())


@dataclass(frozen=True, kw_only=True)
class ContinuousControl(OffPolicy):
    """Options common to all actor-critic algorithms on replay.

    Actions are learned relative to the middle of their box, in units of half its range.
    """

    action_kinds: ClassVar[tuple[type, ...]] = (BoxAction,)
    needs_bounds: ClassVar[bool] = True
    _gaussian: ClassVar[bool]

    learning_rate: Rate = 3e-4
    batch_size: int = 256
    samples_per_insert: float | None = 256.0
    tau: float = 0.005
    hidden_sizes: tuple[int, ...] = (256, 256)

    actor_learning_rate: Rate | None = None
    """Learning rate of the actor, with the same schedule, or a function; none takes `learning_rate`."""

    critic_hidden_sizes: Widths | None = None
    """Widths of each critic's hidden layers; none takes the actor's."""

    policy_delay: Count = 1
    """Updates of the critics per update of the actor."""

    random_steps: NotNegative | None = None
    """Environment steps over all actors with uniformly random actions; none takes `learning_starts`."""

    def actor_learning_rate_at(self, updates: int, progress: float) -> float:
        """Learning rate of the actor at the update after `updates` others, at this progress of the run."""
        own, rate = self.actor_learning_rate, self.learning_rate_at(updates, progress)
        if own is None:
            return rate
        if callable(own) or callable(self.learning_rate):
            return value_at(own, progress)
        return rate * own / self.learning_rate

    def layout(self, spec: EnvSpec) -> BoxLayout:
        """Shape and weight order of the actor, shared by policy and updater. Raises `SpacesDoNotFit`."""
        self.check(spec)
        assert isinstance(spec.action, BoxAction)
        from asyncrl.acting.box import BoxLayout

        inputs = self.seen(spec).observation_values
        shape = inputs, self.hidden_sizes, spec.action, self._gaussian, self.network_for(spec)
        return BoxLayout(*shape, self.normalize_observations)

    @property
    def uniform_steps(self) -> int:
        """Environment steps over all actors with uniformly random actions."""
        return self.learning_starts if self.random_steps is None else self.random_steps
