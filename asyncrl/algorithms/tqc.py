"""Truncated quantile critics (TQC).

Kuznetsov et al. 2020   Controlling overestimation bias with truncated mixture of continuous distributional quantile
                        critics
Dabney et al. 2018      Distributional reinforcement learning with quantile regression
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.maximum_entropy import MaximumEntropy
from asyncrl.algorithms.qrdqn import quantile_huber
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count, NotNegative

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.critics import CriticLayout
    from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyUpdate
    from asyncrl.algorithms.staging import StagedBatch


def critic_loss(
    theta: Tensor, next_theta: Tensor, next_log_prob: Tensor, alpha: Tensor, batch: StagedBatch, dropped: int
) -> CriticLoss:
    """Quantile Huber loss of every critic for the truncated mixture (Kuznetsov et al. 2020, eq. 12 to 14).

    y_i = r + gamma (z_(i) - alpha log pi(a'|s')), z_(1) <= ... <= z_(C M) the pooled atoms without the largest.

    Args:
        theta: atoms of Z_c(s, a) `[C, B, M]`.
        next_theta: atoms of Z'_c(s', a') `[C, B, M]`, a' ~ pi(.|s').
        next_log_prob: log pi(a'|s') `[B, 1]`.
        alpha: scalar.
        batch: `discount` is gamma^n, or 0 after a termination.
        dropped: number of the largest of the C M pooled atoms that are dropped.
    """
    critics, size, atoms = theta.shape
    assert theta.shape == next_theta.shape and next_log_prob.shape == batch.reward.shape
    pooled = next_theta.transpose(0, 1).reshape(size, critics * atoms)
    z = pooled.sort(dim=1).values[:, : critics * atoms - dropped]
    y = batch.reward + batch.discount * (z - alpha * next_log_prob)
    td = theta.detach().mean(dim=2, keepdim=True) - y.mean(dim=1, keepdim=True)
    return CriticLoss((batch.weight * quantile_huber(theta, y, kappa=1.0)).sum() / atoms, td)


def actor_loss(theta: Tensor, log_prob: Tensor, alpha: Tensor) -> ActorLoss:
    """Mean of alpha log pi(a|s) - Q(s, a), a ~ pi(.|s), Q the mean of all atoms (Kuznetsov et al. 2020, eq. 15).

    Args:
        theta: atoms of Z_c(s, a) `[C, B, M]`, all of them.
        log_prob: log pi(a|s) `[B, 1]`.
        alpha: scalar.
    """
    assert theta.shape[1] == log_prob.shape[0]
    return ActorLoss((alpha * log_prob).mean() - theta.mean())


@dataclass(frozen=True, kw_only=True)
class TQC(MaximumEntropy):
    """Hyper-parameters of truncated quantile critics."""

    name: ClassVar[str] = "tqc"

    num_quantiles: Count = 25
    """Atoms of each critic's distribution of returns."""

    top_quantiles_to_drop_per_critic: NotNegative = 2
    """Largest atoms dropped from the target, per critic; below `num_quantiles`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_quantiles_to_drop_per_critic >= self.num_quantiles:
            rule = f"below num_quantiles ({self.num_quantiles})"
            got = self.top_quantiles_to_drop_per_critic
            raise ValueError(f"top_quantiles_to_drop_per_critic must be {rule}, got {got}")

    def critic_layout(self, spec: EnvSpec) -> CriticLayout:
        """Shape of the critics. Raises `SpacesDoNotFit`."""
        return replace(super().critic_layout(spec), outputs=self.num_quantiles)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> MaximumEntropyUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyUpdate
        from asyncrl.algorithms.tqc_kernel import MeanActorKernel, TruncatedCriticKernel

        critics, atoms, dropped = self.num_critics, self.num_quantiles, self.top_quantiles_to_drop_per_critic
        return MaximumEntropyUpdate(
            self,
            spec,
            device,
            seed,
            critic_loss=partial(critic_loss, dropped=critics * dropped),
            actor_loss=actor_loss,
            critic_kernel=partial(
                TruncatedCriticKernel, critics=critics, atoms=atoms, dropped=critics * dropped
            ),
            actor_kernel=partial(MeanActorKernel, critics=critics, atoms=atoms),
        )
