"""Perceptrons with hand-written forward and backward passes over preallocated buffers: the fast path of the engine.

Autograd is slower: on one core, at 4-64-64-2 and batch 64, a DQN update with modules, autograd, fused Adam and gradient
clipping took 640 microseconds, and 135 with the first version of this module (785 and 275 at batch 256; 2,900 and 2,200
at 8-256-256-4 and batch 256). The parameters are one tensor, so Adam, the target network and the gradient norm are one
operation each.

A pass is about twenty tensor operations; matrix products take half of the time. No operation depends on a value of the
data, so a pass can be captured in a CUDA graph. Measured on one thread of a CPU with AVX-512: one `bmm` of two products
of 256x256 matrices has the same speed and half the calls; a head with one output is a matrix-vector product, in a
quarter of the time of a `bmm`; the gradient of an ensemble's weights is one product for each copy, because a `bmm` of
row slices takes 336 instead of 131 microseconds in bfloat16.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from asyncrl.networks.hidden_layer import HiddenLayer
from asyncrl.networks.normalized_layer import NormalizedLayer
from asyncrl.networks.parameters import MLPParameters, PassOptions
from asyncrl.networks.products import Product, products, silent, uses_numpy


class FlatMLP(MLPParameters):
    """One perceptron, or an ensemble of one shape, on a flat vector. See `MLPParameters` for arguments and layout."""

    def on(self, flat: Tensor) -> FlatMLP:
        """Return a perceptron of the same shape on another vector (a target network, a gradient)."""
        copies = self.copies if self.ensemble else None
        return FlatMLP(self.sizes, flat, copies, self.activation, self.layer_norm)

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
        self._precision, self._numpy = options.get("precision"), uses_numpy(x.device, options.get("numpy"))
        self._weight_rows, self._rows = weight_rows, weight_rows + input_rows
        weights, biases = [w[:k] for w in net.weights], [b[:k] for b in net.biases]
        outputs = [torch.empty(k, rows, w.shape[2], device=x.device) for w in weights]
        inputs = [x.expand(k, *x.shape), *outputs[:-1]]
        self._between = [
            HiddenLayer(y, b, net.activation, kernels) for y, b in zip(outputs, biases, strict=True)
        ]
        if net.norms:
            self._between = [
                NormalizedLayer(y, b, net.activation, kernels, norm=(gain[:k], shift[:k]))
                for y, b, (gain, shift) in zip(outputs, biases, net.norms, strict=True)
            ]
        self._layers = [
            (self._products(x_in, w, y), layer)
            for x_in, w, y, layer in zip(inputs, weights, outputs, self._between, strict=True)
        ]
        head, out = net.head[:k], torch.empty(k, rows, net.sizes[-1], device=x.device)
        self._head = self._each_product(outputs[-1], head.mT, out)
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
        for layer, grad_norm in zip(
            self._between, gradient.norms if gradient is not None else [], strict=False
        ):
            assert isinstance(layer, NormalizedLayer)
            layer.fill_norm(grad_norm)
        self._head_weights, self._grad_last = head, grads[-1]
        self._gradient, self._last_seen = gradient, outputs[-1][:, :g]
        self._bound_to: Tensor | None = None
        self._head_gradients: list[Product] = []
        self._into_last: list[Product] = []
        self._back = []
        for i in reversed(range(len(grads))):
            own: list[Product] = []
            if gradient is not None:
                triples = zip(inputs[i], grads[i], gradient.weights[i], strict=True)
                own = [p for x_in, grad, out in triples for p in self._products(x_in[:g].t(), grad[:g], out)]
            inward = grads[i], weights[i].transpose(1, 2), grads[i - 1]
            self._back.append((own, (self._products(*inward), self._between[i - 1]) if i else None))
        self._grad_input = torch.empty(rows - g, columns, device=head.device)
        inner = weights[0][:, weights[0].shape[1] - columns :].transpose(1, 2)
        self._into_input = self._input_products(grads[0][:, g:], inner) if columns else []

    def _products(self, x: Tensor, w: Tensor, out: Tensor) -> list[Product]:
        """Products into `out`, under the reduced precision if they are wide enough."""
        return products(x, w, out, self._precision, self._numpy)

    def _each_product(self, x: Tensor, w: Tensor, out: Tensor) -> list[Product]:
        """One product in float32 for each copy, on the leading axis."""
        return [p for three in zip(x, w, out, strict=True) for p in products(*three, numpy=self._numpy)]

    def _input_products(self, above: Tensor, inner: Tensor) -> list[Product]:
        """Products of each copy `[K, I, W]` and `[K, W, A]`, summed into the gradient at the input."""
        out = self._grad_input
        if self._numpy:
            copies = out.new_empty(len(above), *out.shape)
            return [*self._each_product(above, inner, copies), partial(torch.sum, copies, dim=0, out=out)]
        pairs = enumerate(zip(above, inner, strict=True))
        return [partial(torch.addmm, out, a, w, beta=float(i > 0), out=out) for i, (a, w) in pairs]

    def forward(self) -> Tensor:
        """Return the network's outputs: the same buffer at every call."""
        with silent(self._numpy):
            for calls, layer in self._layers:
                for product in calls:
                    product()
                layer.activate()
            for product in self._head:
                product()
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
        with silent(self._numpy):
            self._backward()
        return self._grad_input

    def _backward(self) -> None:
        for product in self._head_gradients:
            product()
        self._between[-1].sum_rows()
        if self._into_last:
            for product in self._into_last:
                product()
            self._between[-1].backward()
        else:
            self._between[-1].backward_from_head()
        for own, below in self._back:
            for product in own:
                product()
            if below is not None:
                calls, layer = below
                for product in calls:
                    product()
                layer.backward()
        for product in self._into_input:
            product()

    def _bind(self, grad_output: Tensor) -> None:
        """Make the views of `grad_output` for `backward`: once, if the caller passes the same tensor every time.

        Making them at every call took a tenth of an update of 64x64 over 128 items.
        """
        grad = grad_output if grad_output.dim() == 3 else grad_output.unsqueeze(0)
        seen, gradient = grad[:, : self._weight_rows], self._gradient
        self._head_gradients, self._into_last = [], []
        if gradient is not None:
            self._head_gradients = self._each_product(seen.mT, self._last_seen, gradient.head)
        if grad.shape[2] > 1:
            self._into_last = self._each_product(grad, self._head_weights, self._grad_last)
        self._between[-1].bind(
            grad, self._head_weights, seen, None if gradient is None else gradient.head_bias
        )
        self._bound_to = grad_output
