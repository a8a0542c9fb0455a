"""Twin delayed deep deterministic policy gradient.

    Fujimoto et al. 2018    Addressing function approximation error in actor-critic methods

The other options and the actor's loss, common with DDPG, are in `continuous.py`, and the update is in
`continuous_update.py`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import CriticLoss, DeterministicActor, squared_error
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Coefficient, Count

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.critics import CriticLayout
    from asyncrl.algorithms.continuous_update import DeterministicUpdate
    from asyncrl.algorithms.staging import StagedBatch


def critic_loss(q: Tensor, next_q: Tensor, batch: StagedBatch) -> CriticLoss:
    """Squared error of all critics for the smallest target value (Fujimoto et al. 2018, eq. 10).

    y = r + gamma min_c Q'_c(s', a')

    Args:
        q: Q_c(s, a) `[C, B, 1]`.
        next_q: Q'_c(s', a') `[C, B, 1]`, a' from `smoothed_action`.
        batch: `discount` is gamma^n, or 0 after a termination.
    """
    assert q.shape == next_q.shape
    y = batch.reward + batch.discount * next_q.amin(dim=0)
    return squared_error(q, y, batch.weight)


def smoothed_action(action: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Target policy smoothing: a' = mu'(s') + clip(scale * noise, -clip, clip), clipped to -1..1 (eq. 14).

    Args:
        action: mu'(s') `[B, d]`, in units of half the action range.
        noise: standard normal `[B, d]`.
        scale: standard deviation.
        clip: largest absolute change.
    """
    assert action.shape == noise.shape
    return (action + (scale * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class TD3(DeterministicActor):
    """Hyper-parameters of TD3."""

    name: ClassVar[str] = "td3"

    policy_delay: int = 2

    num_critics: Count = 2
    """Number of critics; the smallest of their target values is bootstrapped."""

    target_noise: Coefficient = 0.2
    """Standard deviation of target policy smoothing, in units of half the action range."""

    target_noise_clip: Coefficient = 0.5
    """Clip of the target noise, in units of half the action range."""

    def critic_layout(self, spec: EnvSpec) -> CriticLayout:
        """Shape of the critics. Raises `SpacesDoNotFit`."""
        return replace(super().critic_layout(spec), copies=self.num_critics)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> DeterministicUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.continuous_update import DeterministicUpdate

        smoothing = partial(smoothed_action, scale=self.target_noise, clip=self.target_noise_clip)
        return DeterministicUpdate(
            self,
            spec,
            device,
            seed,
            critic_loss=critic_loss,
            smoothing=smoothing if self.target_noise > 0 else None,
        )
