"""Deep Q-learning with its usual extensions, each of which can be disabled.

Mnih et al. 2015        Human-level control through deep reinforcement learning
van Hasselt et al. 2016 Deep reinforcement learning with double Q-learning
Schaul et al. 2016      Prioritized experience replay (importance weights)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.q_learning import QLearning, QLoss, huber
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Positive

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.q_learning_update import QLearningUpdate
    from asyncrl.algorithms.staging import StagedBatch


def dqn_loss(
    q: Tensor,
    next_q: Tensor,
    next_action: Tensor,
    batch: StagedBatch,
    huber_delta: float | None,
    bound_targets: bool,
) -> QLoss:
    """Weighted Huber loss of the temporal-difference errors, which are also the priorities (Schaul et al. 2016).

    The target is Y = R + gamma^n Q(S', a'; theta-). a' is the best action of the online network for double Q-learning
    (van Hasselt et al. 2016, eq. 4), else that of the target network. `huber_delta` 1 corresponds to the error clipping
    of Mnih et al. 2015. The loss is a sum over the batch, because `batch.weight` is divided by B.

    Args:
        q: Q(S, .; theta) `[B, A]`.
        next_q: Q(S', .; theta-) `[B, A]`.
        next_action: a' `[B, 1]` int64.
        batch: `discount` is gamma^n, or 0 after a termination.
        huber_delta: error above which the loss is linear; None is the squared loss.
        bound_targets: clip Q(S', a') to `batch.low` and `batch.high`.
    """
    assert q.dim() == 2 and next_q.shape == q.shape and next_action.shape == batch.action.shape
    next_value = next_q.gather(1, next_action)
    if bound_targets:
        next_value = next_value.clamp(batch.low, batch.high)
    error = q.gather(1, batch.action) - (batch.reward + batch.discount * next_value)
    return QLoss((batch.weight * huber(error, huber_delta)).sum(), error.detach())


@dataclass(frozen=True, kw_only=True)
class DQN(QLearning):
    """Hyper-parameters of deep Q-learning."""

    name: ClassVar[str] = "dqn"

    huber_delta: Positive | None = 1.0
    """Threshold of the Huber loss; none is the squared loss."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the observed rewards and gamma imply."""

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> QLearningUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.dqn_kernel import dqn_kernel
        from asyncrl.algorithms.q_learning_update import QLearningUpdate

        loss = partial(dqn_loss, huber_delta=self.huber_delta, bound_targets=self.bound_targets)
        kernel = partial(dqn_kernel, self.dueling, self.huber_delta or math.inf, self.bound_targets)
        return QLearningUpdate(self, spec, device, seed, loss=loss, values=lambda q: q, kernel=kernel)
