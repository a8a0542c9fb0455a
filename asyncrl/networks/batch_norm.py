"""Perceptrons with batch normalisation before every linear layer: modules, and their passes by hand on the CPU.

    n = (h - mean) / sqrt(var + eps)      o = gain (n r + d) + shift      z = o W^T + bias      h' = max(z, 0)

In training mode mean and variance are over the rows of the batch, and r = 1, d = 0, or those of batch renormalisation
(Ioffe 2017). In evaluation mode they are the running statistics. The modules are the definition, and what runs on a
GPU. `BatchNormPass` computes the same on the CPU by products and kernels, without autograd: an update of CrossQ with
critics of 256, 256 and a batch of 256 takes a third of the time on one thread of a Zen 5. A test compares both.

R is the number of rows, W the width of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.module import ModuleGradient
from asyncrl.networks.parameters import PassOptions
from asyncrl.networks.products import Product, products, silent, uses_numpy
from asyncrl.shm.kernel import kernel

EPS = 1e-3
"""Added to variances, as in CrossQ's code."""
LARGEST_R, LARGEST_D = 3.0, 5.0
"""Bounds of the corrections of batch renormalisation, as in CrossQ's code and in SBX."""

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_EPS, _LARGEST_R, _LARGEST_D = np.float32(EPS), np.float32(LARGEST_R), np.float32(LARGEST_D)
_INVERSE, _R, _D, _MEAN, _SCALE, _OFFSET, _COLUMNS = 0, 1, 2, 3, 4, 5, 6
"""Rows of a layer's `columns` `[6, W]`: 1 / sqrt(var + eps), r, d, mean, and the factor and summand of n."""


class BatchRenorm(nn.BatchNorm1d):
    """Batch normalisation, or batch renormalisation (Ioffe 2017, algorithm 1), in the layer's training mode.

        y = gamma ((x - mu_B) / sigma_B r + d) + beta
        r = sigma_B / sigma,  within 1/3 .. 3        d = (mu_B - mu) / sigma,  within -5 .. 5

    mu and sigma are the running statistics before this batch. No gradient flows through r and d. Where they are not
    clipped, a batch is normalised by the running statistics, as in evaluation mode.

    Attributes:
        renormalises: whether the correction by r and d is made; without it r is 1 and d is 0.
    """

    renormalises = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `[R, features]`; in training mode also update the running statistics."""
        if not (self.training and self.renormalises):
            return super().forward(x)
        mean, variance = self.running_mean, self.running_var
        assert mean is not None and variance is not None
        with torch.no_grad():
            batch_variance, batch_mean = torch.var_mean(x, dim=0, correction=0)
            sigma = (variance + self.eps).sqrt()
            r = ((batch_variance + self.eps).sqrt() / sigma).clamp_(1 / LARGEST_R, LARGEST_R)
            d = ((batch_mean - mean) / sigma).clamp_(-LARGEST_D, LARGEST_D)
        scale, shift = self.weight * r, self.weight * d + self.bias
        return nn.functional.batch_norm(x, mean, variance, scale, shift, True, self.momentum or 0.0, self.eps)


class NormalisedMLP(nn.Sequential):
    """What `normalised_mlp` makes."""


def normalised_mlp(inputs: int, outputs: int, hidden: tuple[int, ...], momentum: float) -> NormalisedMLP:
    """Perceptron with batch normalisation before every linear layer, into which it can be folded.

    Args:
        inputs: values of a row.
        outputs: values of the head.
        hidden: widths of the hidden layers, at least one.
        momentum: fraction of the running statistics kept by a forward pass in training mode.
    """
    norm = partial(BatchRenorm, eps=EPS, momentum=1.0 - momentum)
    layers: list[nn.Module] = [norm(inputs)]
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU(), norm(width)]
        inputs = width
    return NormalisedMLP(*layers, nn.Linear(inputs, outputs))


@torch.no_grad()
def folded(network: NormalisedMLP) -> Mapping[str, Tensor]:
    """`FlatMLP.state_dict` of the plain perceptron equal to a `normalised_mlp` in evaluation mode."""
    parameters = {}
    for i, (norm, linear) in enumerate(_layers_of(network)):
        assert norm.running_mean is not None and norm.running_var is not None
        scale = norm.weight / (norm.running_var + EPS).sqrt()
        shift = norm.bias - norm.running_mean * scale
        parameters[f"{i}.weight"] = linear.weight * scale
        parameters[f"{i}.bias"] = linear.bias + linear.weight @ shift
    return parameters


def _layers_of(network: nn.Module) -> list[tuple[BatchRenorm, nn.Linear]]:
    """Linear layers, each with the normalisation before it."""
    norms = [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]
    linears = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return list(zip(norms, linears, strict=True))


class BatchNormPass:
    """Forward pass of `normalised_mlp`s over R rows on the CPU and, optionally, a backward pass; as `ModulePass`.

    The backward pass is for the weights, in training mode, or for columns of the input, in evaluation mode.

    Args:
        modules: K networks of one shape, whose tensors are views of flat vectors on the host; all in one mode.
        x: `[R, inputs]`, read at each call.
        ensemble: whether outputs have a leading axis K.
        gradient: flat vector that `backward` fills with the gradient of the weights, as long as that of the modules;
            None if no gradient of the weights is wanted.
        options: see `PassOptions`. Gradients at the input are for all R rows.

    Attributes:
        output: `[R, outputs]`, of an ensemble `[K, R, outputs]`; filled and returned by `forward`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        x: Tensor,
        ensemble: bool,
        gradient: Tensor | None,
        options: PassOptions,
    ) -> None:
        weight_rows, columns = options.get("weight_rows", 0), options.get("input_columns", 0)
        assert (weight_rows > 0) == (gradient is not None) and not (weight_rows and columns)
        assert not columns or options.get("input_rows") == len(x)
        views = [] if gradient is None else ModuleGradient((modules, gradient)).views
        each = len(views) // len(modules)
        self._x, self._input = x.numpy(), torch.empty(x.shape)
        out = torch.empty(len(modules), len(x), _layers_of(modules[0])[-1][1].out_features)
        self.output = out if ensemble else out[0]
        self._numpy = uses_numpy(x.device, options.get("numpy"))
        precision = options.get("precision")
        self._networks = [
            _NetworkPass(
                module, self._input, out[c], views[c * each : (c + 1) * each], columns, precision, self._numpy
            )
            for c, module in enumerate(modules)
        ]
        self._weight_rows, self._grad_input = weight_rows, torch.empty(options.get("input_rows", 0), columns)
        self._bound_to: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the networks' outputs, the same buffer at every call; in training mode update running statistics."""
        np.copyto(self._input.numpy(), self._x)
        with silent(self._numpy):
            for network in self._networks:
                network.forward()
        return self.output

    def backward(self, grad_output: Tensor) -> Tensor:
        """Fill the gradient of the weights and return that at the input; see `MLPPass.backward`."""
        if grad_output is not self._bound_to:
            grads = grad_output if grad_output.dim() == 3 else grad_output.unsqueeze(0)
            for network, grad in zip(self._networks, grads, strict=True):
                network.bind(grad[: self._weight_rows] if self._weight_rows else grad)
            self._bound_to = grad_output
        with silent(self._numpy):
            found = [network.backward() for network in self._networks]
        if self._grad_input.shape[1]:
            torch.sum(torch.stack(found), dim=0, out=self._grad_input)
        return self._grad_input


class _NetworkPass:
    """Passes of one `normalised_mlp`: buffers and bound products. See `BatchNormPass`."""

    def __init__(
        self,
        module: nn.Module,
        source: Tensor,
        out: Tensor,
        gradients: Sequence[Tensor],
        columns: int,
        precision: MatmulPrecision | None,
        numpy: bool,
    ) -> None:
        layers, rows = _layers_of(module), len(source)
        self._products = partial(products, precision=precision, numpy=numpy)
        self._weights = [linear.weight.detach() for _, linear in layers]
        self._norms: list[_Norm] = []
        self._into: list[list[Product]] = []
        biases = [linear.bias.detach() for _, linear in layers]
        for i, (norm, linear) in enumerate(layers):
            self._norms.append(_Norm(norm, source, biases[i - 1] if i else None))
            source = out if i + 1 == len(layers) else torch.empty(rows, linear.out_features)
            self._into.append(self._products(self._norms[-1].out, self._weights[i].t(), source))
        self._out, self._out_bias = out, biases[-1]
        self._gradients, self._columns = list(gradients), columns
        self._back: list[list[Product]] = []
        self._grad_output, self._grad_input = out, torch.empty(rows, columns)
        if gradients or columns:
            self._prepare_backward()

    def _prepare_backward(self) -> None:
        """Make the buffers of the gradients at the layers' inputs, and the products that do not depend on the loss."""
        self._grads = [torch.empty_like(norm.out) for norm in self._norms]
        for i, norm in enumerate(self._norms):
            bias = self._gradients[4 * i - 1] if self._gradients and i else None
            norm.prepare_backward(self._grads[i], self._gradients[4 * i : 4 * i + 2], bias)
        for i in range(len(self._norms) - 1):
            above, calls = self._grads[i + 1], list[Product]()
            if self._gradients:
                calls += self._products(above.t(), self._norms[i].out, self._gradients[4 * i + 2])
            if i or self._gradients:
                calls += self._products(above, self._weights[i], self._grads[i])
            else:  # of the input only the last columns are wanted
                inner = self._weights[0][:, self._weights[0].shape[1] - self._columns :]
                calls += self._products(above, inner, self._grad_input)
            self._back.append(calls)

    def forward(self) -> None:
        """Fill the output."""
        for norm, calls in zip(self._norms, self._into, strict=True):
            norm.forward()
            for product in calls:
                product()
        self._out.add_(self._out_bias)

    def bind(self, grad_output: Tensor) -> None:
        """Set the gradient at the first rows of the output that `backward` reads, `[G, outputs]`."""
        rows, last = len(grad_output), self._grads[-1]
        self._grad_output = grad_output
        self._from_head = self._products(grad_output, self._weights[-1], last[:rows])
        self._rest = last[rows:].numpy()
        if self._gradients:
            self._from_head += self._products(
                grad_output.t(), self._norms[-1].out[:rows], self._gradients[-2]
            )

    def backward(self) -> Tensor:
        """Fill the gradient of the weights; return that at the last columns of the input, `[R, columns]`."""
        for product in self._from_head:
            product()
        self._rest.fill(0.0)
        if self._gradients:
            torch.sum(self._grad_output, dim=0, out=self._gradients[-1])
        for i in reversed(range(1, len(self._norms))):
            self._norms[i].backward()
            for product in self._back[i - 1]:
                product()
        if self._gradients:
            self._norms[0].backward()
        else:
            slope = self._norms[0].slope
            self._grad_input.mul_(slope[len(slope) - self._columns :])
        return self._grad_input


class _Norm:
    """Batch normalisation of a layer's input, with the bias and activation of the layer before it.

    Args:
        norm: the module, whose mode and statistics are read at each call.
        source: `[R, W]`, the input, or the product of the layer before.
        bias: of the layer before, which `forward` adds before the activation; None at the network's input.

    Attributes:
        out: `[R, W]`, filled by `forward`.
        slope: `[W]`, derivative of `out` by the input in evaluation mode.
    """

    def __init__(self, norm: BatchRenorm, source: Tensor, bias: Tensor | None) -> None:
        assert norm.running_mean is not None and norm.running_var is not None
        rows, width = source.shape
        self._norm, self._inner = norm, bias is not None
        self.out, columns = torch.empty(rows, width), torch.zeros(_COLUMNS, width)
        self.slope = columns[_SCALE]
        self._source, self._columns = source.numpy(), columns.numpy()
        bias = torch.zeros(width) if bias is None else bias
        gain, shift = norm.weight.detach().numpy(), norm.bias.detach().numpy()
        statistics = norm.running_mean.numpy(), norm.running_var.numpy()
        self._gain, self._normal = gain, torch.empty(rows if norm.training else 0, width).numpy()
        before = self._source, bias.numpy(), self._inner
        self._evaluated = (*before, gain, shift, *statistics, self.out.numpy(), self._columns)
        self._trained = (*self._evaluated, self._normal, np.float32(norm.momentum or 0.0))
        self._gradients: tuple[NDArray[np.float32], ...] = ()

    def forward(self) -> None:
        """Fill `out`; in training mode update the running statistics."""
        if self._norm.training:
            batch_norm(*self._trained, self._norm.renormalises)
        else:
            running_norm(*self._evaluated)

    def prepare_backward(self, grad: Tensor, gradients: Sequence[Tensor], bias: Tensor | None) -> None:
        """Set the buffers of `backward`: the gradient at `out`, and the gradients of gain, shift and bias to fill."""
        self._grad = grad.numpy()
        bias = torch.zeros(self._gain.shape) if bias is None else bias
        self._gradients = tuple(part.numpy() for part in (*gradients, bias)) if gradients else ()

    def backward(self) -> None:
        """Turn the gradient at `out` into that at the product before, but at the network's input, in place."""
        if self._gradients:
            batch_norm_gradient(
                self._grad,
                self._source,
                self._inner,
                self._normal,
                self._gain,
                self._columns,
                *self._gradients,
            )
        else:
            running_norm_gradient(self._grad, self._source, self._columns)


@kernel(
    "void(float32[:, ::1], float32[::1], boolean, float32[::1], float32[::1], float32[::1], float32[::1], "
    "float32[:, ::1], float32[:, ::1], float32[:, ::1], float32, boolean)",
    fastmath={"contract"},
    cold=True,
)
def batch_norm(  # type: ignore[no-untyped-def]
    h, bias, activated, gain, shift, mean, variance, out, columns, normal, momentum, renormalises
):
    """Fill `out`, `normal` and `columns` from `h` `[R, W]`, to which bias and activation are applied first."""
    rows, width = h.shape
    inverse, r, d, center = columns[_INVERSE], columns[_R], columns[_D], columns[_MEAN]
    scale, offset = columns[_SCALE], columns[_OFFSET]
    center[:] = _ZERO
    scale[:] = _ZERO
    for i in range(rows):
        row = h[i]
        if activated:
            for j in range(width):
                value = row[j] + bias[j]
                row[j] = _ZERO if value <= _ZERO else value
        for j in range(width):
            center[j] += row[j]
    for j in range(width):
        center[j] /= np.float32(rows)
    for i in range(rows):
        row = h[i]
        for j in range(width):
            scale[j] += (row[j] - center[j]) * (row[j] - center[j])
    for j in range(width):
        own = scale[j] / np.float32(rows)
        inverse[j] = _ONE / np.sqrt(own + _EPS)
        r[j], d[j] = _ONE, _ZERO
        if renormalises:
            sigma = np.sqrt(variance[j] + _EPS)
            r[j] = min(max(np.sqrt(own + _EPS) / sigma, _ONE / _LARGEST_R), _LARGEST_R)
            d[j] = min(max((center[j] - mean[j]) / sigma, -_LARGEST_D), _LARGEST_D)
        mean[j] += momentum * (center[j] - mean[j])
        variance[j] += momentum * (scale[j] / np.float32(rows - 1) - variance[j])
        scale[j], offset[j] = gain[j] * r[j], gain[j] * d[j] + shift[j]
    for i in range(rows):
        row, own_row, out_row = h[i], normal[i], out[i]
        for j in range(width):
            n = (row[j] - center[j]) * inverse[j]
            own_row[j] = n
            out_row[j] = n * scale[j] + offset[j]


@kernel(
    "void(float32[:, ::1], float32[::1], boolean, float32[::1], float32[::1], float32[::1], float32[::1], "
    "float32[:, ::1], float32[:, ::1])",
    fastmath={"contract"},
    cold=True,
)
def running_norm(h, bias, activated, gain, shift, mean, variance, out, columns):  # type: ignore[no-untyped-def]
    """Fill `out` from `h` `[R, W]` by the running statistics; bias and activation are applied to `h` first."""
    rows, width = h.shape
    scale, offset = columns[_SCALE], columns[_OFFSET]
    for j in range(width):
        scale[j] = gain[j] / np.sqrt(variance[j] + _EPS)
        offset[j] = shift[j] - mean[j] * scale[j]
    for i in range(rows):
        row, out_row = h[i], out[i]
        if activated:
            for j in range(width):
                value = row[j] + bias[j]
                row[j] = _ZERO if value <= _ZERO else value
        for j in range(width):
            out_row[j] = row[j] * scale[j] + offset[j]


@kernel(
    "void(float32[:, ::1], float32[:, ::1], boolean, float32[:, ::1], float32[::1], float32[:, ::1], "
    "float32[::1], float32[::1], float32[::1])",
    fastmath={"contract"},
    cold=True,
)
def batch_norm_gradient(grad, h, inner, normal, gain, columns, grad_gain, grad_shift, grad_bias):  # type: ignore[no-untyped-def]
    """Fill the gradients of the parameters; turn `grad` `[R, W]` at the output into that at the product, if `inner`.

    d h = gain r / sqrt(var + eps) (d o - mean(d o) - n mean(d o n)), 0 where the activation is.
    """
    rows, width = grad.shape
    inverse, r, d = columns[_INVERSE], columns[_R], columns[_D]
    along, across, factor = columns[_SCALE], columns[_OFFSET], columns[_MEAN]
    grad_gain[:] = _ZERO
    grad_shift[:] = _ZERO
    grad_bias[:] = _ZERO
    for i in range(rows):
        row, n = grad[i], normal[i]
        for j in range(width):
            grad_shift[j] += row[j]
            grad_gain[j] += row[j] * n[j]
    for j in range(width):
        along[j], across[j] = grad_gain[j] / np.float32(rows), grad_shift[j] / np.float32(rows)
        factor[j] = gain[j] * r[j] * inverse[j]
        grad_gain[j] = r[j] * grad_gain[j] + d[j] * grad_shift[j]
    if not inner:
        return
    for i in range(rows):
        row, n, seen = grad[i], normal[i], h[i]
        for j in range(width):
            value = factor[j] * (row[j] - across[j] - n[j] * along[j])
            row[j] = _ZERO if seen[j] <= _ZERO else value
        for j in range(width):
            grad_bias[j] += row[j]


@kernel("void(float32[:, ::1], float32[:, ::1], float32[:, ::1])", cold=True)
def running_norm_gradient(grad, h, columns):  # type: ignore[no-untyped-def]
    """Turn `grad` `[R, W]` at the output of `running_norm` into that at the product."""
    scale = columns[_SCALE]
    for i in range(grad.shape[0]):
        row, seen = grad[i], h[i]
        for j in range(grad.shape[1]):
            row[j] = _ZERO if seen[j] <= _ZERO else row[j] * scale[j]
