"""Any `torch.nn.Module` as a network of the engine: the general path.

Parameters and buffers are views of one flat vector, so Adam, target networks and publishing weights work as for
`FlatMLP`; forward and backward pass use autograd. Buffers, and parameters that require no gradient, get none, so Adam
does not change them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Self, Unpack

import torch
from torch import Tensor, nn

from asyncrl.acting.modules import bind, tensors_of
from asyncrl.networks.parameters import NamedTensors, PassOptions


class ModuleNetwork(NamedTensors):
    """One module, or an ensemble of C modules of one shape, on a flat vector (see `acting.modules` for its order).

    The parameters have the modules' own names, prefixed with `<copy>.` in an ensemble.

    Args:
        modules: modules from `[R, inputs]` to `[R, outputs]`; they are copied, and the copies are bound to `flat`.
        flat: `[flat_size(modules)]`; the modules use values written into it at once.
        ensemble: whether outputs have a leading axis C.

    Attributes:
        flat, ensemble: as given.
        copies: C.
        modules: the bound copies; a caller may switch them between `train()` and `eval()`.
    """

    def __init__(self, modules: Sequence[nn.Module], flat: Tensor, ensemble: bool = False) -> None:
        self.flat, self.ensemble, self.copies = flat, ensemble, len(modules)
        self.modules = [copy.deepcopy(module).to(flat.device) for module in modules]
        bind(self.modules, flat)

    def on(self, flat: Tensor) -> ModuleNetwork:
        """Return copies of the modules on another vector (a target network)."""
        return ModuleNetwork(self.modules, flat, self.ensemble)

    def evaluated(self) -> Self:
        """See `NamedTensors`: without dropout, and with the running statistics of batch normalisation."""
        network = copy.copy(self)
        network.modules = [copy.deepcopy(module).eval() for module in self.modules]
        bind(network.modules, self.flat)
        return network

    def make_pass(
        self, x: Tensor, gradient: Tensor | None = None, **options: Unpack[PassOptions]
    ) -> ModulePass:
        """Return the passes over the rows of `x`; `gradient` is as long as `flat`; `kernels` is ignored."""
        modules = self.modules[: options.get("copies")]
        return ModulePass(modules, x, self.ensemble, gradient, options)

    def buffers(self) -> list[Tensor]:
        """See `NamedTensors`."""
        return [b for module in self.modules for b in module.buffers() if b.is_floating_point()]

    def by_copy(self) -> Tensor:
        """Return copies `[C, P]` on the host, each module's tensors in the order of `acting.modules.tensors_of`."""
        each = [torch.cat([t.detach().reshape(-1) for t in tensors_of([module])]) for module in self.modules]
        return torch.stack(each).cpu()

    def load_copies(self, weights: Tensor) -> None:
        """Copy what `by_copy` returned."""
        for module, row in zip(self.modules, weights, strict=True):
            fill(tensors_of([module]), row)

    @torch.no_grad()
    def scale_outputs(self, factor: float, inputs: int) -> bool:
        """See `NamedTensors`: the parameters of each module's last linear layer are multiplied.

        A module may do something after that layer, so the outputs for a few rows are compared.
        """
        tried, before = self.evaluated().modules, self.flat.clone()
        rows = torch.linspace(-1.0, 1.0, 4 * inputs, device=self.flat.device).view(4, inputs)
        wanted = [factor * module(rows) for module in tried]
        for module in tried:
            linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
            for parameter in linear[-1].parameters() if linear else ():
                parameter.mul_(factor)
        for module, outputs in zip(tried, wanted, strict=True):
            close = 1e-4 * float(outputs.abs().max())
            if not torch.allclose(module(rows), outputs, rtol=0.0, atol=close):
                self.flat.copy_(before)
                return False
        return True

    def _views(self) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {}
        for c, module in enumerate(self.modules):
            floats = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
            own = floats | module.state_dict()  # which lacks buffers that are not persistent
            views |= {f"{c}.{name}" if self.ensemble else name: tensor for name, tensor in own.items()}
        return views


def fill(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy `flat`, the values of the tensors one after the other, into them."""
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(values.view(tensor.shape))


class ModulePass:
    """Forward pass over R rows and backward pass over the first of them, by autograd. Made by `ModuleNetwork`.

    All rows are in one forward pass, so batch normalisation uses all of them. If the modules have
    `rows_are_independent`, the rows that need no gradient are in a second pass, without a graph.

    Attributes:
        output: `[R, outputs]`, of an ensemble `[K, R, outputs]`; a fresh tensor after every `forward`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        x: Tensor,
        ensemble: bool,
        gradient: Tensor | None,
        options: PassOptions,
    ) -> None:
        self._modules, self._x, self._ensemble = modules, x, ensemble
        self._weight_rows = options.get("weight_rows", 0)
        self._rows = self._weight_rows + options.get("input_rows", 0)
        self._columns = options.get("input_columns", 0)
        self._precision = options.get("precision") or nullcontext()
        self._split = all(getattr(module, "rows_are_independent", False) for module in modules)
        self._gradient = None if gradient is None else ModuleGradient((modules, gradient))
        self._leaf = self._graph = self.output = x.new_zeros(0)

    def forward(self) -> Tensor:
        """Return the network's outputs, without a graph."""
        tracked = self._rows > 0
        with torch.inference_mode(False), torch.set_grad_enabled(tracked), self._precision:
            rows = self._x[: self._rows] if tracked and self._split else self._x
            self._leaf = rows.detach().requires_grad_(tracked and self._columns > 0)
            self._graph = self._through(self._leaf)
        self.output = self._graph.detach()
        if rows.shape[0] < self._x.shape[0]:
            with torch.inference_mode(False), torch.no_grad(), self._precision:
                rest = self._through(self._x[self._rows :])
            self.output = torch.cat((self.output, rest), dim=-2)
        return self.output

    def _through(self, rows: Tensor) -> Tensor:
        """Outputs of all modules for `rows`."""
        # Under autocast they may be bfloat16, and a module may return a part of a wider tensor.
        outs = [module(rows).float().contiguous() for module in self._modules]
        return torch.stack(outs) if self._ensemble else outs[0]

    def backward(self, grad_output: Tensor) -> Tensor:
        """Fill the gradient of the weights and return that at the input; see `MLPPass.backward`."""
        seen, end = self._weight_rows, self._rows
        with torch.inference_mode(False), torch.enable_grad(), self._precision:
            if self._gradient is not None:
                trained = self._graph[..., :seen, :], grad_output[..., :seen, :]
                self._gradient.fill(*trained, retain_graph=end > seen)
            if not self._columns:
                return self._x.new_zeros(end - seen, 0)
            (grad_input,) = torch.autograd.grad(
                self._graph[..., seen:end, :], self._leaf, grad_output[..., seen:end, :]
            )
        return grad_input[seen:end, self._leaf.shape[1] - self._columns :].contiguous()


class ModuleGradient:
    """Gradient of modules in flat vectors, filled by autograd; that of frozen parameters and of buffers stays as it is.

    Args:
        parts: modules, and the flat vector with their gradient; several if modules are trained together.

    Attributes:
        views: one view for each parameter that requires a gradient.
    """

    def __init__(self, *parts: tuple[Sequence[nn.Module], Tensor]) -> None:
        self._parameters: list[nn.Parameter] = []
        self.views: list[Tensor] = []
        for modules, gradient in parts:
            parameters = [p for module in modules for p in module.parameters()]
            own = gradient.split([tensor.numel() for tensor in tensors_of(modules)])
            trained = [(p, part) for p, part in zip(parameters, own, strict=False) if p.requires_grad]
            self._parameters += [p for p, _ in trained]
            self.views += [part.view(p.shape) for p, part in trained]

    def fill(
        self, outputs: Tensor | Sequence[Tensor], grads: Tensor | Sequence[Tensor], retain_graph: bool = False
    ) -> None:
        """Set the gradient, given the loss's gradients `grads` at `outputs`; zeros if these do not depend on it."""
        if not self.views:
            return
        found = torch.autograd.grad(
            outputs, self._parameters, grads, retain_graph=retain_graph, allow_unused=True
        )
        for own, grad in zip(self.views, found, strict=True):
            own.zero_() if grad is None else own.copy_(grad)
