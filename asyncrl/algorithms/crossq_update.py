"""Update of CrossQ, its networks, and the folding of batch normalisation into linear layers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.acting.modules import NetworkFactory
from asyncrl.algorithms.continuous_update import Learned
from asyncrl.algorithms.maximum_entropy import MaximumEntropy, temperature_gradient
from asyncrl.algorithms.maximum_entropy_update import MaximumEntropyBuffers, MaximumEntropyUpdate
from asyncrl.algorithms.sac import actor_loss, critic_loss
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.module import ModuleNetwork

EPS = 1e-3
"""Added to variances, as in the authors' code."""
LARGEST_R, LARGEST_D = 3.0, 5.0
"""Bounds of the corrections of batch renormalisation, as in the authors' code and in SBX."""


class BatchRenorm(nn.BatchNorm1d):
    """Batch normalisation, or batch renormalisation (Ioffe 2017, algorithm 1), in the layer's training mode.

        y = gamma ((x - mu_B) / sigma_B r + d) + beta
        r = sigma_B / sigma,  within 1/3 .. 3        d = (mu_B - mu) / sigma,  within -5 .. 5

    mu and sigma are the running statistics before this batch. No gradient flows through r and d. Where they are not
    clipped, a batch is normalised by the running statistics, as in evaluation mode.

    Attributes:
        renormalises: whether the correction by r and d is made; without it r is 1 and d is 0.
    """

    renormalises = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `[R, features]`; in training mode also update the running statistics."""
        if not (self.training and self.renormalises):
            return super().forward(x)
        mean, variance = self.running_mean, self.running_var
        assert mean is not None and variance is not None
        with torch.no_grad():
            batch_variance, batch_mean = torch.var_mean(x, dim=0, correction=0)
            sigma = (variance + self.eps).sqrt()
            r = ((batch_variance + self.eps).sqrt() / sigma).clamp_(1 / LARGEST_R, LARGEST_R)
            d = ((batch_mean - mean) / sigma).clamp_(-LARGEST_D, LARGEST_D)
        scale, shift = self.weight * r, self.weight * d + self.bias
        return nn.functional.batch_norm(x, mean, variance, scale, shift, True, self.momentum or 0.0, self.eps)


def normalised_mlp(inputs: int, outputs: int, hidden: tuple[int, ...], momentum: float) -> nn.Sequential:
    """Perceptron with batch normalisation before every linear layer, into which it can be folded.

    Args:
        inputs: values of a row.
        outputs: values of the head.
        hidden: widths of the hidden layers.
        momentum: fraction of the running statistics kept by a forward pass in training mode.
    """
    norm = partial(BatchRenorm, eps=EPS, momentum=1.0 - momentum)
    layers: list[nn.Module] = [norm(inputs)]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU(), norm(width)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@torch.no_grad()
def folded(network: nn.Sequential) -> Mapping[str, Tensor]:
    """`FlatMLP.state_dict` of the plain perceptron equal to a `normalised_mlp` in evaluation mode."""
    norms = [layer for layer in network if isinstance(layer, nn.BatchNorm1d)]
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    parameters = {}
    for i, (norm, linear) in enumerate(zip(norms, linears, strict=True)):
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight / (norm.running_var + EPS).sqrt()
        shift = norm.bias - norm.running_mean * scale
        parameters[f"{i}.weight"] = linear.weight * scale
        parameters[f"{i}.bias"] = linear.bias + linear.weight @ shift
    return parameters


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
        super().__init__(config, spec, device, seed, critic_loss=critic_loss, actor_loss=actor_loss)
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
        size, movable = buffers.size, self.movable
        alpha = torch.exp(self.log_alpha, out=self.alpha)
        next_out = buffers.next_policy.forward()
        (next_action, next_log_prob), _ = buffers.draw_next(next_out, buffers.next_noise)
        torch.mul(next_action, movable, out=buffers.next_action)
        torch.cat((buffers.x[:size], buffers.x[2 * size :]), out=buffers.pairs)
        all_q = buffers.joint.forward()
        q, next_q = all_q[:, :size], all_q[:, size:]
        critic, (grad_q,) = buffers.critic_gradients((q,), next_q, next_log_prob, alpha, buffers.batch)
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
        assert isinstance(network, nn.Sequential)
        FlatMLP(self.layout.sizes, torch.from_numpy(out)).load_state_dict(folded(network))

    @torch.no_grad()
    def critic_weights(self) -> NDArray[np.float32]:
        """Weights of the critics `[C, P]`, with batch normalisation folded into their layers."""
        if self.layout.network is not None:
            return super().critic_weights()
        out = torch.empty(self.critic_layout.shape)
        for row, network in zip(out, self.critics.modules, strict=True):
            assert isinstance(network, nn.Sequential)
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
        pairs: `[2 B, inputs + d]`: (obs, action), (next_obs, own action).
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
        self.pairs = torch.zeros_like(self.x[: 2 * size])
        self.joint = update.critics.make_pass(
            self.pairs, update.critics_gradient, weight_rows=size, precision=precision
        )
        self.own_critics = update.evaluated_critics.make_pass(
            self.x[size : 2 * size], input_rows=size, input_columns=values, precision=precision
        )
        self.policy = update.policy.make_pass(
            self.obs, update.policy_gradient, weight_rows=size, precision=precision
        )
        self.next_policy = update.evaluated_policy.make_pass(self.next_obs, precision=precision)
