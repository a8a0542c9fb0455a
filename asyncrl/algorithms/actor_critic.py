"""The networks of an on-policy learner: policy and value, one flat parameter vector, one optimiser.

What acts (the policy's weights, the Gaussian's log standard deviations) stands at the front of the vector in the
order of `ActorLayout`, so that publishing is one copy, and Adam, the norm and the clipping are one operation each.
Policy and value share no layer: a shared trunk has to be weighed between both losses, and what it saves is small where
a network acts in a few microseconds. There is no autograd (why: `networks/mlp.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.policies import mlp_blocks
from asyncrl.acting.stochastic import OBSERVATION_CLIP, ActorLayout
from asyncrl.algorithms.normalization import RunningMoments
from asyncrl.algorithms.saved_state import require_like
from asyncrl.networks.mlp import FlatMLP, HostCopy, MLPPass, orthogonal_weights
from asyncrl.networks.optimizer import FlatAdam

_POLICY_HEAD_GAIN, _VALUE_HEAD_GAIN = 0.01, 1.0


class ActorCritic:
    """Policy and value perceptron, their Adam, and the statistics by which observations are normalised.

    Used from one thread, the learner's, under `torch.inference_mode()`. A gradient step is `forward` and `backward`
    of a pass, then `apply`.

    Statistics of the observations are published with the weights, because an actor normalises what it sees. So that
    the learner sees an observation as the actor saw it, `observe` only notes; what is noted counts from
    `move_statistics` on, which is called at the end of an iteration, before its weights are published.

    Args:
        layout: the policy's network and the order of what is published.
        value_hidden: widths of the value network's hidden layers, or None for the policy's.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights (orthogonal), the same on every device.
        max_grad_norm: length to which a longer gradient (of both networks together) is shortened, or None.
        adam_eps: term that Adam adds to its denominator.
        initial_log_std: where the Gaussian's log standard deviations start.

    Attributes:
        layout: as given.
        device: as given.
        weight_count: how many float32 values `write_weights` fills.
        parameters: flat `[P]`: policy, log standard deviations, value.
        gradient: `[P]`, what `backward` has filled.
        log_std: view `[d]` into `parameters`, or None where the policy is not a Gaussian.
    """

    def __init__(
        self,
        layout: ActorLayout,
        *,
        value_hidden: tuple[int, ...] | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
        max_grad_norm: float | None = 0.5,
        adam_eps: float = 1e-5,
        initial_log_std: float = 0.0,
    ) -> None:
        self.layout, self.weight_count = layout, layout.weight_count
        self.device = torch.device(device)
        hidden = layout.hidden if value_hidden is None else value_hidden
        self._value_blocks = mlp_blocks((layout.inputs, *hidden, 1))
        with torch.inference_mode():
            self._initialise(torch.Generator().manual_seed(seed), initial_log_std)
        self._adam = FlatAdam(self.parameters, self.gradient, eps=adam_eps, max_grad_norm=max_grad_norm)
        self._seen, self._noted = RunningMoments(layout.inputs), RunningMoments(layout.inputs)
        self._mean = np.zeros(layout.inputs, np.float32)
        self._scale = np.ones(layout.inputs, np.float32)

    def _initialise(self, generator: torch.Generator, initial_log_std: float) -> None:
        log_std = torch.full((self.layout.action_values,), initial_log_std)
        policy = orthogonal_weights(self.layout.blocks, generator, _POLICY_HEAD_GAIN)
        value = orthogonal_weights(self._value_blocks, generator, _VALUE_HEAD_GAIN)
        self.parameters = torch.cat((policy, log_std, value)).to(self.device)
        self.gradient = torch.zeros_like(self.parameters)
        self._policy, self._log_std, self._value = self._parts(self.parameters)
        self._acting_count = self.layout.network_count + self.layout.action_values
        self._to_host = HostCopy(self.parameters[: self._acting_count])
        self._policy_gradient, self._log_std_gradient, self._value_gradient = self._parts(self.gradient)
        self.log_std = self._log_std if self.layout.gaussian else None

    @property
    def learning_rate(self) -> float:
        """That of the last `apply`."""
        return self._adam.learning_rate

    @property
    def grad_norm(self) -> Tensor | None:
        """Scalar tensor, length of the last applied gradient before it was shortened; None before."""
        return self._adam.grad_norm

    def _parts(self, flat: Tensor) -> tuple[FlatMLP, Tensor, FlatMLP]:
        first, second = self.layout.network_count, self.layout.network_count + self.layout.action_values
        policy = FlatMLP(self.layout.blocks, flat[:first])
        return policy, flat[first:second], FlatMLP(self._value_blocks, flat[second:])

    def passes(self, rows: int, gradient: bool) -> ActorCriticPass:
        """Buffers for a pass of both networks over `rows` rows, with or without its way back."""
        return ActorCriticPass(self, rows, gradient)

    def apply(self, learning_rate: float) -> None:
        """One step of Adam with what `backward` has filled, the gradient shortened on the way."""
        self._adam.step(learning_rate)

    def normalized(self, obs: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write observations as the networks take them: float32, normalised (or bytes scaled to 0..1).

        Args:
            obs: `[..., *obs_shape]` in the ring's dtype, R observations in C order.
            out: `[R, inputs]`, may be a strided view.
        """
        flat = obs.reshape(out.shape)
        if self.layout.normalized:
            np.subtract(flat, self._mean, out=out, casting="same_kind")
            np.multiply(out, self._scale, out=out)
            np.clip(out, -OBSERVATION_CLIP, OBSERVATION_CLIP, out=out)
        elif flat.dtype == np.uint8:
            np.multiply(flat, np.float32(1 / 255), out=out)
        else:
            np.copyto(out, flat, casting="same_kind")

    @property
    def statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and 1 / deviation `[inputs]` that observations are normalised by now, as copies."""
        return self._mean.copy(), self._scale.copy()

    def observe(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Note the observations `[..., *obs_shape]` where `mask` `[...]` is true; nothing unless normalised."""
        if self.layout.normalized:
            self._noted.add(obs[mask].reshape(-1, self.layout.inputs))

    def move_statistics(self) -> None:
        """Let what `observe` has noted count from here on."""
        if self._noted.count:
            self._seen.absorb(self._noted)
            self._set_statistics()

    def _set_statistics(self) -> None:
        self._mean[:] = self._seen.mean
        self._scale[:] = 1.0 / np.sqrt(self._seen.variance + 1e-8)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy what acts into `out` `[weight_count]`, in the order of `ActorLayout`."""
        self._to_host(out[: self._acting_count])
        if self.layout.normalized:
            out[self.layout.obs_mean] = self._mean
            out[self.layout.obs_scale] = self._scale

    def state_dict(self) -> dict[str, Any]:
        """Networks by layer name, Adam's moments and the statistics, as copies on the host."""
        return {
            "policy": self._policy.named(),
            "log_std": self._log_std.cpu().clone(),
            "value": self._value.named(),
            "optimizer": self._adam.state_dict(),
            "observations": {"seen": self._seen.state_dict(), "noted": self._noted.state_dict()},
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        Raises:
            ValueError: a part is missing or has another shape; nothing has been written then.
        """
        require_like(state, self.state_dict(), "state")
        self._policy.load(state["policy"])
        self._value.load(state["value"])
        self._log_std.copy_(state["log_std"])
        self._adam.load_state_dict(state["optimizer"])
        self._seen.load_state_dict(state["observations"]["seen"])
        self._noted.load_state_dict(state["observations"]["noted"])
        if self._seen.count:
            self._set_statistics()


class ActorCriticPass:
    """Both networks over the same R rows.

    Args:
        nets: whose weights are used, as they stand at each call.
        rows: R.
        gradient: whether `backward` will be called.

    Attributes:
        x: `[R, inputs + 1]`, written by whoever uses the pass; its last column is ones and stays so.
    """

    def __init__(self, nets: ActorCritic, rows: int, gradient: bool) -> None:
        self.x = torch.ones(rows, nets.layout.inputs + 1, device=nets.device)
        back = (rows, nets.layout.activation) if gradient else (0, nets.layout.activation)
        self._policy = MLPPass(nets._policy, self.x, nets._policy_gradient if gradient else None, *back)
        self._value = MLPPass(nets._value, self.x, nets._value_gradient if gradient else None, *back)
        self._log_std_gradient = nets._log_std_gradient

    def forward(self) -> tuple[Tensor, Tensor]:
        """What the policy says `[R, outputs]` and the values `[R]`: the same buffers at every call."""
        return self._policy.forward(), self._value.forward().squeeze(1)

    def values(self) -> Tensor:
        """The values `[R]` alone: the same buffer at every call, and the same as that of `forward`."""
        return self._value.forward().squeeze(1)

    def backward(self, grad_out: Tensor, grad_value: Tensor, grad_log_std: Tensor | None) -> None:
        """Fill the whole gradient, given the loss's gradient at the outputs of the last `forward`."""
        self._policy.backward(grad_out)
        self._value.backward(grad_value.unsqueeze(1))
        if grad_log_std is not None:
            self._log_std_gradient.copy_(grad_log_std)
