"""Policy and value network of an on-policy learner with a shared trunk: all layers but the last are common.

Each has a linear head on the trunk's features, as in Mnih et al. 2016, CleanRL and Stable-Baselines3's `CnnPolicy`. The
trunk is a convolutional network with its hidden layer, or a recurrent network. A separate trunk for the value would
double the cost of an update. A separate cell for the value (sb3-contrib's default) would force actors to run a second
cell, only to store its state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.acting.images import ImageNetwork
from asyncrl.acting.modules import tensors_of
from asyncrl.acting.recurrent_module import RecurrentModule
from asyncrl.acting.stochastic import ActorLayout
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.networks.architecture import Architecture
from asyncrl.networks.module import ModuleGradient, ModuleNetwork, fill
from asyncrl.networks.recurrent import Pieces, unroll


class ValueHead(nn.Linear):
    """Value head: a linear layer on the trunk's features."""

    @torch.no_grad()
    def initialise_orthogonally(self, head_gain: float) -> None:
        """Set orthogonal weights with this gain and a zero bias."""
        nn.init.orthogonal_(self.weight, head_gain)
        self.bias.zero_()


class SharedTrunkActorCritic(ActorCritic):
    """Policy and value network with a shared trunk, convolutions or encoder and cell; see `ActorCritic`.

    The value's part of the parameters contains its head only.
    """

    @staticmethod
    def takes(layout: ActorLayout) -> bool:
        """Whether the policy's network is a convolutional one of this package."""
        return isinstance(layout.network, ImageNetwork)

    def _architectures(
        self, layout: ActorLayout, value_hidden: tuple[int, ...] | None, seed: int
    ) -> tuple[Architecture, Architecture]:
        cell = layout.cell
        factory = layout.network if cell is None else layout.recurrent_factory
        policy = Architecture(layout.sizes, network=factory, seed=seed)
        width = policy.modules[0].head[-1].in_features if cell is None else cell.size
        return policy, Architecture((width, 1), network=ValueHead, seed=seed + 1)

    def critic_weights(self) -> Tensor:
        """Weights of the trunk with the value's head in place of the policy's, a copy `[1, P]` on the host."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self._critic()])[None].cpu()

    def load_critic(self, weights: Tensor) -> None:
        """Copy what `critic_weights` returned: the trunk, which is the policy's as well, and the value's head."""
        fill(self._critic(), weights[0])

    def _critic(self) -> list[Tensor]:
        """Tensors of the trunk, with the value's head in place of the policy's."""
        policy, value = self._policy, self._value
        assert isinstance(policy, ModuleNetwork) and isinstance(value, ModuleNetwork)
        trunk: Any = policy.modules[0]
        head: Any = value.modules[0]
        replaced = trunk.head if self.layout.cell is not None else trunk.head[-1]
        own = {id(replaced.weight): head.weight, id(replaced.bias): head.bias}
        return [own.get(id(tensor), tensor) for tensor in tensors_of([trunk])]

    def make_pass(self, rows: int, gradient: bool) -> SharedPass:
        """Make a pass over `rows` rows (of whole streams if recurrent), with or without a backward pass."""
        policy, value = self._networks(gradient)
        assert isinstance(policy, ModuleNetwork) and isinstance(value, ModuleNetwork)
        x = torch.zeros(rows, self.layout.inputs, device=self.device)
        parts = self.gradient.split(self._sizes) if gradient else None
        kind = SharedPass if self.layout.cell is None else RecurrentPass
        return kind(policy.modules[0], value.modules[0], x, parts)


class SharedPass:
    """Pass of trunk and both heads over R rows, by autograd.

    Args:
        trunk: the shared layers, with the policy's head as the last layer of `trunk.head`.
        head: head of the value.
        x: `[R, inputs]`.
        gradient: parts of the flat gradient for policy, log standard deviations and value; None without backward pass.

    Attributes:
        x: written or replaced by the caller.
    """

    def __init__(self, trunk: Any, head: nn.Module, x: Tensor, gradient: tuple[Tensor, ...] | None) -> None:
        self.x, self._trunk, self._head, self._tracked = x, trunk, head, gradient is not None
        self._graph: tuple[Tensor, Tensor] = (x, x)
        if gradient is not None:
            into_policy, self._log_std_gradient, into_value = gradient
            self._gradient = ModuleGradient(([trunk], into_policy), ([head], into_value))

    def _features(self) -> tuple[Tensor, nn.Module]:
        """Features `[R, F]` of the trunk, and the policy's head."""
        layers = self._trunk.head
        return layers[:-1](self._trunk.encode(self.x)), layers[-1]

    def forward(self) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[R, outputs]` and the values `[R]`, without a graph."""
        with torch.inference_mode(False), torch.set_grad_enabled(self._tracked):
            features, head = self._features()
            self._graph = head(features), self._head(features).squeeze(1)
        out, value = self._graph
        return out.detach(), value.detach()

    def values(self) -> Tensor:
        """The values `[R]` alone."""
        return self.forward()[1]

    def backward(self, grad_out: Tensor, grad_value: Tensor, grad_log_std: Tensor) -> None:
        """Fill the whole gradient, given the loss's gradient at the outputs of the last `forward`."""
        with torch.inference_mode(False), torch.enable_grad():
            self._gradient.fill(self._graph, (grad_out, grad_value))
        if grad_log_std.numel():
            self._log_std_gradient.copy_(grad_log_std)


class RecurrentPass(SharedPass):
    """Pass of trunk and both heads over R rows of whole streams. Arguments are those of `SharedPass`.

    Attributes:
        x: written or replaced by the caller.
        state: `[B, state_size]`, state before the first row of each stream; must be set before `forward`.
        pieces: pieces of the rows; must be set before `forward`.
    """

    state: Tensor
    pieces: Pieces

    def _features(self) -> tuple[Tensor, nn.Module]:
        trunk = self._trunk
        assert isinstance(trunk, RecurrentModule)
        return unroll(trunk, self.x, self.state, self.pieces), trunk.head
