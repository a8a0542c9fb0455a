"""Bias, layer normalisation and activation of a hidden layer, forward and backward (Ba et al. 2016).

    z = product + bias      n = (z - mean(z)) / sqrt(var(z) + eps)      y = activation(gain n + shift)

Mean and variance are over the units of one row. As in `hidden_layer`, kernels run on the CPU and tensor operations
elsewhere, and a test compares both. NaN propagates.

C is the number of perceptrons, R the number of rows, W the width of a layer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asyncrl.acting.kernels import normalise, tanh_in_place
from asyncrl.acting.layouts import LAYER_NORM_EPS
from asyncrl.networks.hidden_layer import HiddenLayer
from asyncrl.shm.kernel import kernel

_relu_gradient = torch.ops.aten.threshold_backward.grad_input
_tanh_gradient = torch.ops.aten.tanh_backward.grad_input
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class NormalizedLayer(HiddenLayer):
    """A `HiddenLayer` that is normalised before its activation.

    Args:
        y, bias, activation, kernels: see `HiddenLayer`.
        norm: gain and shift, `[C, 1, W]` each.
    """

    def __init__(
        self,
        y: Tensor,
        bias: Tensor,
        activation: Literal["relu", "tanh"],
        kernels: bool | None = None,
        *,
        norm: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__(y, bias, activation, kernels)
        self._gain, self._shift = norm
        self._normal, self._inverse = torch.empty_like(y), y.new_empty((*y.shape[:2], 1))
        self.fill_norm((torch.empty_like(self._gain), torch.empty_like(self._shift)))
        if self._kernels:
            hosts = self._gain, self._shift, self._normal, self._inverse
            self._gain_host, self._shift_host, self._normal_host, self._inverse_host = (
                tensor.numpy() for tensor in hosts
            )

    def fill_norm(self, grad_norm: tuple[Tensor, Tensor]) -> None:
        """Set the gradients of gain and shift, `[C, 1, W]` each, which `backward` fills."""
        self._grad_gain, self._grad_shift = grad_norm
        if self._kernels:
            self._grad_gain_host, self._grad_shift_host = (grad.numpy() for grad in grad_norm)

    def activate(self) -> None:
        """See `HiddenLayer`."""
        if self._kernels:
            normalised_forward(
                self._y_host,
                self._bias_host,
                self._gain_host,
                self._shift_host,
                self._normal_host,
                self._inverse_host,
                not self._tanh,
            )
            return
        variance, mean = torch.var_mean(self._y.add_(self._bias), dim=2, correction=0, keepdim=True)
        torch.rsqrt(variance + LAYER_NORM_EPS, out=self._inverse)
        torch.mul(self._y - mean, self._inverse, out=self._normal)
        torch.addcmul(self._shift, self._normal, self._gain, out=self._y)
        self._y.tanh_() if self._tanh else self._y.relu_()

    def backward(self) -> None:
        """See `HiddenLayer`; also fills the gradients of gain and shift, over the same rows as the bias's."""
        if self._kernels:
            normalised_gradient(
                self._grad_host,
                self._y_host,
                self._normal_host,
                self._inverse_host,
                self._gain_host,
                self._grad_bias_host,
                self._grad_gain_host,
                self._grad_shift_host,
                self._bias_rows,
                not self._tanh,
            )
            return
        grad, seen = self._grad, slice(self._bias_rows)
        if self._tanh:
            _tanh_gradient(grad, self._seen, grad_input=grad)
        else:
            _relu_gradient(grad, self._seen, 0, grad_input=grad)
        normal = self._normal[:, : grad.shape[1]]
        torch.sum(grad[:, seen] * normal[:, seen], dim=1, keepdim=True, out=self._grad_gain)
        torch.sum(grad[:, seen], dim=1, keepdim=True, out=self._grad_shift)
        grad.mul_(self._gain)
        along = (grad * normal).mean(dim=2, keepdim=True)
        grad.sub_(grad.mean(dim=2, keepdim=True)).sub_(normal * along)
        grad.mul_(self._inverse[:, : grad.shape[1]])
        if self._grad_bias is not None:
            torch.sum(grad[:, seen], dim=1, keepdim=True, out=self._grad_bias)

    def backward_from_head(self) -> None:
        """See `HiddenLayer`."""
        torch.mul(self._grad_output, self._head, out=self._grad)
        self.backward()


@kernel(
    "void(float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], "
    "float32[:, :, ::1], boolean)",
    fastmath={"reassoc", "contract"},
    cold=True,
)
def normalised_forward(y, bias, gain, shift, normal, inverse, relu):  # type: ignore[no-untyped-def]
    """Fill `normal` `[C, R, W]`, `inverse` `[C, R, 1]` and the outputs `y`, which holds the product at first."""
    for c in range(y.shape[0]):
        for r in range(y.shape[1]):
            row, own = y[c, r], normal[c, r]
            for j in range(y.shape[2]):
                row[j] += bias[c, 0, j]
            inverse[c, r, 0] = normalise(row, own)
            for j in range(y.shape[2]):
                value = own[j] * gain[c, 0, j] + shift[c, 0, j]
                row[j] = _ZERO if relu and value <= _ZERO else value
            if not relu:
                tanh_in_place(row)


@kernel(
    "void(float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], "
    "float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], int64, boolean)",
    fastmath={"reassoc", "contract"},
    cold=True,
)
def normalised_gradient(  # type: ignore[no-untyped-def]
    grad, y, normal, inverse, gain, grad_bias, grad_gain, grad_shift, rows, relu
):
    """Turn `grad` `[C, B, W]` at the outputs into that at the product; sum over the first `rows` for the parameters."""
    for c in range(grad.shape[0]):
        for j in range(grad.shape[2]):
            grad_bias[c, 0, j] = _ZERO
            grad_gain[c, 0, j] = _ZERO
            grad_shift[c, 0, j] = _ZERO
        for r in range(grad.shape[1]):
            row, own = grad[c, r], normal[c, r]
            for j in range(grad.shape[2]):
                if relu:
                    row[j] = _ZERO if y[c, r, j] <= _ZERO else row[j]
                else:
                    row[j] *= _ONE - y[c, r, j] * y[c, r, j]
            if r < rows:
                for j in range(grad.shape[2]):
                    grad_gain[c, 0, j] += row[j] * own[j]
                    grad_shift[c, 0, j] += row[j]
            total, along = _ZERO, _ZERO
            for j in range(grad.shape[2]):
                row[j] *= gain[c, 0, j]
                total += row[j]
                along += row[j] * own[j]
            mean, slope = np.float32(total / grad.shape[2]), np.float32(along / grad.shape[2])
            for j in range(grad.shape[2]):
                row[j] = (row[j] - mean - slope * own[j]) * inverse[c, r, 0]
            if r < rows:
                for j in range(grad.shape[2]):
                    grad_bias[c, 0, j] += row[j]
