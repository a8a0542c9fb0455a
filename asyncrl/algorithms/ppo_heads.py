"""From what the networks say of a minibatch to the loss's gradient there: by tensors anywhere, by a kernel on the CPU.

Both do the same; a test holds them together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.interfaces import MultiDiscreteAction
from asyncrl.losses.policy_gradient import approximate_kl, clipped_surrogate_gradient, value_loss_gradient
from asyncrl.losses.ppo_kernels import categorical_head, gaussian_head, squash
from asyncrl.networks.distributions import distribution

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo import PPO


class Head(Protocol):
    """The loss of a minibatch of M items.

    Attributes:
        log_prob, entropy: `[M]`, of the last `gradient`.
    """

    log_prob: Tensor
    entropy: Tensor

    def gradient(self, out: Tensor, value: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients at `out` `[M, outputs]`, at `value` `[M]`, and at the log standard deviations, if there are any."""
        ...

    def divergence(self) -> float:
        """Estimate of KL(pi_old, pi) at the last `gradient`, over its first `count` items; waits for the device."""
        ...


def head(config: PPO, nets: ActorCritic, action: Tensor, numbers: Tensor) -> Head:
    """The head for the networks' device, over buffers `action` `[M, ...]` and `numbers` `[7, M]`."""
    if nets.device.type != "cpu":
        return TensorHead(config, nets, action, numbers)
    return KernelHead(config, nets, action, numbers)


class TensorHead:
    """By tensor operations, on any device, without a wait. Implements `Head`."""

    def __init__(self, config: PPO, nets: ActorCritic, action: Tensor, numbers: Tensor) -> None:
        self._config, self._nets = config, nets
        self._distribution = distribution(nets.layout)
        self._action, self._rows = action, numbers.unbind()
        self._count = 0
        self.log_prob = self.entropy = numbers[0]

    def gradient(self, out: Tensor, value: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Head.gradient`."""
        old, advantage, target, old_value, policy_weight, value_weight, entropy_weight = self._rows
        config, self._count = self._config, count
        self.log_prob, self.entropy = self._distribution.evaluate(out, self._action, self._nets.log_std)
        by_log_prob = clipped_surrogate_gradient(
            self.log_prob, old, advantage, policy_weight, config.clip_range
        )
        by_value = value_loss_gradient(value, target, value_weight, old_value, config.value_clip_range)
        by_out, by_log_std = self._distribution.gradient(by_log_prob, entropy_weight)
        return by_out, by_value, by_log_std

    def divergence(self) -> float:
        """See `Head.divergence`."""
        return float(approximate_kl(self.log_prob[: self._count], self._rows[0][: self._count]))


class KernelHead:
    """By one kernel on the host's memory. Implements `Head`; the tensors it returns are the same at every call."""

    def __init__(self, config: PPO, nets: ActorCritic, action: Tensor, numbers: Tensor) -> None:
        layout, size = nets.layout, action.shape[0]
        self._gaussian, self._squashed = layout.gaussian, layout.squashed
        self._clip = float(config.clip_range)
        self._value_clip = math.inf if config.value_clip_range is None else float(config.value_clip_range)
        self._action = action.view(size, -1).numpy()
        self._numbers = numbers.numpy()
        self.log_prob, self.entropy, self._by_value = torch.zeros(3, size).unbind()
        self._by_out = torch.zeros(size, layout.outputs)
        self._by_log_std = torch.zeros(layout.outputs) if layout.gaussian else None
        filled = (self._by_value, self.log_prob, self.entropy)
        self._filled = tuple(tensor.numpy() for tensor in filled)
        self._by_out_host = self._by_out.numpy()
        self._divergence = 0.0
        if layout.gaussian:
            assert nets.log_std is not None and self._by_log_std is not None
            self._log_std, self._by_log_std_host = nets.log_std.numpy(), self._by_log_std.numpy()
            self._work = np.zeros((2, layout.outputs))
        else:
            nvec = layout.action.nvec if isinstance(layout.action, MultiDiscreteAction) else (layout.outputs,)
            self._choices = np.array(nvec, np.int64)
            self._work = np.zeros((self._choices.size, 2))

    def gradient(self, out: Tensor, value: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Head.gradient`."""
        ranges = (count, self._clip, self._value_clip)
        host, values = out.numpy(), value.numpy()
        if not self._gaussian:
            self._divergence = categorical_head(
                *(host, self._action, self._choices, values, self._numbers, *ranges),
                *(self._by_out_host, *self._filled, self._work),
            )
            return self._by_out, self._by_value, None
        numbers = self._numbers
        if self._squashed:
            numbers = numbers.copy()
            squash(self._action, self._numbers, numbers[0])
        self._divergence = gaussian_head(
            *(host, self._action, self._log_std, values, numbers, *ranges),
            *(self._by_out_host, self._by_log_std_host, *self._filled, self._work),
        )
        if self._squashed:
            self.log_prob += torch.from_numpy(self._numbers[0] - numbers[0])
        return self._by_out, self._by_value, self._by_log_std

    def divergence(self) -> float:
        """See `Head.divergence`."""
        return self._divergence
