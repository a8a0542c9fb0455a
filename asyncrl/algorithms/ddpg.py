"""Deep deterministic policy gradient.

    Lillicrap et al. 2016   Continuous control with deep reinforcement learning

The paper's batch normalisation and weight decay are omitted, as in other implementations. Options, actor's loss and
update are common with TD3: see `continuous.py` and `continuous_update.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import CriticLoss, DeterministicActor, squared_error
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.continuous_update import DeterministicUpdate
    from asyncrl.algorithms.staging import StagedBatch


def critic_loss(q: Tensor, next_q: Tensor, batch: StagedBatch) -> CriticLoss:
    """Squared error of the critic (Lillicrap et al. 2016, eq. 5): y = r + gamma Q'(s', mu'(s')).

    Args:
        q: Q(s, a) `[1, B, 1]`.
        next_q: Q'(s', mu'(s')) `[1, B, 1]`.
        batch: `discount` is gamma^n, or 0 after a termination.
    """
    assert q.shape == next_q.shape and q.shape[0] == 1
    y = batch.reward + batch.discount * next_q[0]
    return squared_error(q, y, batch.weight)


@dataclass(frozen=True, kw_only=True)
class DDPG(DeterministicActor):
    """Hyper-parameters of DDPG."""

    name: ClassVar[str] = "ddpg"

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> DeterministicUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.continuous_update import DeterministicUpdate

        return DeterministicUpdate(self, spec, device, seed, critic_loss=critic_loss)
