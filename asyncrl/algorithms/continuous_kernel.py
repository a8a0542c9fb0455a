"""Fused CPU kernels for the losses of DDPG, TD3 and SAC and for sampling a squashed Gaussian.

The formulas are `td3.critic_loss`, `sac.critic_loss`, `continuous.deterministic_actor_loss`, `sac.actor_loss` and
`maximum_entropy_update.squashed_draw`; a test checks that the kernels agree with them. Each class here replaces
`output_gradients` or `vector_jacobian_product` of such a function. NaN propagates.

In shapes, B is the batch size, d the number of values of an action, C the number of critics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import LOG_STD_MAX, LOG_STD_MIN
from asyncrl.algorithms.continuous import ActorLoss, CriticLoss
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.networks.graph import Kept
from asyncrl.shm.kernel import kernel

_ZERO, _ONE, _TWO, _HALF = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(0.5)
_LOG_TWO, _HALF_LOG_TWO_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2.0 * math.pi))
_NOTHING = np.zeros((0, 0), np.float32)
_LOW, _HIGH = np.float32(LOG_STD_MIN), np.float32(LOG_STD_MAX)


def arrays(*tensors: Tensor | None) -> tuple[NDArray[np.float32], ...]:
    """One array view `[...]` of each tensor; an empty `[0, 0]` for None."""
    return tuple(_NOTHING if tensor is None else tensor.numpy() for tensor in tensors)


class CriticKernel:
    """Kernel for `output_gradients` of `td3.critic_loss` (`ddpg.critic_loss` with one critic) and of `sac.critic_loss`.

    Each call uses the present rewards, discounts and weights of `batch`.
    """

    def __init__(self, batch: StagedBatch, critics: int) -> None:
        shape, columns = (critics, batch.size, 1), (batch.reward, batch.discount, batch.weight)
        td, grad, loss = torch.empty(shape), torch.empty(shape), torch.empty(1)
        self._result = CriticLoss(loss, td), (grad,)
        self._arrays = [tensor.numpy() for tensor in (*columns, td, grad, loss)]
        self._read = Kept(arrays)

    def __call__(
        self, outputs: tuple[Tensor], next_q: Tensor, *rest: Any
    ) -> tuple[CriticLoss, tuple[Tensor]]:
        """Loss and gradient at `q`, in the same buffers at every call; `rest` are the formula's other arguments."""
        *entropy, _ = rest
        log_prob, alpha = (entropy[0], float(entropy[1])) if entropy else (None, 0.0)
        critic_kernel(*(*self._read(outputs[0], next_q, log_prob), *self._arrays, alpha))
        return self._result


class ActorKernel:
    """Kernel for `output_gradients` of `sac.actor_loss`; of `deterministic_actor_loss` with one critic, no entropy."""

    def __init__(self, size: int, critics: int) -> None:
        grad_q, grad_log_prob, loss = torch.empty(critics, size, 1), torch.empty(size, 1), torch.empty(1)
        self._result = ActorLoss(loss), (grad_q, grad_log_prob)
        self._arrays = [tensor.numpy() for tensor in (grad_q, grad_log_prob, loss)]
        self._read = Kept(arrays)

    def __call__(
        self, outputs: tuple[Tensor, ...], alpha: Tensor | None = None
    ) -> tuple[ActorLoss, tuple[Tensor, Tensor]]:
        """Loss and gradients at `q` and `log_prob`, in the same buffers at every call."""
        log_prob, temperature = (None, 0.0) if alpha is None else (outputs[1], float(alpha))
        actor_kernel(*(*self._read(outputs[0], log_prob), *self._arrays, temperature))
        return self._result


class DrawKernel:
    """Kernel for `vector_jacobian_product` of `maximum_entropy_update.squashed_draw`, for B `size` and d `values`."""

    def __init__(self, size: int, values: int) -> None:
        action, deviation, log_prob = (torch.empty(size, width) for width in (values, values, 1))
        self._grad = torch.empty(size, 2 * values)
        self._result = action, log_prob
        self._drawn = [tensor.numpy() for tensor in (action, deviation, log_prob)]
        self._grad_array = self._grad.numpy()
        self._read, self._read_back = Kept(arrays), Kept(arrays)

    def __call__(
        self, out: Tensor, noise: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Callable[[Tensor, Tensor], Tensor]]:
        """Action and log-density, and their vector-Jacobian product, all with the same buffers at every call."""
        self._out, e = self._read(out, noise)
        draw_kernel(self._out, e, *self._drawn)
        return self._result, self._pull_back

    def _pull_back(self, grad_action: Tensor, grad_log_prob: Tensor) -> Tensor:
        grads = self._read_back(grad_action, grad_log_prob)
        draw_gradient_kernel(*(self._out, *self._drawn[:2], *grads, self._grad_array))
        return self._grad


@kernel(
    "void(float32[:, :, :], float32[:, :, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, :, ::1], float32[:, :, ::1], float32[::1], float32)",
)
def critic_kernel(q, next_q, next_log_prob, reward, discount, weight, td, grad, loss, alpha):  # type: ignore[no-untyped-def]
    """Fill errors `td` and gradient `grad` at `q`, `[C, B, 1]` each, and the loss `[1]`.

    `next_q` `[C, B, 1]` are the target critics' values. The other arrays are `[B, 1]`; `next_log_prob` is read only if
    the temperature `alpha` is not 0.
    """
    critics, size = td.shape[0], td.shape[1]
    total = 0.0
    for b in range(size):
        value = next_q[0, b, 0]
        for c in range(1, critics):
            other = next_q[c, b, 0]
            value = value if value <= other or value != value else other
        if alpha != 0:
            value -= alpha * next_log_prob[b, 0]
        y = reward[b, 0] + discount[b, 0] * value
        for c in range(critics):
            error = q[c, b, 0] - y
            td[c, b, 0] = error
            grad[c, b, 0] = weight[b, 0] * error
            total += 0.5 * grad[c, b, 0] * error
    loss[0] = total


@kernel(
    "void(float32[:, :, :], float32[:, ::1], float32[:, :, ::1], float32[:, ::1], float32[::1], float32)",
)
def actor_kernel(q, log_prob, grad_q, grad_log_prob, loss, alpha):  # type: ignore[no-untyped-def]
    """Fill gradients at `q` `[C, B, 1]` (-1 / B at the smallest) and `log_prob` `[B, 1]`, and the loss `[1]`."""
    critics, size = q.shape[0], q.shape[1]
    slope, total = _ONE / np.float32(size), 0.0
    for b in range(size):
        best = 0
        for c in range(critics):
            grad_q[c, b, 0] = _ZERO
            best = c if q[c, b, 0] < q[best, b, 0] else best
        grad_q[best, b, 0] = -slope
        grad_log_prob[b, 0] = alpha * slope
        total -= q[best, b, 0]
        if alpha != 0:
            total += alpha * log_prob[b, 0]
    loss[0] = total * slope


@kernel(
    "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1])",
)
def draw_kernel(out, noise, action, deviation, log_prob):  # type: ignore[no-untyped-def]
    """Fill actions `[B, d]`, std * noise `[B, d]` and log-densities `[B, 1]` of `out` `[B, 2 d]` and noise `[B, d]`.

    With z = e^(-2 |u|): tanh |u| = (1 - z) / (1 + z), and log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + z)). One
    logarithm is taken per product of 32 factors, at most 2^32: a logarithm costs as much as everything else here.
    """
    size = noise.shape[1]
    for b in range(noise.shape[0]):
        density, product = _ZERO, _ONE
        for j in range(size):
            log_std, e = out[b, size + j], noise[b, j]
            log_std = _LOW if log_std < _LOW else (_HIGH if log_std > _HIGH else log_std)
            moved = math.exp(log_std) * e
            u = out[b, j] + moved
            height = abs(u)
            z = math.exp(-_TWO * height)
            product *= _ONE + z
            if (j + 1) % 32 == 0:
                density += _TWO * math.log(product)
                product = _ONE
            density += _TWO * (height - _LOG_TWO) - _HALF * e * e - log_std - _HALF_LOG_TWO_PI
            squashed = (_ONE - z) / (_ONE + z)
            action[b, j] = squashed if u >= 0 else -squashed
            deviation[b, j] = moved
        log_prob[b, 0] = density + _TWO * math.log(product)


@kernel(
    "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1])",
)
def draw_gradient_kernel(out, action, deviation, grad_action, grad_log_prob, grad_out):  # type: ignore[no-untyped-def]
    """Fill the gradient `[B, 2 d]` at `out`, given those at the actions `[B, d]` and log-densities `[B, 1]`.

    d a / d u = 1 - a^2        d log p / d u = 2 a        d u / d log std = std * noise
    d log p / d log std = -1 plus the part through u. The gradient at a log std outside its limits is zero.
    """
    size = grad_action.shape[1]
    for b in range(grad_action.shape[0]):
        slope = grad_log_prob[b, 0]
        for j in range(size):
            a, log_std = action[b, j], out[b, size + j]
            grad = (_ONE - a * a) * grad_action[b, j] + _TWO * slope * a
            grad_out[b, j] = grad
            beyond = log_std < _LOW or log_std > _HIGH
            grad_out[b, size + j] = _ZERO if beyond else grad * deviation[b, j] - slope
