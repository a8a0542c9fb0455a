"""Bias and activation of a hidden layer, forward and backward.

On the CPU one kernel passes over the memory once where tensor operations pass two or three times: two critics of
4-64-64-1 there and back over 256 rows take 0.122 instead of 0.147 ms. On a GPU the tensor operations run. A test holds
both to the same numbers. NaN propagates.

C perceptrons, R rows, W the width of a layer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from asyncrl.acting.kernels import tanh_in_place
from asyncrl.shm.kernel import kernel

_relu_gradient = torch.ops.aten.threshold_backward.grad_input
_tanh_gradient = torch.ops.aten.tanh_backward.grad_input
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class HiddenLayer:
    """What follows the product of a hidden layer: bias and activation.

    Args:
        y: `[C, R, W]`, the product, then the output.
        bias: `[C, 1, W]`.
        activation: `"relu"` or `"tanh"`.
        kernels: compiled, or by tensor operations; None chooses by the device.
    """

    def __init__(
        self, y: Tensor, bias: Tensor, activation: Literal["relu", "tanh"], kernels: bool | None = None
    ) -> None:
        self._kernels = y.device.type == "cpu" if kernels is None else kernels
        self._tanh = activation == "tanh"
        self._y, self._bias = y, bias
        if self._kernels:
            self._y_host, self._bias_host = y.numpy(), bias.numpy()

    def prepare_backward(self, grad: Tensor, grad_bias: Tensor | None, bias_rows: int) -> None:
        """Set the buffers of the backward pass.

        Args:
            grad: `[C, B, W]`, gradient at the output, then at the product, of the first B rows.
            grad_bias: `[C, 1, W]`, filled by `backward`; None where it is not wanted.
            bias_rows: the first rows, from which the bias's gradient comes.
        """
        self._grad, self._grad_bias, self._bias_rows = grad, grad_bias, bias_rows
        self._seen = self._y[:, : grad.shape[1]]
        if self._kernels:
            self._grad_host = grad.numpy()
            self._grad_bias_host = (torch.empty_like(self._bias) if grad_bias is None else grad_bias).numpy()

    def activate(self) -> None:
        """Turn the product into the output, in place."""
        if self._kernels:
            (add_bias_tanh if self._tanh else add_bias_relu)(self._y_host, self._bias_host)
        elif self._tanh:
            self._y.add_(self._bias).tanh_()
        else:
            self._y.add_(self._bias).relu_()

    def backward(self) -> None:
        """Turn the gradient at the output into that at the product, in place, and sum up the bias's."""
        if self._kernels:
            gradient = tanh_gradient if self._tanh else relu_gradient
            gradient(self._grad_host, self._y_host, self._grad_bias_host, self._bias_rows)
            return
        if self._tanh:
            _tanh_gradient(self._grad, self._seen, grad_input=self._grad)
        else:
            _relu_gradient(self._grad, self._seen, 0, grad_input=self._grad)
        if self._grad_bias is not None:
            torch.sum(self._grad[:, : self._bias_rows], dim=1, keepdim=True, out=self._grad_bias)

    def bind(self, grad_output: Tensor, head: Tensor, seen: Tensor, grad_head_bias: Tensor | None) -> None:
        """Set what `sum_rows` and `backward_from_head` read and fill.

        Args:
            grad_output: `[C, B, outputs]`, gradient at the outputs of the head that follows.
            head: `[C, outputs, W]`, the head's weights.
            seen: `[C, G, outputs]`, the rows of `grad_output` that `sum_rows` sums up.
            grad_head_bias: `[C, 1, outputs]`, filled by `sum_rows`; None where it is not wanted.
        """
        self._grad_output, self._head, self._to_sum, self._grad_head_bias = (
            grad_output,
            head,
            seen,
            grad_head_bias,
        )
        if self._kernels:
            self._from_head = (
                grad_output.numpy(),
                head.numpy(),
                self._y_host,
                self._grad_host,
                self._grad_bias_host,
            )
            self._sum = () if grad_head_bias is None else (seen.numpy(), grad_head_bias.numpy())

    def sum_rows(self) -> None:
        """Fill the head's bias gradient."""
        if self._grad_head_bias is None:
            return
        if self._kernels:
            sum_rows(*self._sum)
        else:
            torch.sum(self._to_sum, dim=1, keepdim=True, out=self._grad_head_bias)

    def backward_from_head(self) -> None:
        """`backward` behind a head with one output: fills the gradient at the output first."""
        if self._kernels and not self._tanh:
            head_gradient(*self._from_head, self._bias_rows)
            return
        torch.mul(self._grad_output, self._head, out=self._grad)
        self.backward()


@kernel("void(float32[:, :, ::1], float32[:, :, ::1])")
def add_bias_relu(y, bias):  # type: ignore[no-untyped-def]
    """`y` `[C, R, W]` becomes max(y + bias, 0); `bias` is `[C, 1, W]`."""
    for c in range(y.shape[0]):
        for r in range(y.shape[1]):
            for j in range(y.shape[2]):
                value = y[c, r, j] + bias[c, 0, j]
                y[c, r, j] = _ZERO if value <= _ZERO else value


@kernel("void(float32[:, :, ::1], float32[:, :, ::1])")
def add_bias_tanh(y, bias):  # type: ignore[no-untyped-def]
    """`y` `[C, R, W]` becomes tanh(y + bias), by the same approximation that actors use; `bias` is `[C, 1, W]`."""
    for c in range(y.shape[0]):
        for r in range(y.shape[1]):
            row = y[c, r]
            for j in range(y.shape[2]):
                row[j] += bias[c, 0, j]
            tanh_in_place(row)


@kernel("void(float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], int64)")
def relu_gradient(grad, y, grad_bias, bias_rows):  # type: ignore[no-untyped-def]
    """`grad` `[C, B, W]` becomes 0 where `y` is; `grad_bias` `[C, 1, W]` its sum over the first `bias_rows` rows."""
    for c in range(grad.shape[0]):
        grad_bias[c, 0, :] = _ZERO
        for r in range(bias_rows):
            for j in range(grad.shape[2]):
                value = _ZERO if y[c, r, j] <= _ZERO else grad[c, r, j]
                grad[c, r, j] = value
                grad_bias[c, 0, j] += value
        for r in range(bias_rows, grad.shape[1]):
            for j in range(grad.shape[2]):
                grad[c, r, j] = _ZERO if y[c, r, j] <= _ZERO else grad[c, r, j]


@kernel("void(float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], int64)")
def tanh_gradient(grad, y, grad_bias, bias_rows):  # type: ignore[no-untyped-def]
    """`grad` `[C, B, W]` is multiplied by 1 - y^2; `grad_bias` is as in `relu_gradient`."""
    for c in range(grad.shape[0]):
        grad_bias[c, 0, :] = _ZERO
        for r in range(grad.shape[1]):
            for j in range(grad.shape[2]):
                grad[c, r, j] *= _ONE - y[c, r, j] * y[c, r, j]
            if r < bias_rows:
                for j in range(grad.shape[2]):
                    grad_bias[c, 0, j] += grad[c, r, j]


@kernel(
    "void(float32[:, :, :], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, :, ::1], int64)"
)
def head_gradient(grad_output, head, y, grad, grad_bias, bias_rows):  # type: ignore[no-untyped-def]
    """As `relu_gradient`, with `grad` filled by the head's `[C, 1, W]` weights times `grad_output` `[C, B, 1]`."""
    for c in range(grad.shape[0]):
        grad_bias[c, 0, :] = _ZERO
        for r in range(grad.shape[1]):
            slope = grad_output[c, r, 0]
            for j in range(grad.shape[2]):
                grad[c, r, j] = _ZERO if y[c, r, j] <= _ZERO else slope * head[c, 0, j]
            if r < bias_rows:
                for j in range(grad.shape[2]):
                    grad_bias[c, 0, j] += grad[c, r, j]


@kernel("void(float32[:, :, :], float32[:, :, ::1])")
def sum_rows(grad_output, out):  # type: ignore[no-untyped-def]
    """`out` `[C, 1, outputs]` becomes the sum of `grad_output` `[C, G, outputs]` over G."""
    for c in range(grad_output.shape[0]):
        out[c, 0, :] = _ZERO
        for r in range(grad_output.shape[1]):
            for j in range(grad_output.shape[2]):
                out[c, 0, j] += grad_output[c, r, j]
