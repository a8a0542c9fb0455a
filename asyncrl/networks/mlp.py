"""Multilayer perceptrons on one flat parameter vector, with forward and backward pass written out.

Why without autograd: at 4-64-64-2 and batch 64 a DQN update with modules, autograd, fused Adam and gradient
clipping took 640 microseconds on one core, and takes 135 this way (785 and 275 at batch 256; 2,900 and 2,200
at 8-256-256-4 and batch 256). An update is some forty tensor operations on preallocated buffers, half of the
time matrix products; the parameters are one tensor (one Adam step, one target update, one norm); and nothing
depends on a value of the data, so that the same code can be captured in a CUDA graph. Rejected: weights as
`[outputs, inputs]` in the first layer or `[inputs, outputs]` in the head (each 2 to 3 times slower in BLAS),
a row of an activation padded to a cache line (no gain), `torch.compile` (seconds of start-up, no gain at this
size).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_relu_gradient = torch.ops.aten.threshold_backward.grad_input
_tanh_gradient = torch.ops.aten.tanh_backward.grad_input


def initial_weights(
    blocks: Sequence[tuple[int, int]], generator: torch.Generator, head_inputs: int | None = None
) -> Tensor:
    """Flat parameters, all of a layer uniform in +-1 / sqrt(inputs), as `torch.nn.Linear` has them.

    Args:
        blocks: as `FlatMLP` has them.
        generator: draws the weights.
        head_inputs: fan-in of one output of the head; None for all columns of the head's block. In a dueling head each
            output sees one stream, half of the columns.
    """
    inputs = [*(rows - 1 for rows, _ in blocks[:-1]), head_inputs or blocks[-1][1] - 1]
    bounds = [max(count, 1) ** -0.5 for count in inputs]
    parts = [
        torch.empty(rows * columns).uniform_(-bound, bound, generator=generator)
        for (rows, columns), bound in zip(blocks, bounds, strict=True)
    ]
    return torch.cat(parts)


def orthogonal_weights(
    blocks: Sequence[tuple[int, int]], generator: torch.Generator, head_gain: float
) -> Tensor:
    """Flat parameters with orthogonal weights and biases of zero, as on-policy algorithms like to begin.

    Saxe et al. 2014, as Andrychowicz et al. 2021 ("What matters in on-policy reinforcement learning?") use it:
    rows or columns of a layer's weights, whichever are fewer, are orthogonal with length sqrt(2) in hidden layers
    and `head_gain` in the head. A small `head_gain` (0.01) makes a policy that begins with all actions alike.
    """
    flat = torch.zeros(sum(rows * columns for rows, columns in blocks))
    net = FlatMLP(blocks, flat)
    for weights, gain in (*((w[:-1], 2**0.5) for w in net.hidden), (net.head[:, :-1], head_gain)):
        start = torch.nn.init.orthogonal_(torch.empty(weights.shape), gain, generator=generator)
        weights.copy_(start)
    return flat


def split(flat: Tensor, blocks: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Views `[rows, columns]` of a flat tensor, one per block."""
    sizes = [rows * columns for rows, columns in blocks]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), blocks, strict=True)]


class HostCopy:
    """Copies a flat tensor into arrays on the host: a memcpy on the CPU, a device-to-host copy elsewhere.

    Args:
        flat: float32 `[P]`, whose memory never moves.
    """

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat
        self._view: NDArray[np.float32] | None = flat.numpy() if flat.device.type == "cpu" else None

    def __call__(self, out: NDArray[np.float32]) -> None:
        """Fill `out` `[P]`."""
        if self._view is not None:
            out[...] = self._view  # a tenth of the fixed cost of torch's copy
        else:
            torch.from_numpy(out).copy_(self._flat)


class NamedTensors:
    """Parameters that can be saved and loaded by name; a network says which views have which."""

    def _views(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def named(self) -> dict[str, Tensor]:
        """Copies on the host: `<layer>.weight` `[outputs, inputs]` and `<layer>.bias` `[outputs]` (of `<critic>.`)."""
        return {name: view.cpu().clone() for name, view in self._views().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy in what `named` returned.

        Raises:
            ValueError: if a name or a shape is another; nothing has been written then.
        """
        views = self._views()
        if set(views) != set(tensors):
            raise ValueError(f"weights must be named {sorted(views)}, got {sorted(tensors)}")
        for name, view in views.items():
            if view.shape != tensors[name].shape:
                raise ValueError(f"{name} must have shape {(*view.shape,)}, got {(*tensors[name].shape,)}")
        for name, view in views.items():
            view.copy_(tensors[name])


class FlatMLP(NamedTensors):
    """Parameters of a perceptron in one flat float32 tensor; what stands between the layers, `MLPPass` says.

    Attributes:
        blocks: a hidden layer's is `(inputs + 1, outputs)`, its last row the bias; the head's, which is the
            last, is `(outputs, inputs + 1)`, its last column the bias. A product with a short last axis is
            two to four times slower than its transpose, and a head has few outputs where a first layer has
            few inputs.
        flat: `[sum of blocks]`; whatever is written into it is the network's at once.
        hidden: one view `[inputs + 1, outputs]` into `flat` per hidden layer.
        head: view `[outputs, inputs + 1]` into `flat`.
    """

    def __init__(self, blocks: Sequence[tuple[int, int]], flat: Tensor) -> None:
        self.blocks = tuple(blocks)
        self.flat = flat
        *self.hidden, self.head = split(flat, self.blocks)

    def _views(self) -> dict[str, Tensor]:
        layers = [w.t() for w in self.hidden] + [self.head]
        weights = {f"{i}.weight": w[:, :-1] for i, w in enumerate(layers)}
        return weights | {f"{i}.bias": w[:, -1] for i, w in enumerate(layers)}


class MLPPass:
    """Buffers for a forward pass over R rows, and, if wanted, a backward pass over the first G of them.

    Every activation is `[R, width + 1]` with ones in its last column, so that one product is a layer with its
    bias, and one product is the gradient of both.

    Args:
        net: whose weights are used, as they stand at each call.
        x: `[R, inputs + 1]`, the input with its column of ones; read at each call, written by its owner.
        gradient: what `backward` fills, with the blocks of `net`; None for a pass that only looks.
        gradient_rows: G.
        activation: what stands behind every hidden layer.
    """

    def __init__(
        self,
        net: FlatMLP,
        x: Tensor,
        gradient: FlatMLP | None = None,
        gradient_rows: int = 0,
        activation: Literal["relu", "tanh"] = "relu",
    ) -> None:
        self._tanh = activation == "tanh"
        rows, device = x.shape[0], x.device
        ones = [torch.ones(rows, w.shape[1] + 1, device=device) for w in net.hidden]
        inputs = [x, *ones]
        self._layers = [
            (x_in, w, y, y[:, :-1], y[:, -1]) for x_in, w, y in zip(inputs, net.hidden, ones, strict=False)
        ]
        self._last, self._head = inputs[-1], net.head.t()
        self._output = torch.empty(rows, net.head.shape[0], device=device)
        if gradient is None:
            return
        seen = [x_in[:gradient_rows] for x_in in inputs]
        grads = [torch.empty(gradient_rows, w.shape[1], device=device) for w in net.hidden]
        self._head_back = (seen[-1], gradient.head, net.head[:, :-1])
        into = [None, *(w[:-1].t() for w in net.hidden[1:])]
        self._back = [
            (y[:, :-1], grad, x_in.t(), grad_w, w_t, below)
            for y, grad, x_in, grad_w, w_t, below in zip(
                seen[1:], grads, seen[:-1], gradient.hidden, into, [None, *grads[:-1]], strict=True
            )
        ][::-1]

    def forward(self) -> Tensor:
        """The head's output `[R, outputs]`: the same buffer at every call."""
        for x, w, y, y_without_ones, y_ones in self._layers:
            torch.mm(x, w, out=y_without_ones)
            if self._tanh:  # of whole rows: twice as fast as of all columns but the last
                torch.tanh_(y)
                y_ones.fill_(1.0)
            else:
                torch.relu_(y)  # the column of ones stays one
        return torch.mm(self._last, self._head, out=self._output)

    def backward(self, grad_output: Tensor) -> None:
        """Fill the gradient, given the loss's gradient `[G, outputs]` at the output of the last `forward`."""
        x, grad_head, head = self._head_back
        torch.mm(grad_output.t(), x, out=grad_head)
        if self._back:
            torch.mm(grad_output, head, out=self._back[0][1])
        for y, grad, x_t, grad_w, w_t, below in self._back:
            if self._tanh:
                _tanh_gradient(grad, y, grad_input=grad)
            else:
                _relu_gradient(grad, y, 0, grad_input=grad)
            torch.mm(x_t, grad, out=grad_w)
            if below is not None:
                torch.mm(grad, w_t, out=below)
