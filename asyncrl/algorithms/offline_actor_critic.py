"""Options common to TD3+BC and IQL: a deterministic actor and critics that learn from a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from asyncrl.acting.noise import GaussianNoise
from asyncrl.acting.schedules import Rate
from asyncrl.algorithms.continuous import actor_layout, critics_of_actions
from asyncrl.algorithms.offline import Offline
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import Coefficient, Count, Fraction, Positive, Range, Widths

if TYPE_CHECKING:
    from asyncrl.acting.box import BoxLayout, DeterministicPolicy
    from asyncrl.acting.critics import CriticLayout


@dataclass(frozen=True, kw_only=True)
class OfflineActorCritic(Offline):
    """Options of TD3+BC and IQL, which learn an actor and critics for a box of finite bounds."""

    action_kinds: ClassVar[tuple[type, ...]] = (BoxAction,)
    policy_delay: ClassVar[int] = 1
    bound_targets: ClassVar[bool] = False

    gamma: Fraction = 0.99
    """Discount per environment step."""

    tau: Annotated[float, Range(above=0, at_most=1)] = 0.005
    """Polyak coefficient of the target networks."""

    max_grad_norm: Positive | None = None
    """Maximum norm of the actor's gradient, and of the critics'; none disables clipping."""

    actor_learning_rate: Rate | None = None
    """Learning rate of the actor, or a function of progress; none takes `learning_rate`."""

    critic_hidden_sizes: Widths | None = None
    """Widths of each critic's hidden layers; none takes the actor's."""

    num_critics: Count = 2
    """Number of critics; the smallest of their target values counts."""

    exploration_scale: Coefficient = 0.1
    """Standard deviation of the noise of exploring actions, in units of half the action range."""

    def layout(self, spec: EnvSpec) -> BoxLayout:
        """Shape and weight order of the actor, shared by policy and updater. Raises `SpacesDoNotFit`."""
        return actor_layout(self, spec, gaussian=False)

    def critic_layout(self, spec: EnvSpec) -> CriticLayout:
        """Shape of the critics. Raises `SpacesDoNotFit`."""
        hidden = self.critic_hidden_sizes or self.hidden_sizes
        return critics_of_actions(self.layout(spec), hidden, copies=self.num_critics)

    def make_policy(self, spec: EnvSpec) -> DeterministicPolicy:
        """Make a deterministic policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import DeterministicPolicy

        return DeterministicPolicy(
            self.stacked_spec(spec), self.layout(spec), GaussianNoise(self.exploration_scale)
        )
