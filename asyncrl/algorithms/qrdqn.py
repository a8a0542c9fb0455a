"""Distributional Q-learning by quantile regression (QR-DQN).

Dabney et al. 2018   Distributional reinforcement learning with quantile regression
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from asyncrl.algorithms.q_learning import QLearning, QLoss, of_action
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count, Positive

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.policies import QLayout
    from asyncrl.algorithms.q_learning_update import QLearningUpdate
    from asyncrl.algorithms.staging import StagedBatch


def quantile_loss(
    theta: Tensor,
    next_theta: Tensor,
    next_action: Tensor,
    batch: StagedBatch,
    kappa: float | None,
    bound_targets: bool,
) -> QLoss:
    """Weighted quantile Huber loss (Dabney et al. 2018, algorithm 1, eq. 9 and 10).

    Sum over i of the mean over j of |tau_i - 1{u < 0}| L(u), u = T theta'_j - theta_i, where theta_i is the quantile at
    tau_i = (2 i - 1) / (2 N) (lemma 2). L is the Huber loss, or |u| for plain quantile regression (eq. 8).

    The priority is the error of the mean, as in DQN: it has the same unit, and unlike the loss it does not stay high
    for random returns with correct quantiles.

    Args:
        theta: quantiles of the return of each action in S, `[B, A, N]`.
        next_theta: quantiles of the target network in S', `[B, A, N]`.
        next_action: action `[B, 1]` int64 with the largest mean in S'.
        batch: `discount` is gamma^n, or 0 after a termination; `weight` is divided by B.
        kappa: error above which L is linear; None or 0 is |u|.
        bound_targets: clip theta' to `batch.low` and `batch.high`.
    """
    assert theta.dim() == 3 and next_theta.shape == theta.shape and next_action.shape == batch.action.shape
    theta, next_theta = of_action(theta, batch.action), of_action(next_theta, next_action)
    if bound_targets:
        next_theta = next_theta.clamp(batch.low, batch.high)
    target = batch.reward + batch.discount * next_theta
    loss = quantile_huber(theta, target, kappa)
    return QLoss((batch.weight * loss).sum(), (theta.detach() - target).mean(dim=1, keepdim=True))


def quantile_huber(theta: Tensor, target: Tensor, kappa: float | None) -> Tensor:
    """Sum over i of the mean over j of |tau_i - 1{u < 0}| L(u), u = target_j - theta_i, `[..., 1]` (eq. 9 and 10).

    Args:
        theta: quantiles `[..., N]`.
        target: samples of the target distribution `[..., M]`.
        kappa: error above which the Huber loss L is linear; None or 0 is |u|.
    """
    from torch import broadcast_tensors, where
    from torch.nn.functional import huber_loss

    theta_i, target_j = broadcast_tensors(theta.unsqueeze(-1), target.unsqueeze(-2))
    error = (
        huber_loss(theta_i, target_j, reduction="none", delta=kappa) if kappa else (theta_i - target_j).abs()
    )
    tau = midpoints(theta).unsqueeze(-1)
    return (where(target_j < theta_i.detach(), 1.0 - tau, tau) * error).mean(dim=-1).sum(dim=-1, keepdim=True)


def midpoints(theta: Tensor) -> Tensor:
    """Quantile levels tau_i = (2 i - 1) / (2 N), i = 1..N, `[N]`, of `theta` `[..., N]` (lemma 2)."""
    count = theta.shape[-1]
    return (theta.new_ones(count).cumsum(0) - 0.5) / count


@dataclass(frozen=True, kw_only=True)
class QRDQN(QLearning):
    """Hyper-parameters of QR-DQN."""

    name: ClassVar[str] = "qrdqn"

    num_quantiles: Count = 32
    """Quantiles of each action's return distribution; the cost of the loss is quadratic in it."""

    huber_delta: Positive | None = 1.0
    """Threshold of the quantile Huber loss (kappa); none is plain quantile regression."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the observed rewards and gamma imply."""

    def atoms(self) -> int:
        """`num_quantiles`."""
        return self.num_quantiles

    def acting_layout(self, spec: EnvSpec) -> QLayout:
        """Network of action values: the mean of the quantiles is linear in the head's weights.

        With noisy layers, whose noise is drawn per quantile, or a network module, all quantiles are published.
        """
        layout = self.layout(spec)
        own = self.noisy or layout.network is not None
        return layout if own else dataclasses.replace(layout, atoms=1)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> QLearningUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.q_learning_update import QLearningUpdate
        from asyncrl.algorithms.qrdqn_kernel import quantile_kernel

        kappa, bound = self.huber_delta, self.bound_targets
        scratch = np.empty((2, self.num_quantiles), np.float32)
        loss = partial(quantile_loss, kappa=kappa, bound_targets=bound)
        kernel = partial(quantile_kernel, scratch, self.dueling, kappa or 0.0, bound)
        return QLearningUpdate(
            self, spec, device, seed, loss=loss, values=lambda theta: theta.mean(dim=2), kernel=kernel
        )
