"""Several perceptrons of one shape as batched products: the critics of TD3 and SAC, on one flat parameter vector.

How it differs from `networks/mlp.py`, and why (one thread of a CPU with AVX-512): two products of 256x256 matrices are
one `bmm` of the same speed and half the calls, which counts where networks are small. Biases stand apart from the
weights, because every matrix is then aligned to a cache line: with the ones' column a product in bfloat16 takes 86
instead of 55 microseconds. The head gives one value, for which a matrix-vector product takes a quarter of a `bmm`'s
time. The gradient of the weights is a product for each critic: a `bmm` of slices of rows takes 336 instead of 131
microseconds in bfloat16, and as long in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from asyncrl.networks.hidden_layers import hidden_layer
from asyncrl.networks.mlp import NamedTensors, split

NARROW = 128


class FlatEnsemble(NamedTensors):
    """Parameters of C perceptrons in one flat float32 tensor; each ends in one value.

    Attributes:
        count: C.
        sizes: widths `(inputs, *hidden, 1)`.
        flat: `[parameter_count(C, sizes)]`; whatever is written into it is the networks' at once.
        weights: one view `[C, inputs, outputs]` into `flat` per hidden layer.
        biases: one view `[C, 1, outputs]` into `flat` per hidden layer.
        head: view `[C, 1, inputs]` into `flat`.
        head_bias: view `[C, 1, 1]` into `flat`.
    """

    def __init__(self, count: int, sizes: Sequence[int], flat: Tensor) -> None:
        assert sizes[-1] == 1 and len(sizes) > 2 and flat.shape == (parameter_count(count, sizes),)
        self.count, self.sizes, self.flat = count, tuple(sizes), flat
        blocks = [block for a, b in itertools.pairwise(sizes) for block in ((count * a, b), (count, b))]
        *views, head, head_bias = split(flat, blocks)
        self.weights = [w.view(count, -1, w.shape[1]) for w in views[::2]]
        self.biases = [b.view(count, 1, -1) for b in views[1::2]]
        self.head, self.head_bias = head.view(count, 1, -1), head_bias.view(count, 1, 1)

    def initialise(self, generator: torch.Generator) -> None:
        """Fill all layers uniformly in +-1 / sqrt(inputs), as `torch.nn.Linear` does; the same on every device."""
        layers = [*zip(self.weights, self.biases, strict=True), (self.head, self.head_bias)]
        for layer, inputs in zip(layers, self.sizes[:-1], strict=True):
            bound = inputs**-0.5
            for view in layer:
                view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))

    def _views(self) -> dict[str, Tensor]:
        layers = [*zip(self.weights, self.biases, strict=True), (self.head.transpose(1, 2), self.head_bias)]
        return {
            f"{c}.{i}.{kind}": view
            for c in range(self.count)
            for i, (weight, bias) in enumerate(layers)
            for kind, view in (("weight", weight[c].t()), ("bias", bias[c, 0]))
        }


def parameter_count(count: int, sizes: Sequence[int]) -> int:
    """How many numbers `count` perceptrons of these widths are."""
    return count * sum((a + 1) * b for a, b in itertools.pairwise(sizes))


class EnsemblePass:
    """Buffers for a pass of the first K critics over R rows that they all look at, and, if wanted, for the way back.

    The way back gives the weights' gradient from the first R - I rows and the gradient at the last A columns of the
    input from the other I rows; either may be all of them.

    Args:
        net: whose weights are used, as they stand at each call.
        x: `[R, inputs]`, read at each call, written by its owner.
        gradient: what `backward` fills, shaped as `net`; None where no weights' gradient is wanted, or no way back.
        critics: K, or None for all of them. With a gradient it must be all.
        input_rows: I.
        input_columns: A.
        precision: context for products with no side below 128; the others are faster without.
        kernels: whether what stands between the products runs compiled on the host's memory; None for where it can.

    Attributes:
        q: `[K, R, 1]`, what `forward` fills and returns.
    """

    def __init__(
        self,
        net: FlatEnsemble,
        x: Tensor,
        gradient: FlatEnsemble | None = None,
        *,
        critics: int | None = None,
        input_rows: int = 0,
        input_columns: int = 0,
        precision: AbstractContextManager[None] | None = None,
        kernels: bool | None = None,
    ) -> None:
        k, rows = critics or net.count, x.shape[0]
        assert input_rows in (0, rows) if gradient is None else k == net.count
        self._seen = rows - input_rows if gradient is not None else 0
        self._precision = precision or nullcontext()
        weights, biases = [w[:k] for w in net.weights], [b[:k] for b in net.biases]
        outputs = [torch.empty(k, rows, w.shape[2], device=x.device) for w in weights]
        inputs = [x.expand(k, *x.shape), *outputs[:-1]]
        self._between = [
            hidden_layer(y, b, self._seen, kernels) for y, b in zip(outputs, biases, strict=True)
        ]
        self._layers = [
            (x_in, w, y, layer, self._context(rows, *w.shape[1:]))
            for x_in, w, y, layer in zip(inputs, weights, outputs, self._between, strict=True)
        ]
        self.q = torch.empty(k, rows, 1, device=x.device)
        self._head = [*zip(outputs[-1], net.head[:k, 0], self.q[:, :, 0], strict=True)]
        self._head_bias = net.head_bias[:k]
        if gradient is not None or input_rows:
            self._prepare_backward(net.head[:k], inputs, outputs, weights, gradient, input_columns)

    def _prepare_backward(
        self,
        head: Tensor,
        inputs: list[Tensor],
        outputs: list[Tensor],
        weights: list[Tensor],
        gradient: FlatEnsemble | None,
        columns: int,
    ) -> None:
        grads = [torch.empty_like(y) for y in outputs]
        grad_biases = gradient.biases if gradient is not None else [None] * len(grads)
        for layer, grad, grad_bias in zip(self._between, grads, grad_biases, strict=True):
            layer.prepare(grad, head, grad_bias)
        seen, grad_head = self._seen, gradient
        self._head_back = (
            None if grad_head is None else (outputs[-1][:, :seen], grad_head.head, grad_head.head_bias)
        )
        self._back = []
        for i in reversed(range(len(grads))):
            products = []
            if gradient is not None:
                triples = zip(inputs[i], grads[i], gradient.weights[i], strict=True)
                products = [(x_in[:seen].t(), grad[:seen], out) for x_in, grad, out in triples]
            below = (grads[i - 1], self._between[i - 1], weights[i].transpose(1, 2)) if i else None
            width = weights[i].shape
            contexts = self._context(seen, *width[1:]), self._context(*inputs[i].shape[1:], width[2])
            self._back.append((grads[i], products, below, contexts))
        action = weights[0][:, weights[0].shape[1] - columns :].transpose(1, 2)
        self._into_input = [*zip(grads[0][:, seen:], action, strict=True)] if columns else []
        self._grad_input = torch.empty(outputs[0].shape[1] - seen, columns, device=head.device)

    def _context(self, *sides: int) -> AbstractContextManager[None]:
        return self._precision if min(sides) >= NARROW else nullcontext()

    def forward(self) -> Tensor:
        """What the critics say `[K, R, 1]`: the same buffer at every call."""
        for x, w, y, layer, context in self._layers:
            with context:
                torch.bmm(x, w, out=y)
            layer.activate()
        for last, head, q in self._head:
            torch.mv(last, head, out=q)
        return self.q.add_(self._head_bias)

    def backward(self, grad_q: Tensor) -> Tensor:
        """Fill the weights' gradient, given the loss's `[K, R, 1]` at the output of the last `forward`.

        Returns:
            `[I, A]`, the gradient at the input's last columns in the last rows: the same buffer at every call.
        """
        if self._head_back is not None:
            last, grad_head, grad_head_bias = self._head_back
            seen = grad_q[:, : self._seen]
            torch.bmm(seen.transpose(1, 2), last, out=grad_head)
            torch.sum(seen, dim=1, keepdim=True, out=grad_head_bias)
        self._between[-1].from_head(grad_q)
        for grad, products, below, (outer, inner) in self._back:
            with outer:
                for x_t, seen, grad_w in products:
                    torch.mm(x_t, seen, out=grad_w)
            if below is not None:
                grad_below, layer, w_t = below
                with inner:
                    torch.bmm(grad, w_t, out=grad_below)
                layer.pull_back()
        for i, (grad, w_t) in enumerate(self._into_input):
            torch.addmm(self._grad_input, grad, w_t, beta=float(i > 0), out=self._grad_input)
        return self._grad_input
