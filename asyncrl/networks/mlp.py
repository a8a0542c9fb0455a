"""Perceptrons with hand-written forward and backward passes over preallocated buffers: the fast path of the engine.

Autograd is slower: on one core, at 4-64-64-2 and batch 64, a DQN update with modules, autograd, fused Adam and gradient
clipping took 640 microseconds, and 135 with the first version of this module (785 and 275 at batch 256; 2,900 and 2,200
at 8-256-256-4 and batch 256); `benchmarks/before_after.py` measures current updates. The parameters are one tensor, so
Adam, the target network and the gradient norm are one operation each.

A pass is about twenty tensor operations; matrix products take half of the time. No operation depends on a value of the
data, so a pass can be captured in a CUDA graph. Measured on one thread of a CPU with AVX-512: one `bmm` of two products
of 256x256 matrices has the same speed and half the calls; a head with one output is a matrix-vector product, in a
quarter of the time of a `bmm`; the gradient of an ensemble's weights is one product for each copy, because a `bmm` of
row slices takes 336 instead of 131 microseconds in bfloat16.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from asyncrl.networks.hidden_layer import HiddenLayer
from asyncrl.networks.parameters import MLPParameters, PassOptions

NARROW = 128
"""Products with a side below this run outside of the reduced precision, where they are faster."""


class FlatMLP(MLPParameters):
    """One perceptron, or an ensemble of one shape, on a flat vector. See `MLPParameters` for arguments and layout."""

    def on(self, flat: Tensor) -> FlatMLP:
        """Return a perceptron of the same shape on another vector (a target network, a gradient)."""
        return FlatMLP(self.sizes, flat, self.copies if self.ensemble else None, self.activation)

    def make_pass(self, x: Tensor, gradient: Tensor | None = None, **options: Unpack[PassOptions]) -> MLPPass:
        """Return the passes over the rows of `x`; `gradient` is a flat vector as long as `flat`. See `MLPPass`."""
        return MLPPass(self, x, None if gradient is None else self.on(gradient), **options)


class MLPPass:
    """Forward pass over R rows and, optionally, backward pass over the first of them, with their buffers.

    Args:
        net: the perceptron; its current weights are read at each call.
        x: `[R, inputs]`, read at each call and written by its owner; may be a strided view.
        gradient: filled by `backward`, of the shape of `net`; None if no gradient of the weights is wanted.
        options: see `PassOptions`.

    Attributes:
        output: `[R, outputs]`, of an ensemble `[K, R, outputs]`; filled and returned by `forward`.
    """

    def __init__(
        self,
        net: MLPParameters,
        x: Tensor,
        gradient: MLPParameters | None = None,
        **options: Unpack[PassOptions],
    ) -> None:
        weight_rows, input_rows = options.get("weight_rows", 0), options.get("input_rows", 0)
        k, rows, kernels = options.get("copies") or net.copies, x.shape[0], options.get("kernels")
        assert x.dim() == 2 and weight_rows + input_rows <= rows
        assert (weight_rows > 0) == (gradient is not None) and (gradient is None or k == net.copies)
        self._precision = options.get("precision")
        self._weight_rows, self._rows = weight_rows, weight_rows + input_rows
        weights, biases = [w[:k] for w in net.weights], [b[:k] for b in net.biases]
        outputs = [torch.empty(k, rows, w.shape[2], device=x.device) for w in weights]
        inputs = [x.expand(k, *x.shape), *outputs[:-1]]
        self._between = [
            HiddenLayer(y, b, net.activation, kernels) for y, b in zip(outputs, biases, strict=True)
        ]
        self._layers = [
            (*self._product(x_in, w, y), layer)
            for x_in, w, y, layer in zip(inputs, weights, outputs, self._between, strict=True)
        ]
        head, out = net.head[:k], torch.empty(k, rows, net.sizes[-1], device=x.device)
        self._head = [
            (last, w[0], y[:, 0]) if net.sizes[-1] == 1 else (last, w.t(), y)
            for last, w, y in zip(outputs[-1], head, out, strict=True)
        ]
        self._head_product = torch.mv if net.sizes[-1] == 1 else torch.mm
        self._head_bias, self._out = net.head_bias[:k], out
        self.output = out if net.ensemble else out[0]
        if self._rows:
            self._prepare_backward(head, inputs, outputs, weights, gradient, options.get("input_columns", 0))

    def _prepare_backward(
        self,
        head: Tensor,
        inputs: list[Tensor],
        outputs: list[Tensor],
        weights: list[Tensor],
        gradient: MLPParameters | None,
        columns: int,
    ) -> None:
        g, rows = self._weight_rows, self._rows
        grads = [torch.empty(y.shape[0], rows, y.shape[2], device=y.device) for y in outputs]
        biases = gradient.biases if gradient is not None else [None] * len(grads)
        for layer, grad, grad_bias in zip(self._between, grads, biases, strict=True):
            layer.prepare_backward(grad, grad_bias, g)
        self._head_weights, self._grad_last = head, grads[-1]
        self._gradient, self._last_seen = gradient, outputs[-1][:, :g]
        self._bound_to: Tensor | None = None
        self._back = []
        for i in reversed(range(len(grads))):
            products = []
            if gradient is not None:
                triples = zip(inputs[i], grads[i], gradient.weights[i], strict=True)
                products = [self._of(torch.mm, x_in[:g].t(), grad[:g], out) for x_in, grad, out in triples]
            inward = grads[i], weights[i].transpose(1, 2), grads[i - 1]
            self._back.append((products, (*self._product(*inward), self._between[i - 1]) if i else None))
        inner = weights[0][:, weights[0].shape[1] - columns :].transpose(1, 2)
        self._into_input = [*zip(grads[0][:, g:], inner, strict=True)] if columns else []
        self._grad_input = torch.empty(rows - g, columns, device=head.device)

    def _product(self, x: Tensor, w: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        """Return the product and its arguments, `[K, ...]` each: `mm` for K = 1, which is faster than `bmm`."""
        return self._of(torch.mm, x[0], w[0], y[0]) if w.shape[0] == 1 else self._of(torch.bmm, x, w, y)

    def _of(self, product, x: Tensor, w: Tensor, y: Tensor):  # type: ignore[no-untyped-def]
        """Return the product, under the reduced precision if it is wide enough, and its arguments."""
        wide = min(*x.shape[-2:], w.shape[-1]) >= NARROW
        if self._precision is None or not wide:
            return product, x, w, y
        precision = self._precision

        def reduced(x: Tensor, w: Tensor, out: Tensor) -> None:
            with precision:
                product(x, w, out=out)

        return reduced, x, w, y

    def forward(self) -> Tensor:
        """Return the network's outputs: the same buffer at every call."""
        for product, x, w, y, layer in self._layers:
            product(x, w, out=y)
            layer.activate()
        for last, w, y in self._head:
            self._head_product(last, w, out=y)
        self._out.add_(self._head_bias)
        return self.output

    def backward(self, grad_output: Tensor) -> Tensor:
        """Fill the weights' gradient, given the loss's gradient at the first G + I rows of the last output.

        Args:
            grad_output: `[G + I, outputs]`, of an ensemble `[K, G + I, outputs]`; not changed.

        Returns:
            `[I, A]`, the gradient at the last columns of the input: the same buffer at every call.
        """
        if grad_output is not self._bound_to:
            self._bind(grad_output)
        for product in self._head_gradients:
            torch.mm(*product[:2], out=product[2])
        self._between[-1].sum_rows()
        if self._into_last:
            for product in self._into_last:
                torch.mm(*product[:2], out=product[2])
            self._between[-1].backward()
        else:
            self._between[-1].backward_from_head()
        for products, below in self._back:
            for product, x_t, seen, grad_w in products:
                product(x_t, seen, out=grad_w)
            if below is not None:
                product, above, w_t, into, layer = below
                product(above, w_t, out=into)
                layer.backward()
        for i, (above, w_t) in enumerate(self._into_input):
            torch.addmm(self._grad_input, above, w_t, beta=float(i > 0), out=self._grad_input)
        return self._grad_input

    def _bind(self, grad_output: Tensor) -> None:
        """Make the views of `grad_output` for `backward`: once, if the caller passes the same tensor every time.

        Making them at every call took a tenth of an update of 64x64 over 128 items.
        """
        grad = grad_output if grad_output.dim() == 3 else grad_output.unsqueeze(0)
        seen, gradient = grad[:, : self._weight_rows], self._gradient
        self._head_gradients = [] if gradient is None else _each(seen.mT, self._last_seen, gradient.head)
        one_output = grad.shape[2] == 1
        self._into_last = [] if one_output else _each(grad, self._head_weights, self._grad_last)
        self._between[-1].bind(
            grad, self._head_weights, seen, None if gradient is None else gradient.head_bias
        )
        self._bound_to = grad_output


def _each(*stacked: Tensor) -> list[tuple[Tensor, ...]]:
    """Return one tuple of tensors for each copy of the stacked tensors."""
    return [*zip(*(tensor.unbind() for tensor in stacked), strict=True)]
