"""Networks of a learner from segments on one flat parameter vector, with one optimiser and observation statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.network import NetworkInputs
from asyncrl.algorithms.normalization import PublishedMoments, RunningMoments, warn_of_sizes
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import UNTRAINED, EnvSpec
from asyncrl.networks.flat_vector import FlatVector, Moments
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy
from asyncrl.saved_state import Stateful


class SegmentNetworks(Stateful):
    """Parameters, optimiser Adam and observation statistics of the networks that `ActorCritic` or `ActionValues` adds.

    Learner thread only, under `torch.no_grad()`. A gradient step consists of `forward` and `backward` of a pass, then
    `apply`.

    Observation statistics are published with the weights, because actors normalise their observations too. Learner and
    actor must normalise an observation alike, so `observe` only collects; `move_statistics` applies what was collected,
    at the end of an iteration, before its weights are published.

    Args:
        config: hyper-parameters, a `SegmentLearning`.
        spec: the environment.
        layout: order of the published values, which begin with the first of `parts`.
        parts: initial values of the parts of the flat vector.
        device: `"cpu"` or `"cuda"`.

    Attributes:
        layout: as given.
        mask: function that extracts the action masks from observations; None without action masks.
        keeps_bytes: whether a rollout stores bytes (a quarter of the memory) and passes scale them when they read.
        byte_factor: factor of that scaling; see `EnvSpec.byte_factor`.
        parameters, gradient: flat `[P]`; both in `vector`.
        vector: parameters and gradient, set by the subclass that makes the networks.
    """

    STATE: tuple[str, ...] = ("_optimizer", "_seen", "_noted")
    vector: FlatVector

    def __init__(
        self, config: Any, spec: EnvSpec, layout: NetworkLayout, parts: Sequence[Tensor], device: str
    ) -> None:
        self.layout: Any = layout
        spec = config.stacked_spec(spec)
        self._inputs, self.mask = NetworkInputs(spec), mask_reader(spec)
        self.keeps_bytes = self._inputs.bytes and not layout.normalized
        self.byte_factor = self._inputs.byte_factor
        self.device, self.weight_count = torch.device(device), layout.weight_count
        self.parameters = torch.cat([*parts]).to(self.device)
        self.gradient = torch.zeros_like(self.parameters)
        self._sizes = [part.numel() for part in parts]
        sizes = self._sizes if config.value_passes else None
        self._optimizer = FlatAdam(
            self.parameters,
            self.gradient,
            eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
            sizes=sizes,
        )
        self._acting_count = layout.statistics_start
        self._to_host = HostCopy(self.parameters[: self._acting_count])
        self._seen, self._noted = PublishedMoments(layout), RunningMoments(layout.inputs)

    def _make_vector(self, buffers: Sequence[Tensor]) -> FlatVector:
        """The flat vector of networks with these running statistics."""
        # Statistics received from other learners of a group are applied together with the collected ones.
        shared = self._noted if self.layout.normalized else None
        vector = FlatVector(self.parameters, self.gradient, shared=(shared,), buffers=buffers)
        vector.moments = (self._optimizer.moments,)
        return vector

    def make_pass(self, rows: int, gradient: bool) -> Any:
        """Buffers for a pass of all networks over `rows` rows, with or without a backward pass."""
        raise NotImplementedError

    def action_buffer(self, rows: int) -> Tensor:
        """Zeros for the actions of so many rows on the host, as the loss takes them."""
        raise NotImplementedError

    @property
    def outputs(self) -> int:
        """Number of outputs for one row, which an action mask allows or forbids."""
        raise NotImplementedError

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of the last applied gradient before clipping, a scalar tensor; None before the first step."""
        return self._optimizer.grad_norm

    def moments_of_all(self, own: Moments) -> Moments:
        """Moments of the values of all groups that fuse gradients, given this one's; waits for the others."""
        assert self.vector.on_moments is not None
        moments, stepped = self.vector.on_moments(own)
        if stepped:
            self.apply()
        return moments

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next `apply`."""
        self._optimizer.set_learning_rate(learning_rate)

    def apply(self, part: int | None = None) -> None:
        """Make one step of Adam with the clipped gradient of `backward`; with `part` of this one of `parts` alone."""
        self._optimizer.step(self._optimizer.learning_rate, part)

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
        """Collect the observations `[..., *obs_shape]` of trained rows; no effect without normalisation."""
        if self.layout.normalized:
            self._noted.add(self._trained_inputs(obs, flags))

    def _trained_inputs(self, obs: NDArray[Any], flags: NDArray[np.uint8]) -> NDArray[Any]:
        rows = obs[(flags & UNTRAINED) == 0]
        return self._inputs.rows(rows, np.empty((len(rows), self.layout.inputs), np.float32))

    def warn_of_sizes(self, obs: NDArray[Any], flags: NDArray[np.uint8]) -> None:
        """Warn if the observations of trained rows are of an unusual size, unless they are normalised or bytes."""
        if not self.layout.normalized and not self._inputs.bytes:
            warn_of_sizes(self._trained_inputs(obs, flags))

    def move_statistics(self) -> None:
        """Add the observations collected by `observe` to the statistics."""
        self._seen.absorb(self._noted)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy acting weights and observation statistics into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self._to_host(out[: self._acting_count])
        if self.layout.normalized:
            self._seen.write(out)

    def critic_weights(self) -> Tensor | None:
        """Weights of a value network beside the published ones; None without one."""
        return None

    def load_critic(self, weights: Tensor) -> None:
        """Copy what `critic_weights` returned."""
        raise NotImplementedError

    def begin_with(self, weights: Tensor, env_steps: int) -> None:
        """Restore what `write_weights` wrote, `[weight_count]`, with its statistics as those of `env_steps` steps."""
        self.parameters[: self._acting_count].copy_(weights[: self._acting_count])
        if self.layout.normalized:
            self._seen.begin_with(weights.numpy(), env_steps)
