"""Options and losses of DDPG and TD3, and what SAC and its descendants share with them.

    Lillicrap et al. 2016   Continuous control with deep reinforcement learning

Networks, targets, optimisers and the update are in `continuous_update.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from asyncrl.acting.schedules import Rate
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.offline import Offline
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import Count, NotNegative, Positive, Range, Widths

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout, DeterministicPolicy
    from asyncrl.acting.critics import CriticLayout


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


def deterministic_actor_loss(q: Tensor) -> ActorLoss:
    """Deterministic policy gradient: -mean Q(s, mu(s)) (Lillicrap et al. 2016, eq. 6).

    Args:
        q: Q(s, mu(s)) of the first critic, `[1, B, 1]`.
    """
    assert q.dim() == 3 and q.shape[0] == 1
    return ActorLoss(-q.mean())


def actor_layout(config: OffPolicy | Offline, spec: EnvSpec, *, gaussian: bool) -> BoxLayout:
    """Shape and weight order of the actor, shared by policy and updater. Raises `SpacesDoNotFit`.

    Actions are learned relative to the middle of their box, in units of half its range.

    Args:
        config: hyper-parameters.
        spec: the environment.
        gaussian: whether the actor outputs means and log standard deviations, or actions.
    """
    config.check(spec)
    assert isinstance(spec.action, BoxAction)
    from asyncrl.acting.box import BoxLayout

    return BoxLayout(
        inputs=config.stacked_spec(spec).observation_values,
        hidden=config.hidden_sizes,
        action=spec.action,
        gaussian=gaussian,
        network=config.network_for(spec),
        normalized=bool(config.normalize_observations),
    )


def critics_of_actions(actor: BoxLayout, hidden: tuple[int, ...], copies: int) -> CriticLayout:
    """Shape of `copies` critics for the actions of `actor`."""
    from asyncrl.acting.critics import CriticLayout

    return CriticLayout(
        inputs=actor.inputs + actor.action_values,
        hidden=hidden,
        copies=copies,
        action=actor.action,
        network=actor.network,
    )


@dataclass(frozen=True, kw_only=True)
class ContinuousActor(OffPolicy):
    """Options of all off-policy algorithms with an actor of real-valued actions.

    By default there is one update of 128 transitions per step, of networks with layers of 128, at a rate of 1e-3. SAC's
    papers have 256, 256 and 3e-4. That takes four times the time on a CPU, and SAC learned less by it from 20,000 and
    from 100,000 steps of HalfCheetah (docs/defaults-study.md).
    """

    action_kinds: ClassVar[tuple[type, ...]] = (BoxAction,)
    needs_bounds: ClassVar[bool] = True

    learning_rate: Rate = 1e-3
    batch_size: int = 128
    samples_per_insert: float | None = 128.0
    tau: float = 0.005
    hidden_sizes: tuple[int, ...] = (128, 128)

    max_grad_norm: Positive | None = None
    """Maximum norm of the actor's gradient, of the critics' and of a temperature's; none disables clipping."""

    actor_learning_rate: Rate | None = None
    """Learning rate of the actor, with the same schedule (constant where `learning_rate` is a function), or a function
    of its own; none takes `learning_rate`."""

    critic_hidden_sizes: Widths | None = None
    """Widths of each critic's hidden layers; none takes the actor's."""

    policy_delay: Count = 1
    """Updates of the critics per update of the actor."""

    random_steps: NotNegative | None = None
    """Environment steps over all actors with uniformly random actions; none takes `learning_starts`."""

    @property
    def first_random_steps(self) -> int:
        """`random_steps` as a number."""
        return self.learning_starts if self.random_steps is None else self.random_steps


@dataclass(frozen=True, kw_only=True)
class DeterministicActor(ContinuousActor):
    """Options of DDPG and TD3, whose deterministic actor explores with noise.

    Noise is in units of half the action range: 1 is from the middle to a bound.
    """

    policy_delay: Count = 1
    """Updates of the critics per update of the actor and of all targets."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the observed rewards and gamma imply."""

    exploration_noise: Literal["gaussian", "ou"] = "gaussian"
    """Noise on the actor's actions: independent at each step, or correlated over steps (Ornstein-Uhlenbeck)."""

    exploration_scale: Annotated[float, Range(at_least=0, finite=True)] = 0.1
    """Standard deviation of the exploration noise, in units of half the action range."""

    exploration_scale_last: Annotated[float | None, Range(above=0, finite=True)] = None
    """Exploration scale of the last stream; those between are geometric; none uses one scale for all."""

    exploration_theta: Annotated[float, Range(above=0, at_most=1)] = 0.15
    """Decay of the Ornstein-Uhlenbeck noise per step (theta dt)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exploration_scale_last is not None and not self.exploration_scale > 0:
            raise ValueError(
                "exploration_scale must be greater than 0 where exploration_scale_last is given, "
                f"got {self.exploration_scale}"
            )

    def layout(self, spec: EnvSpec) -> BoxLayout:
        """Shape and weight order of the actor, shared by policy and updater. Raises `SpacesDoNotFit`."""
        return actor_layout(self, spec, gaussian=False)

    def critic_layout(self, spec: EnvSpec) -> CriticLayout:
        """Shape of the critics. Raises `SpacesDoNotFit`."""
        return critics_of_actions(self.layout(spec), self.critic_hidden_sizes or self.hidden_sizes, copies=1)

    def make_policy(self, spec: EnvSpec) -> DeterministicPolicy:
        """Make a policy with noise and zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        scale, last = self.exploration_scale, self.exploration_scale_last
        noise = GaussianNoise(scale, last)
        if self.exploration_noise == "ou":
            noise = OrnsteinUhlenbeckNoise(scale, last, self.exploration_theta)
        from asyncrl.acting.box import DeterministicPolicy

        return DeterministicPolicy(self.stacked_spec(spec), self.layout(spec), noise, self.first_random_steps)
