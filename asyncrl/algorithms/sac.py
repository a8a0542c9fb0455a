"""Soft actor-critic with an automatic temperature.

Haarnoja et al. 2018a   Soft actor-critic: off-policy maximum entropy deep reinforcement learning
Haarnoja et al. 2018b   Soft actor-critic algorithms and applications (twin critics, temperature)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import ActorLoss, CriticLoss, squared_error
from asyncrl.algorithms.maximum_entropy import MaximumEntropy
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyUpdate
    from asyncrl.algorithms.staging import StagedBatch


def critic_loss(
    q: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: Tensor, batch: StagedBatch
) -> CriticLoss:
    """Critic loss J(Q) of Haarnoja et al. 2018b, eq. 5, with the smallest value of the target critics.

    y = r + gamma (min_c Q'_c(s', a') - alpha log pi(a'|s')), a' ~ pi(.|s')

    Args:
        q: Q_c(s, a) `[C, B, 1]`.
        next_q: Q'_c(s', a') `[C, B, 1]`.
        next_log_prob: log pi(a'|s') `[B, 1]`.
        alpha: scalar.
        batch: `discount` is gamma^n, or 0 after a termination.
    """
    assert q.shape == next_q.shape and next_log_prob.shape == batch.reward.shape
    y = batch.reward + batch.discount * (next_q.amin(dim=0) - alpha * next_log_prob)
    return squared_error(q, y, batch.weight)


def actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> ActorLoss:
    """Actor loss J(pi) of Haarnoja et al. 2018b, eq. 9: mean of alpha log pi(a|s) - min_c Q_c(s, a), a ~ pi(.|s).

    Args:
        q: Q_c(s, a) `[C, B, 1]`.
        log_prob: log pi(a|s) `[B, 1]`.
        alpha: scalar.
    """
    assert q.shape[1:] == log_prob.shape
    return ActorLoss((alpha * log_prob - q.min(dim=0).values).mean())


@dataclass(frozen=True, kw_only=True)
class SAC(MaximumEntropy):
    """Hyper-parameters of soft actor-critic."""

    name: ClassVar[str] = "sac"

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> MaximumEntropyUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.continuous_kernel import ActorKernel, CriticKernel
        from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyUpdate

        return MaximumEntropyUpdate(
            self,
            spec,
            device,
            seed,
            critic_loss=critic_loss,
            actor_loss=actor_loss,
            critic_kernel=partial(CriticKernel, critics=self.num_critics),
            actor_kernel=partial(ActorKernel, critics=self.num_critics),
        )
