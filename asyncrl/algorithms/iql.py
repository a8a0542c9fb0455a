"""Implicit Q-learning, for a dataset alone.

    Kostrikov et al. 2021   Offline reinforcement learning with implicit Q-learning

No value of an action outside the dataset is ever asked for. A value network learns an upper expectile of the critics
over the dataset's actions, the critics are bootstrapped from it, and the actor imitates the dataset's actions, weighted
by the exponential of their advantage. The update is in `iql_update.py`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from asyncrl.algorithms.continuous import ActorLoss, CriticLoss, squared_error
from asyncrl.algorithms.offline import scheduled
from asyncrl.algorithms.offline_actor_critic import OfflineActorCritic
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Coefficient, Positive, Range

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.iql_update import IQLUpdate
    from asyncrl.algorithms.staging import StagedBatch

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Clip range of the actor's log standard deviations, as in the authors' code."""


class ValueLoss(NamedTuple):
    """Result of the value network's loss."""

    loss: Tensor
    """Scalar to minimise."""


def value_loss(v: Tensor, target_q: Tensor, expectile: float) -> ValueLoss:
    """Expectile regression of the critics' values (Kostrikov et al. 2021, eq. 5): mean of L_2^tau(Q'(s, a) - V(s)).

    L_2^tau(u) = |tau - 1(u < 0)| u^2

    Args:
        v: V(s) `[B, 1]`.
        target_q: smallest Q'_c(s, a) of the target critics `[B, 1]`.
        expectile: tau; 0.5 is the mean, towards 1 the maximum over the dataset's actions.
    """
    from torch import where

    assert v.shape == target_q.shape and v.shape[1] == 1
    u = target_q - v
    return ValueLoss((where(u < 0, 1.0 - expectile, expectile) * u.square()).mean())


def critic_loss(q: Tensor, next_v: Tensor, batch: StagedBatch) -> CriticLoss:
    """Squared error of the critics (eq. 6): y = r + gamma V(s').

    Args:
        q: Q_c(s, a) `[C, B, 1]`.
        next_v: V(s') `[B, 1]`.
        batch: `discount` is gamma, or 0 after a termination.
    """
    assert next_v.shape == batch.reward.shape
    return squared_error(q, batch.reward + batch.discount * next_v, batch.weight)


def policy_loss(
    out: Tensor, log_std: Tensor, taken: Tensor, advantage: Tensor, beta: float, most: float
) -> ActorLoss:
    """Advantage-weighted log-likelihood (eq. 7): -mean of min(exp(beta A), most) log pi(a|s), A = Q'(s, a) - V(s).

    pi(.|s) = N(tanh(out), std), with standard deviations that do not depend on s.

    Args:
        out: `[B, d]`.
        log_std: `[d]`.
        taken: a `[B, d]`, of the dataset, in units of half the action range.
        advantage: A `[B, 1]`.
        beta: inverse temperature; 0 clones the dataset.
        most: largest weight.
    """
    from asyncrl.networks.distributions import diagonal_gaussian

    assert out.shape == taken.shape and advantage.shape == (out.shape[0], 1)
    log_prob, _ = diagonal_gaussian(out.tanh(), taken, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX))
    weight = (beta * advantage.squeeze(1)).exp().clamp(max=most)
    return ActorLoss(-(weight * log_prob).mean())


@dataclass(frozen=True, kw_only=True)
class IQL(OfflineActorCritic):
    """Hyper-parameters of implicit Q-learning: those of the paper for locomotion."""

    name: ClassVar[str] = "iql"

    expectile: Annotated[float, Range(above=0, below=1)] = 0.7
    """Expectile of the value network: 0.5 is the mean, towards 1 the maximum over the dataset's actions."""

    inverse_temperature: Coefficient = 3.0
    """Inverse temperature of the actor's weights exp(beta A); 0 clones the dataset."""

    max_advantage_weight: Positive = 100.0
    """Largest weight of an action in the actor's loss."""

    normalize_rewards: bool = True
    """Scale rewards so that the returns of the dataset's episodes span 1,000, as in the paper."""

    actor_learning_rate_schedule: Literal["constant", "cosine"] = "cosine"
    """Schedule of the actor's learning rate: constant, or cosine to 0 at the end of the run's steps; a function of
    progress is taken as it is."""

    def actor_learning_rate_at(self, progress: float) -> float:
        """Learning rate of the actor at this progress of the run."""
        own = self.learning_rate if self.actor_learning_rate is None else self.actor_learning_rate
        return scheduled(own, "constant" if callable(own) else self.actor_learning_rate_schedule, progress)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> IQLUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.iql_update import IQLUpdate

        beta, most = self.inverse_temperature, self.max_advantage_weight
        return IQLUpdate(
            self,
            spec,
            device,
            seed,
            value_loss=partial(value_loss, expectile=self.expectile),
            critic_loss=critic_loss,
            policy_loss=partial(policy_loss, beta=beta, most=most),
            actor_rate=self.actor_learning_rate_at,
            normalize_rewards=self.normalize_rewards,
        )
