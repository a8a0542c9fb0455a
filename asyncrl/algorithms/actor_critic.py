"""Policy and value network of an on-policy learner on one flat parameter vector, with one optimiser.

The acting weights (the policy's weights and the Gaussian's log standard deviations) are the first part of the vector,
in the order of `ActorLayout`. So publishing is one copy, and Adam, gradient norm and clipping are one operation each.
Policy and value share no layers here: a shared trunk requires a balance between both losses, and saves little where a
forward pass takes a few microseconds. It saves much for images and recurrent cells: see `shared_trunk.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.network import NetworkInputs
from asyncrl.acting.stochastic import ActorLayout
from asyncrl.algorithms.normalization import PublishedMoments, RunningMoments
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import RESET, EnvSpec
from asyncrl.networks.architecture import Architecture, Network
from asyncrl.networks.distributions import categorical, categorical_log_prob, diagonal_gaussian
from asyncrl.networks.flat_vector import FlatVector, Moments
from asyncrl.networks.graph import Kept
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy
from asyncrl.saved_state import Stateful

_POLICY_HEAD_GAIN, _VALUE_HEAD_GAIN = 0.01, 1.0


class ActorCritic(Stateful):
    """Policy and value network, their optimiser Adam, and the observation statistics.

    Learner thread only, under `torch.no_grad()`. A gradient step consists of `forward` and `backward` of a pass, then
    `apply`.

    Observation statistics are published with the weights, because actors normalise their observations too. Learner and
    actor must normalise an observation alike, so `observe` only collects; `move_statistics` applies what was collected,
    at the end of an iteration, before its weights are published.

    Args:
        config: hyper-parameters, an `OnPolicy`, which is not imported because it imports the passes.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: seed of the initial weights (orthogonal), the same on every device.

    Attributes:
        layout: network of the policy, and order of the published values.
        mask: function that extracts the action masks from observations; None without action masks.
        keeps_bytes: whether a rollout stores bytes (a quarter of the memory) and passes scale them when they read.
        byte_factor: factor of that scaling; see `EnvSpec.byte_factor`.
        parameters, gradient: flat `[P]`, policy, log standard deviations, value; both in `vector`.
        log_std: view `[d]` into `parameters`; d is 0 if the policy is not Gaussian.
    """

    STATE = ("_policy", "log_std", "_value", "_optimizer", "_seen", "_noted")

    def __init__(self, config: Any, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        layout: ActorLayout = config.layout(spec)
        self.layout = layout
        spec = config.stacked_spec(spec)
        self._inputs, self.mask = NetworkInputs(spec), mask_reader(spec)
        self.keeps_bytes = self._inputs.bytes and not layout.normalized
        self.byte_factor = self._inputs.byte_factor
        self.device, self.weight_count = torch.device(device), layout.weight_count
        policy, value = self._architectures(layout, config.value_hidden_sizes, seed)
        generator = torch.Generator().manual_seed(seed)
        parts = (
            policy.initial(generator, head_gain=_POLICY_HEAD_GAIN),
            torch.full((layout.action_values,), config.initial_log_std),
            value.initial(generator, head_gain=_VALUE_HEAD_GAIN),
        )
        self.parameters = torch.cat(parts).to(self.device)
        self.gradient = torch.zeros_like(self.parameters)
        self._sizes = [part.numel() for part in parts]
        policy_flat, self.log_std, value_flat = self.parameters.split(self._sizes)
        self._policy, self._value = policy.on(policy_flat), value.on(value_flat)
        eps, norm = config.adam_eps, config.max_grad_norm
        self._optimizer = FlatAdam(self.parameters, self.gradient, eps=eps, max_grad_norm=norm)
        self._acting_count = sum(self._sizes[:2])
        self._to_host = HostCopy(self.parameters[: self._acting_count])
        self._seen, self._noted = PublishedMoments(layout), RunningMoments(layout.inputs)
        # Statistics received from other learners of a group are applied together with the collected ones.
        shared = self._noted if layout.normalized else None
        buffers = *self._policy.buffers(), *self._value.buffers()
        self.vector = FlatVector(self.parameters, self.gradient, shared=(shared,), buffers=buffers)
        self.vector.moments = (self._optimizer.moments,)

    def _architectures(
        self, layout: ActorLayout, value_hidden: tuple[int, ...] | None, seed: int
    ) -> tuple[Architecture, Architecture]:
        """Architectures of policy and value network."""
        hidden = layout.hidden if value_hidden is None else value_hidden
        make = partial(Architecture, activation=layout.activation, network=layout.network)
        return make(layout.sizes, seed=seed), make((layout.inputs, *hidden, 1), seed=seed + 1)

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of the last applied gradient before clipping, a scalar tensor; None before the first step."""
        return self._optimizer.grad_norm

    def make_pass(self, rows: int, gradient: bool) -> NetworksPass:
        """Buffers for a pass of both networks over `rows` rows, with or without a backward pass."""
        parts = self.gradient.split(self._sizes) if gradient else None
        return ActorCriticPass(self._policy, self._value, rows, self.layout.inputs, parts)

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

    def moments_of_all(self, own: Moments) -> Moments:
        """Moments of the values of all groups that fuse gradients, given this one's; waits for the others."""
        assert self.vector.on_moments is not None
        moments, stepped = self.vector.on_moments(own)
        if stepped:
            self.apply(self._optimizer.learning_rate)
        return moments

    def apply(self, learning_rate: float) -> None:
        """Make one step of Adam with the clipped gradient of `backward`."""
        self._optimizer.step(learning_rate)

    def normalized(self, obs: NDArray[Any], out: NDArray[Any]) -> None:
        """Write observations as network inputs: normalised float32, or bytes scaled unless they are kept.

        Args:
            obs: `[..., *obs_shape]` in the ring's dtype, R observations in C order.
            out: `[R, inputs]`, uint8 with `keeps_bytes`, else float32.
        """
        normalisation = self._seen.normalisation if self.layout.normalized else None
        self._inputs.fill(self._inputs.rows(obs, out), out, normalisation)

    @property
    def statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Present mean and 1 / standard deviation of the observations, `[inputs]` each, as copies."""
        mean, scale = self._seen.normalisation
        return mean.copy(), scale.copy()

    def observe(self, obs: NDArray[Any], flags: NDArray[np.uint8]) -> None:
        """Collect the observations `[..., *obs_shape]` of all but RESET rows; no effect without normalisation."""
        if self.layout.normalized:
            rows = obs[(flags & RESET) == 0]
            self._noted.add(self._inputs.rows(rows, np.empty((len(rows), self.layout.inputs), np.float32)))

    def move_statistics(self) -> None:
        """Add the observations collected by `observe` to the statistics."""
        self._seen.absorb(self._noted)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy acting weights and observation statistics into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self._to_host(out[: self._acting_count])
        if self.layout.normalized:
            self._seen.write(out)

    def begin_with(self, weights: Tensor, env_steps: int) -> None:
        """Restore what `write_weights` wrote, `[weight_count]`, with its statistics as those of `env_steps` steps."""
        self.parameters[: self._acting_count].copy_(weights[: self._acting_count])
        if self.layout.normalized:
            self._seen.begin_with(weights.numpy(), env_steps)


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
        self._value.backward(self._column(grad_value))
        if self._log_std_gradient is not None and grad_log_std.numel():
            self._log_std_gradient.copy_(grad_log_std)
