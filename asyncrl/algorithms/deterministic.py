"""Base record of DDPG and TD3, whose deterministic actor explores with noise, and the loss of the actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from asyncrl.acting.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from asyncrl.algorithms.continuous import ActorLoss, ContinuousControl
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Range

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import DeterministicPolicy


def actor_loss(q: Tensor) -> ActorLoss:
    """Deterministic policy gradient: -mean Q(s, mu(s)) (Lillicrap et al. 2016, eq. 6).

    Args:
        q: Q(s, mu(s)) of the first critic, `[1, B, 1]`.
    """
    assert q.dim() == 3 and q.shape[0] == 1
    return ActorLoss(-q.mean())


@dataclass(frozen=True, kw_only=True)
class DeterministicActor(ContinuousControl):
    """Options of exploration by noise. Noise is in units of half the action range: 1 is from the middle to a bound."""

    _gaussian: ClassVar[bool] = False

    policy_delay: int = 1
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

    def make_policy(self, spec: EnvSpec) -> DeterministicPolicy:
        """Make a policy with noise and zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        scales = self.exploration_scale, self.exploration_scale_last
        ou = self.exploration_noise == "ou"
        noise = OrnsteinUhlenbeckNoise(*scales, self.exploration_theta) if ou else GaussianNoise(*scales)
        from asyncrl.acting.box import DeterministicPolicy

        return DeterministicPolicy(self.seen(spec), self.layout(spec), noise, self.uniform_steps)
