"""Policy and value network of an on-policy learner on one flat parameter vector, with one optimiser.

The acting weights (the policy's weights and the Gaussian's log standard deviations) are the first part of the vector,
in the order of `ActorLayout`. So publishing is one copy, and Adam, gradient norm and clipping are one operation each.
Policy and value share no layers here: a shared trunk requires a balance between both losses, and saves little where a
forward pass takes a few microseconds. It saves much for images and recurrent cells: see `shared_trunk.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from asyncrl.acting.stochastic import ActorLayout
from asyncrl.algorithms.segment_networks import SegmentNetworks
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.distributions import categorical, categorical_log_prob, diagonal_gaussian
from asyncrl.networks.graph import Kept

_POLICY_HEAD_GAIN, _VALUE_HEAD_GAIN = 0.01, 1.0
VALUE = 2
"""Index of the value network among the parts of the vector."""


class ActorCritic(SegmentNetworks):
    """Policy and value network. See `SegmentNetworks`.

    Args:
        config: hyper-parameters, an `OnPolicy`, which is not imported because it imports the passes.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights (orthogonal), the same on every device.

    Attributes:
        layout: network of the policy, and order of the published values.
        parameters, gradient: flat `[P]`, policy, log standard deviations, value.
        bounds: `[3, d]`, lower and upper bounds of mean actions and factors of the gradient beyond them; None without a
            penalty.
        log_std: view `[d]` into `parameters`; d is 0 if the policy is not Gaussian.
    """

    STATE = ("_policy", "log_std", "_value", *SegmentNetworks.STATE)
    layout: ActorLayout

    def __init__(self, config: Any, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        layout: ActorLayout = config.layout(spec)
        policy, value = self._architectures(layout, config.value_hidden_sizes, seed)
        generator = torch.Generator().manual_seed(seed)
        parts = (
            policy.initial(generator, head_gain=_POLICY_HEAD_GAIN),
            torch.full((layout.action_values,), config.initial_log_std),
            value.initial(generator, head_gain=_VALUE_HEAD_GAIN),
        )
        super().__init__(config, spec, layout, parts, device)
        policy_flat, self.log_std, value_flat = self.parameters.split(self._sizes)
        self._policy, self._value = policy.on(policy_flat), value.on(value_flat)
        self.vector = self._make_vector([*self._policy.buffers(), *self._value.buffers()])
        self.bounds: Tensor | None = None
        if config.bounds_coef and isinstance(spec.action, BoxAction) and not layout.squashed:
            low, high = torch.tensor((spec.action.low, spec.action.high))
            half = (high - low) / 2
            factor = torch.where(half > 0, 2 * config.bounds_coef / half.square(), 0.0)
            self.bounds = torch.stack((low, high, factor)).to(self.device)

    def _architectures(
        self, layout: ActorLayout, value_hidden: tuple[int, ...] | None, seed: int
    ) -> tuple[Architecture, Architecture]:
        """Architectures of policy and value network."""
        hidden = layout.hidden if value_hidden is None else value_hidden
        make = partial(Architecture, activation=layout.activation, network=layout.network)
        return make(layout.sizes, seed=seed), make((layout.inputs, *hidden, 1), seed=seed + 1)

    def make_pass(self, rows: int, gradient: bool) -> NetworksPass:
        """Buffers for a pass of both networks over `rows` rows, with or without a backward pass."""
        parts = self.gradient.split(self._sizes) if gradient else None
        policy, value = self._networks(gradient)
        return ActorCriticPass(policy, value, rows, self.layout.inputs, parts)

    def _networks(self, gradient: bool) -> tuple[Network, Network]:
        """Policy and value network, in evaluation mode for passes without a gradient."""
        pair = self._policy, self._value
        return pair if gradient else (pair[0].evaluated(), pair[1].evaluated())

    def action_buffer(self, rows: int) -> Tensor:
        """See `SegmentNetworks`: choices `[rows, ...]`, actions or latents `[rows, d]`."""
        if self.layout.gaussian:
            return torch.zeros(rows, self.layout.outputs)
        return torch.zeros(rows, *self.layout.action.shape, dtype=torch.int64)

    @property
    def outputs(self) -> int:
        """See `SegmentNetworks`."""
        return self.layout.outputs

    def distribution(self, out: Tensor, action: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, `[B]` each, of `action` under the policy's outputs `[B, outputs]`.

        For a squashed policy, actions are latents and the density is that of the latents: probability ratios are equal.
        """
        if self.layout.gaussian:
            return diagonal_gaussian(out, action, log_std)
        return categorical(out, action, self.layout.choices)

    def log_prob(self, out: Tensor, action: Tensor, log_std: Tensor) -> Tensor:
        """The log-probability of `distribution` alone."""
        if self.layout.gaussian:
            return diagonal_gaussian(out, action, log_std)[0]
        return categorical_log_prob(out, action, self.layout.choices)

    def add_bounds_gradient(self, gradient: Tensor, mean: Tensor, weight: Tensor) -> None:
        """Add to `gradient` that of the penalty for mean actions beyond the bounds, whose gradient is else 0.

            c_b sum over rows of w |(mu - clip(mu, low, high)) / half|^2        half = (high - low) / 2

        Actions are clipped, so beyond the bounds all returns are alike, and a mean that got there would stay. A box
        without a finite range in some direction has no penalty in it.

        Args:
            gradient: of the loss at `mean`, `[B, d]`, changed in place.
            mean: mu `[B, d]`, the policy's outputs.
            weight: w `[B]`.
        """
        if self.bounds is not None:
            low, high, factor = self.bounds
            gradient.add_((mean - mean.clamp(low, high)) * factor * weight[:, None])

    def critic_weights(self) -> Tensor:
        """Weights of the value network, a copy `[1, P]` on the host, in the order of `OnPolicy.critic_layout`."""
        return self._value.by_copy()

    def load_critic(self, weights: Tensor) -> None:
        """Copy what `critic_weights` returned."""
        self._value.load_copies(weights)


class NetworksPass(Protocol):
    """Pass of policy and value network over R rows; see `ActorCriticPass`."""

    x: Tensor

    def forward(self) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[R, outputs]` and the values `[R]`, without a graph; valid until the next call."""
        ...

    def values(self) -> Tensor:
        """The values `[R]` alone."""
        ...

    def backward(self, grad_out: Tensor, grad_value: Tensor, grad_log_std: Tensor) -> None:
        """Fill the whole gradient, given the loss's gradient at the outputs of the last `forward`."""
        ...


class ActorCriticPass:
    """Pass of two separate networks over the same R rows.

    Args:
        policy, value: the networks; each call uses their present weights.
        rows: R.
        inputs: values of one observation.
        gradient: parts of the flat gradient for policy, log standard deviations and value; None without backward pass.

    Attributes:
        x: `[R, inputs]`, written by the caller.
    """

    def __init__(
        self, policy: Network, value: Network, rows: int, inputs: int, gradient: tuple[Tensor, ...] | None
    ) -> None:
        self.x = torch.zeros(rows, inputs, device=policy.flat.device)
        into_policy = into_value = self._log_std_gradient = None
        if gradient is not None:
            into_policy, self._log_std_gradient, into_value = gradient
        seen = 0 if gradient is None else rows
        self._policy = policy.make_pass(self.x, into_policy, weight_rows=seen)
        self._value = value.make_pass(self.x, into_value, weight_rows=seen)
        self._squeezed = Kept(partial(torch.squeeze, dim=1))
        self._column = Kept(partial(torch.unsqueeze, dim=1))

    def forward(self) -> tuple[Tensor, Tensor]:
        """The policy's outputs `[R, outputs]` and the values `[R]`, without a graph; valid until the next call."""
        return self._policy.forward(), self.values()

    def values(self) -> Tensor:
        """The values `[R]` alone, equal to those of `forward`."""
        values: Tensor = self._squeezed(self._value.forward())
        return values

    def backward(self, grad_out: Tensor, grad_value: Tensor, grad_log_std: Tensor) -> None:
        """Fill the whole gradient, given the loss's gradient at the outputs of the last `forward`."""
        self._policy.backward(grad_out)
        self.backward_value(grad_value)
        if self._log_std_gradient is not None and grad_log_std.numel():
            self._log_std_gradient.copy_(grad_log_std)

    def backward_value(self, grad_value: Tensor) -> None:
        """Fill the value network's part of the gradient alone."""
        self._value.backward(self._column(grad_value))
