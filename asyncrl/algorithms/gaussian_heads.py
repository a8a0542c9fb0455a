"""Draws of SAC's actor and their gradient: by tensors anywhere, by kernels on the CPU.

Both do the same; a test holds them together.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncrl.acting.box import LOG_STD_MAX, LOG_STD_MIN
from asyncrl.losses.soft import squashed_gaussian, squashed_gaussian_gradient
from asyncrl.losses.soft_kernels import draw_gradient, draw_squashed


class GaussianHead(Protocol):
    """What stands behind the network of an actor that draws its actions, R rows of d values each.

    Attributes:
        log_prob: `[R, 1]`, of the last `draw`.
    """

    log_prob: Tensor

    def draw(self, out: Tensor, noise: Tensor) -> None:
        """Write actions -1..1 to where the head was told, and their log-densities.

        Args:
            out: `[R, 2 d]`, what the network gives; it must stay until `gradient`.
            noise: `[R, d]`, standard normal.
        """
        ...

    def gradient(self, grad_action: Tensor, alpha: Tensor) -> Tensor:
        """Gradient `[G, 2 d]` at the first G rows of `out`: the same buffer at every call.

        Args:
            grad_action: `[G, d]`, the loss's gradient at the actions of the first G rows.
            alpha: scalar; the loss holds `alpha` times the mean of these rows' log-densities.
        """
        ...


def gaussian_head(action: Tensor, gradient_rows: int, kernels: bool | None = None) -> GaussianHead:
    """The head for the device of `action` `[R, d]`, which it fills; `kernels` says which one, None chooses.

    `gradient_rows` is G.
    """
    on_host = action.device.type == "cpu" if kernels is None else kernels
    return (KernelGaussianHead if on_host else TensorGaussianHead)(action, gradient_rows)


class TensorGaussianHead:
    """By tensor operations, on any device, without a wait. Implements `GaussianHead`."""

    def __init__(self, action: Tensor, gradient_rows: int) -> None:
        self._action, self._rows = action, gradient_rows
        self.log_prob = torch.zeros(action.shape[0], 1, device=action.device)
        self._grad_out = torch.zeros(gradient_rows, 2 * action.shape[1], device=action.device)

    def draw(self, out: Tensor, noise: Tensor) -> None:
        """See `GaussianHead.draw`."""
        drawn = squashed_gaussian(out, noise, LOG_STD_MIN, LOG_STD_MAX)
        self._action.copy_(drawn.action)
        self.log_prob.copy_(drawn.log_prob)
        self._kept = out[: self._rows], drawn.action[: self._rows], drawn.deviation[: self._rows]

    def gradient(self, grad_action: Tensor, alpha: Tensor) -> Tensor:
        """See `GaussianHead.gradient`."""
        slope = alpha / self._rows
        grad = squashed_gaussian_gradient(*self._kept, grad_action, slope, LOG_STD_MIN, LOG_STD_MAX)
        return self._grad_out.copy_(grad)


class KernelGaussianHead:
    """By kernels on the host's memory. Implements `GaussianHead`."""

    def __init__(self, action: Tensor, gradient_rows: int) -> None:
        rows, size = action.shape
        self.log_prob = torch.zeros(rows, 1)
        self._grad_out = torch.zeros(gradient_rows, 2 * size)
        self._rows, self._action = gradient_rows, action.numpy()
        self._deviation, self._log_prob = torch.zeros(rows, size).numpy(), self.log_prob.numpy()
        self._grad_out_host = self._grad_out.numpy()

    def draw(self, out: Tensor, noise: Tensor) -> None:
        """See `GaussianHead.draw`."""
        self._out = out.numpy()
        filled = self._action, self._deviation, self._log_prob
        draw_squashed(self._out, noise.numpy(), LOG_STD_MIN, LOG_STD_MAX, *filled)

    def gradient(self, grad_action: Tensor, alpha: Tensor) -> Tensor:
        """See `GaussianHead.gradient`."""
        draw_gradient(
            self._out,
            self._action,
            self._deviation,
            grad_action.numpy(),
            alpha.numpy()[()] / self._rows,
            LOG_STD_MIN,
            LOG_STD_MAX,
            self._grad_out_host,
        )
        return self._grad_out
