"""Parameters of perceptrons in one flat vector: views, initial values, names; and the options of a pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.layouts import parameter_count
from asyncrl.networks.matmul_precision import MatmulPrecision

Activation = Literal["relu", "tanh"]


class PassOptions(TypedDict, total=False):
    """Rows and columns of its input for which a pass computes gradients, and how it computes.

    The backward pass computes the gradient of the weights over the first G rows, and the gradient at the last A columns
    of the input for the I rows after them. The remaining rows have a forward pass only.
    """

    weight_rows: int
    """G, default 0."""
    input_rows: int
    """I, default 0."""
    input_columns: int
    """A, default 0."""
    copies: int | None
    """K, to use the first K networks of an ensemble only; default all. With a gradient it must be all."""
    precision: MatmulPrecision | None
    """Context for large products: those of a perceptron with no side below 128, all of a module."""
    kernels: bool | None
    """Whether compiled kernels, on host memory, compute a perceptron's biases and activations; default on the CPU."""
    numpy: bool | None
    """Whether NumPy computes a perceptron's products in float32; default by `products.product_library`."""


class NamedTensors:
    """Base class of networks whose parameters have names."""

    def _views(self) -> dict[str, Tensor]:
        """Parameters by name, not copies."""
        raise NotImplementedError

    def buffers(self) -> list[Tensor]:
        """Running statistics, which no gradient changes: views of the flat vector; none in a perceptron."""
        return []

    def evaluated(self) -> Self:
        """Return the network in evaluation mode, on the same vector: itself, if it has no such mode."""
        return self

    def scale_outputs(self, factor: float, inputs: int) -> bool:
        """Multiply all outputs, for rows of `inputs` values, by `factor`; return False if it cannot, without change."""
        del factor, inputs
        return False

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the parameters on the host, by name."""
        return {name: view.detach().cpu().clone() for name, view in self._views().items()}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what `state_dict` returned.

        Raises:
            ValueError: if a name or a shape differs; nothing has been written then.
        """
        views = self._views()
        if set(views) != set(tensors):
            raise ValueError(f"weights must be named {sorted(views)}, got {sorted(tensors)}")
        for name, view in views.items():
            if view.shape != tensors[name].shape:
                raise ValueError(f"{name} must have shape {(*view.shape,)}, got {(*tensors[name].shape,)}")
        for name, view in views.items():
            view.copy_(tensors[name])


class MLPParameters(NamedTensors):
    """Parameters of one perceptron, or of C perceptrons of one shape, in one flat float32 tensor.

    The order is that of `acting.layouts`: for each layer the weights, then the biases. The names are `<layer>.weight`
    `[outputs, inputs]`, `<layer>.bias` `[outputs]` and those of its normalisation, `<layer>.norm.weight` and
    `<layer>.norm.bias`, with the prefix `<copy>.` in an ensemble.

    Args:
        sizes: widths `(inputs, *hidden, outputs)`, at least one hidden layer.
        flat: `[parameter_count(sizes, copies)]`; the network uses values written into it at once.
        copies: C for an ensemble, whose outputs have a leading axis C; None for one perceptron.
        activation: activation after every hidden layer.
        layer_norm: normalise every hidden layer before its activation (Ba et al. 2016).

    Attributes:
        ensemble: whether outputs have a leading axis.
        copies: C, 1 for one perceptron.
        weights: one view `[C, inputs, outputs]` into `flat` per hidden layer.
        biases: one view `[C, 1, outputs]` into `flat` per hidden layer.
        norms: gains and shifts of the normalisation of each hidden layer, views `[C, 1, outputs]` into `flat`; empty
            without `layer_norm`.
        head: view `[C, outputs, inputs]` into `flat`.
        head_bias: view `[C, 1, outputs]` into `flat`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        flat: Tensor,
        copies: int | None = None,
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        self.sizes, self.flat, self.activation, self.layer_norm = tuple(sizes), flat, activation, layer_norm
        self.ensemble, self.copies = copies is not None, copies or 1
        count = self.copies
        assert flat.shape == (parameter_count(sizes, count, layer_norm),)
        *layers, outputs = itertools.pairwise(sizes)
        vectors = 3 if layer_norm else 1
        shapes = [[count * a * b, *[count * b] * vectors] for a, b in layers]
        split = flat.split([*itertools.chain(*shapes), count * math.prod(outputs), count * outputs[1]])
        *hidden, head, head_bias = split
        each = 1 + vectors
        self.weights = [w.view(count, a, -1) for w, a in zip(hidden[::each], sizes[:-2], strict=True)]
        self.biases = [b.view(count, 1, -1) for b in hidden[1::each]]
        self.norms: list[tuple[Tensor, Tensor]] = []
        if layer_norm:
            pairs = zip(hidden[2::each], hidden[3::each], strict=True)
            self.norms = [(gain.view(count, 1, -1), shift.view(count, 1, -1)) for gain, shift in pairs]
        self.head, self.head_bias = head.view(count, -1, sizes[-2]), head_bias.view(count, 1, -1)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, head_inputs: int | None = None) -> None:
        """Fill weights and biases uniformly in +-1 / sqrt(inputs), as `torch.nn.Linear` does.

        Args:
            generator: a generator on the CPU, so the values are the same on every device.
            head_inputs: fan-in of one output of the head (in a dueling head half of the inputs); None for all inputs.
        """
        layers = [*zip(self.weights, self.biases, strict=True), (self.head, self.head_bias)]
        fan_ins = [*self.sizes[:-2], head_inputs or self.sizes[-2]]
        for layer, inputs in zip(layers, fan_ins, strict=True):
            bound = inputs**-0.5
            for view in layer:
                view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))
        self._reset_norms()

    @torch.no_grad()
    def initialise_orthogonally(self, generator: torch.Generator, head_gain: float) -> None:
        """Fill weights orthogonally and biases with zeros (Saxe et al. 2014; Andrychowicz et al. 2021).

        The rows or columns of a layer's weights, whichever are fewer, are orthogonal, with norm sqrt(2) in hidden
        layers and `head_gain` in the head. With a `head_gain` of 0.01 all actions are about equally likely at first.
        """
        self.flat.zero_()
        for view, gain in (*((w, 2**0.5) for w in self.weights), (self.head, head_gain)):
            for own in view:
                own.copy_(torch.nn.init.orthogonal_(torch.empty(own.shape), gain, generator=generator))
        self._reset_norms()

    def _reset_norms(self) -> None:
        """Set all gains to 1 and all shifts to 0."""
        for gain, shift in self.norms:
            gain.fill_(1.0)
            shift.zero_()

    def by_copy(self) -> Tensor:
        """Return copies `[C, P]` on the host, each perceptron's parameters in the order of one perceptron."""
        return torch.cat([part.flatten(1) for part in self._in_order()], dim=1).cpu()

    def load_copies(self, weights: Tensor) -> None:
        """Copy what `by_copy` returned."""
        parts = self._in_order()
        for part, values in zip(parts, weights.split([p[0].numel() for p in parts], dim=1), strict=True):
            part.copy_(values.view(part.shape))

    @torch.no_grad()
    def scale_outputs(self, factor: float, inputs: int) -> bool:
        """See `NamedTensors`: the head's weights and biases are multiplied."""
        del inputs
        self.head.mul_(factor)
        self.head_bias.mul_(factor)
        return True

    def _in_order(self) -> list[Tensor]:
        """Parameters `[C, ...]`, layer by layer."""
        norms: Sequence[tuple[Tensor, ...]] = self.norms or [()] * len(self.weights)
        hidden = zip(self.weights, self.biases, norms, strict=True)
        parts = [part for weight, bias, norm in hidden for part in (weight, bias, *norm)]
        return [*parts, self.head, self.head_bias]

    def _views(self) -> dict[str, Tensor]:
        layers = [*zip((w.transpose(1, 2) for w in self.weights), self.biases, strict=True)]
        layers.append((self.head, self.head_bias))
        norms = {
            f"{f'{c}.' if self.ensemble else ''}{i}.{kind}": view[c, 0]
            for c in range(self.copies)
            for i, pair in enumerate(self.norms)
            for kind, view in zip(("norm.weight", "norm.bias"), pair, strict=True)
        }
        return norms | {
            f"{f'{c}.' if self.ensemble else ''}{i}.{kind}": view
            for c in range(self.copies)
            for i, (weight, bias) in enumerate(layers)
            for kind, view in (("weight", weight[c]), ("bias", bias[c, 0]))
        }


class HostCopy:
    """Copy of a flat tensor into arrays on the host: a memcpy on the CPU, a device-to-host copy elsewhere.

    Args:
        flat: float32 `[P]`; its memory must not move.
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
