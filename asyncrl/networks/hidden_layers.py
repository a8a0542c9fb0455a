"""Bias and ReLU of a hidden layer, there and back: by tensors anywhere, by kernels on the CPU.

Both do the same; a test holds them together.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncrl.networks.relu_kernels import add_bias_relu, head_gradient, relu_gradient

_relu_gradient = torch.ops.aten.threshold_backward.grad_input


class HiddenLayer(Protocol):
    """What stands behind a layer's product, for K networks over R rows and W outputs."""

    def prepare(self, grad: Tensor, head: Tensor | None, grad_bias: Tensor | None) -> None:
        """For the way back.

        Args:
            grad: `[K, R, W]`, buffer of the gradient.
            head: `[K, 1, W]`, weights of a head with one output, or None where `from_head` is not called.
            grad_bias: `[K, 1, W]`, to be filled; None where it is not wanted.
        """
        ...

    def activate(self) -> None:
        """From the product to the output, in place."""
        ...

    def from_head(self, grad_q: Tensor) -> None:
        """Fill the product's gradient, given the one `[K, R, 1]` behind the head."""
        ...

    def pull_back(self) -> None:
        """From the gradient of the output to that of the product, in place."""
        ...


def hidden_layer(y: Tensor, bias: Tensor, rows: int, kernels: bool | None = None) -> HiddenLayer:
    """The layer for the tensors' device; `kernels` says which one, None chooses.

    Args:
        y: `[K, R, W]`, the layer's product, then its output.
        bias: `[K, 1, W]`.
        rows: the first rows, from which the bias's gradient comes.
        kernels: compiled, or by tensor operations.
    """
    on_host = y.device.type == "cpu" if kernels is None else kernels
    return (KernelLayer if on_host else TensorLayer)(y, bias, rows)


class TensorLayer:
    """By tensor operations, on any device. Implements `HiddenLayer`."""

    def __init__(self, y: Tensor, bias: Tensor, rows: int) -> None:
        self._y, self._bias, self._rows = y, bias, rows

    def prepare(self, grad: Tensor, head: Tensor | None, grad_bias: Tensor | None) -> None:
        """See `HiddenLayer.prepare`."""
        self._grad, self._head, self._grad_bias = grad, head, grad_bias

    def activate(self) -> None:
        """See `HiddenLayer.activate`."""
        self._y.add_(self._bias).relu_()

    def from_head(self, grad_q: Tensor) -> None:
        """See `HiddenLayer.from_head`."""
        assert self._head is not None, "prepared without a head"
        torch.mul(grad_q, self._head, out=self._grad)
        self.pull_back()

    def pull_back(self) -> None:
        """See `HiddenLayer.pull_back`."""
        _relu_gradient(self._grad, self._y, 0, grad_input=self._grad)
        if self._grad_bias is not None:
            torch.sum(self._grad[:, : self._rows], dim=1, keepdim=True, out=self._grad_bias)


class KernelLayer:
    """By kernels on the host's memory. Implements `HiddenLayer`."""

    def __init__(self, y: Tensor, bias: Tensor, rows: int) -> None:
        self._y, self._bias, self._rows = y.numpy(), bias.numpy(), rows

    def prepare(self, grad: Tensor, head: Tensor | None, grad_bias: Tensor | None) -> None:
        """See `HiddenLayer.prepare`."""
        self._grad, self._head = grad.numpy(), None if head is None else head.numpy()
        self._grad_bias = (torch.empty_like(grad[:, :1]) if grad_bias is None else grad_bias).numpy()

    def activate(self) -> None:
        """See `HiddenLayer.activate`."""
        add_bias_relu(self._y, self._bias)

    def from_head(self, grad_q: Tensor) -> None:
        """See `HiddenLayer.from_head`."""
        head_gradient(grad_q.numpy(), self._head, self._y, self._grad, self._grad_bias, self._rows)

    def pull_back(self) -> None:
        """See `HiddenLayer.pull_back`."""
        relu_gradient(self._grad, self._y, self._grad_bias, self._rows)
