"""Update of CrossQ. Its networks are in `networks/batch_norm.py`."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.modules import NetworkFactory
from asyncrl.algorithms.continuous_kernel import ActorKernel, CriticKernel
from asyncrl.algorithms.continuous_update import Learned
from asyncrl.algorithms.maximum_entropy import MaximumEntropy, temperature_gradient
from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyBuffers, MaximumEntropyUpdate
from asyncrl.algorithms.sac import actor_loss, critic_loss
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.batch_norm import BatchNormPass, BatchRenorm, NormalisedMLP, folded, normalised_mlp
from asyncrl.networks.graph import Kept
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.module import ModuleNetwork, ModulePass
from asyncrl.networks.parameters import PassOptions


class CrossQUpdate(MaximumEntropyUpdate):
    """Actor, critics and temperature of CrossQ. See `MaximumEntropyUpdate`.

    Modules in training mode and copies of them in evaluation mode share one flat vector. A user's `network` replaces
    actor and critics, and is published unchanged.

    Args:
        config, spec, device, seed: see `MaximumEntropyUpdate`. The losses are SAC's.
        momentum: fraction of the running statistics kept by an update.
        renorm_warmup: updates before batch renormalisation begins; None never begins it.
        beta1: decay rate of Adam's first moment.
    """

    policy: ModuleNetwork
    critics: ModuleNetwork
    has_targets = False

    def __init__(
        self,
        config: MaximumEntropy,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        momentum: float,
        renorm_warmup: int | None,
        beta1: float,
    ) -> None:
        self._momentum, self._renorm_warmup, self._beta1 = momentum, renorm_warmup, beta1
        super().__init__(
            config,
            spec,
            device,
            seed,
            critic_loss=critic_loss,
            actor_loss=actor_loss,
            critic_kernel=partial(CriticKernel, critics=config.num_critics),
            actor_kernel=partial(ActorKernel, critics=config.num_critics),
        )
        self.evaluated_policy, self.evaluated_critics = self.policy.evaluated(), self.critics.evaluated()
        trained = [*self.policy.modules, *self.critics.modules]
        self._norms = [
            layer for module in trained for layer in module.modules() if isinstance(layer, BatchRenorm)
        ]

    def _factories(self) -> tuple[NetworkFactory | None, NetworkFactory | None]:
        if self.layout.network is not None:
            return super()._factories()
        config, make = self.config, partial(normalised_mlp, momentum=self._momentum)
        critic_hidden = config.critic_hidden_sizes or config.hidden_sizes
        return partial(make, hidden=config.hidden_sizes), partial(make, hidden=critic_hidden)

    def _make_buffers(self, batch: StagedBatch) -> CrossQBuffers:
        return CrossQBuffers(batch, self)

    @property
    def _renormalises(self) -> bool:
        """Whether batch renormalisation has begun."""
        return self._renorm_warmup is not None and self._updates >= self._renorm_warmup

    def _variant(self, acting: bool) -> Hashable:
        return acting, self._renormalises

    def _learn(self, buffers: MaximumEntropyBuffers, acting: bool) -> Learned:
        assert isinstance(buffers, CrossQBuffers)
        if self._renormalises:
            for norm in self._norms:
                norm.renormalises = True
        movable = self.movable
        alpha = torch.exp(self.log_alpha, out=self.alpha)
        next_out = buffers.next_policy.forward()
        (next_action, next_log_prob), _ = buffers.draw_next(next_out, buffers.next_noise)
        torch.mul(next_action, movable, out=buffers.next_action)
        torch.cat(buffers.both, out=buffers.pairs)
        q, next_q = buffers.split_pairs(buffers.joint.forward())
        buffers.next_q.copy_(next_q)
        critic, (grad_q,) = buffers.critic_gradients(
            (q,), buffers.next_q, next_log_prob, alpha, buffers.batch
        )
        buffers.joint.backward(grad_q)
        if not acting:
            return Learned(critic, q)
        (own_action, log_prob), pull_back = buffers.draw_own(buffers.policy.forward(), buffers.own_noise)
        torch.mul(own_action, movable, out=buffers.own_action)
        own_q = buffers.own_critics.forward()
        actor, (grad_q, grad_log_prob) = buffers.actor_gradients((own_q, log_prob), alpha)
        grad_action = buffers.own_critics.backward(grad_q) * movable
        buffers.policy.backward(pull_back(grad_action, grad_log_prob))
        if self.config.ent_coef is None:
            self.log_alpha_gradient.copy_(temperature_gradient(log_prob, self.target_entropy))
        return Learned(critic, q, actor.loss)

    def _write_network(self, out: NDArray[np.float32]) -> None:
        """Copy the actor, with batch normalisation folded into its layers."""
        (network,) = self.policy.modules
        if self.layout.network is not None:
            super()._write_network(out)
            return
        assert isinstance(network, NormalisedMLP)
        FlatMLP(self.layout.sizes, torch.from_numpy(out)).load_state_dict(folded(network))

    @torch.no_grad()
    def critic_weights(self) -> NDArray[np.float32]:
        """Weights of the critics `[C, P]`, with batch normalisation folded into their layers."""
        if self.layout.network is not None:
            return super().critic_weights()
        out = torch.empty(self.critic_layout.shape)
        for row, network in zip(out, self.critics.modules, strict=True):
            assert isinstance(network, NormalisedMLP)
            FlatMLP(self.critic_layout.sizes, row).load_state_dict(folded(network))
        weights: NDArray[np.float32] = out.numpy()
        return weights

    def _begin_network(self, flat: Tensor) -> None:
        if self.layout.network is None:
            raise ValueError("crossq folds its batch normalisation into the weights that act, for good")
        super()._begin_network(flat)


class CrossQBuffers(MaximumEntropyBuffers):
    """Passes of the update. See `MaximumEntropyBuffers`.

    Attributes:
        both, pairs: `[2 B, inputs + d]`: (obs, action), (next_obs, own action); `both` are views of `x`.
        next_q: `[C, B, 1]`, Q of the second half.
        split_pairs: splits Q of `pairs` into that of both halves.
        joint: pass of the critics in training mode over `pairs`, with a gradient for the first half.
        own_critics: pass of the critics in evaluation mode over the policy's own actions in obs, with a gradient at
            these actions.
        policy: pass of the policy in training mode over obs, with a gradient.
        next_policy: pass of the policy in evaluation mode over next_obs.
    """

    def __init__(self, batch: StagedBatch, update: CrossQUpdate) -> None:
        super().__init__(batch, update)
        size = batch.size
        precision, values = update.precision, update.layout.action_values
        self.both = self.x[:size], self.x[2 * size :]
        self.pairs, self.next_q = (
            torch.zeros_like(self.x[: 2 * size]),
            self.x.new_zeros(update.critics.copies, size, 1),
        )
        self.split_pairs = Kept(partial(torch.split, split_size_or_sections=size, dim=1))
        trained: PassOptions = {"weight_rows": size, "precision": precision}
        judged: PassOptions = {"input_rows": size, "input_columns": values, "precision": precision}
        self.joint = _make_pass(update.critics, self.pairs, update.critics_gradient, trained)
        self.own_critics = _make_pass(update.evaluated_critics, self.x[size : 2 * size], None, judged)
        self.policy = _make_pass(update.policy, self.obs, update.policy_gradient, trained)
        self.next_policy = _make_pass(update.evaluated_policy, self.next_obs, None, {"precision": precision})


def _make_pass(
    network: ModuleNetwork, x: Tensor, gradient: Tensor | None, options: PassOptions
) -> BatchNormPass | ModulePass:
    if passes_by_hand(network, x):
        return BatchNormPass(network.modules, x, network.ensemble, gradient, options)
    return network.make_pass(x, gradient, **options)


def passes_by_hand(network: ModuleNetwork, x: Tensor) -> bool:
    """Whether the passes need no autograd: those of `normalised_mlp` on the CPU."""
    return x.device.type == "cpu" and all(isinstance(module, NormalisedMLP) for module in network.modules)
