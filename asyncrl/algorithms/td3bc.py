"""TD3 with behavioural cloning, for a dataset alone.

    Fujimoto & Gu 2021      A minimalist approach to offline reinforcement learning

The critics are those of TD3 (`td3.py`). The actor maximises their value and stays near the dataset's actions. The
update is in `td3bc_update.py`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import ActorLoss
from asyncrl.algorithms.offline_actor_critic import OfflineActorCritic
from asyncrl.algorithms.td3 import critic_loss, smoothed_action
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Coefficient, Count, Positive

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.td3bc_update import TD3BCUpdate


def actor_loss(q: Tensor, action: Tensor, taken: Tensor, alpha: float) -> ActorLoss:
    """Loss of the actor (Fujimoto & Gu 2021, section 5, eq. 3 and 5).

    -lambda mean Q(s, pi(s)) + mean (pi(s) - a)^2,    lambda = alpha / mean |Q(s, pi(s))|

    lambda is a constant for the gradient. The paper's text has the dataset's actions in it, its code the policy's, as
    here; the squared error is the mean over the values of an action too, as in the code.

    Args:
        q: Q(s, pi(s)) of the first critic, `[1, B, 1]`.
        action: pi(s) `[B, d]`, in units of half the action range.
        taken: a `[B, d]`, of the dataset.
        alpha: weight of the value against the error.
    """
    assert q.dim() == 3 and q.shape[0] == 1 and action.shape == taken.shape
    scale = alpha / q.detach().abs().mean()
    return ActorLoss(-scale * q.mean() + (action - taken).square().mean())


@dataclass(frozen=True, kw_only=True)
class TD3BC(OfflineActorCritic):
    """Hyper-parameters of TD3+BC: those of the paper."""

    name: ClassVar[str] = "td3bc"

    normalize_observations: bool | None = True

    alpha: Positive = 2.5
    """Weight of the value in the actor's loss, relative to the error to the dataset's actions."""

    policy_delay: Count = 2  # type: ignore[misc]
    """Updates of the critics per update of the actor and of all targets."""

    target_noise: Coefficient = 0.2
    """Standard deviation of target policy smoothing, in units of half the action range."""

    target_noise_clip: Coefficient = 0.5
    """Clip of the target noise, in units of half the action range."""

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> TD3BCUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.td3bc_update import TD3BCUpdate

        smoothing = partial(smoothed_action, scale=self.target_noise, clip=self.target_noise_clip)
        return TD3BCUpdate(
            self,
            spec,
            device,
            seed,
            critic_loss=critic_loss,
            smoothing=smoothing if self.target_noise > 0 else None,
            actor_loss=partial(actor_loss, alpha=self.alpha),
        )
