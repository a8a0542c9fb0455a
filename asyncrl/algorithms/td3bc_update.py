"""Update of TD3+BC: that of TD3 with another loss of the actor."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.continuous_update import DeterministicBuffers, DeterministicUpdate
from asyncrl.algorithms.offline_actor_critic import OfflineActorCritic
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.gradients import output_gradients


class TD3BCUpdate(DeterministicUpdate):
    """Actor and critics of TD3+BC, and their targets. See `DeterministicUpdate`.

    Args:
        config, spec, device, seed, critic_loss, smoothing: see `DeterministicUpdate`.
        actor_loss: function of `(q, action, taken)`: values of the actor's actions, these, and those of the dataset.
    """

    def __init__(
        self,
        config: OfflineActorCritic,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        critic_loss: Callable[[Tensor, Tensor, StagedBatch], CriticLoss],
        smoothing: Callable[[Tensor, Tensor], Tensor] | None,
        actor_loss: Callable[[Tensor, Tensor, Tensor], ActorLoss],
    ) -> None:
        super().__init__(
            config,
            spec,
            device,
            seed,
            critic_loss=critic_loss,
            smoothing=smoothing,
            kernels=False,
        )
        self._actor_loss_of = actor_loss

    def _actor_gradient(self, buffers: DeterministicBuffers) -> tuple[Tensor, Tensor]:
        outputs = buffers.first_critic.forward(), buffers.own_action
        actor, (grad_q, grad_own) = output_gradients(self._actor_loss_of, outputs, buffers.batch.action)
        return actor.loss, buffers.first_critic.backward(grad_q).add_(grad_own)
