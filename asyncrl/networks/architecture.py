"""Shape and initial values of a learner's network, before its memory is allocated; protocols of the networks.

An algorithm specifies a network by its widths. It gets a `FlatMLP`, with hand-written passes, or, if the user gave a
factory of modules, a `ModuleNetwork`, with passes by autograd. Both have the same methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Unpack

import torch
from torch import Tensor

from asyncrl.acting.images import numpy_network
from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.modules import MAKING, NetworkFactory, RecurrentFactory, flat_size, tensors_of
from asyncrl.acting.own_module import check_network
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.module import ModuleNetwork
from asyncrl.networks.parameters import Activation, PassOptions


class Pass(Protocol):
    """Forward and backward pass of a network over the rows of one buffer. See `MLPPass`."""

    output: Tensor

    def forward(self) -> Tensor:
        """Return the outputs `[R, outputs]`, of an ensemble `[K, R, outputs]`, without a graph."""
        ...

    def backward(self, grad_output: Tensor) -> Tensor:
        """Fill the gradient of the weights, given the loss's gradient at the outputs; return that at the input."""
        ...


class Network(Protocol):
    """A network on a flat parameter vector.

    Attributes:
        flat: `[P]` float32, the parameters: the network uses values written into it at once.
        ensemble: whether outputs have a leading axis of copies.
        copies: number of perceptrons or modules, 1 unless an ensemble.
    """

    flat: Tensor
    ensemble: bool
    copies: int

    def on(self, flat: Tensor) -> Network:
        """Return a network of the same shape on another vector (a target network)."""
        ...

    def evaluated(self) -> Network:
        """Return the network in evaluation mode, on the same vector: itself, if it has no such mode."""
        ...

    def make_pass(self, x: Tensor, gradient: Tensor | None = None, **options: Unpack[PassOptions]) -> Pass:
        """Return the passes over the rows of `x`; `gradient` is a flat vector as long as `flat`. See `MLPPass`."""
        ...

    def buffers(self) -> list[Tensor]:
        """Running statistics, which no gradient changes; views of `flat`."""
        ...

    def by_copy(self) -> Tensor:
        """Parameters as copies `[C, P]` on the host: a row has those of one copy, in the order of a single network."""
        ...

    def load_copies(self, weights: Tensor) -> None:
        """Copy what `by_copy` returned."""
        ...

    def scale_outputs(self, factor: float, inputs: int) -> bool:
        """Multiply all outputs, for rows of `inputs` values, by `factor`; return False if it cannot, without change."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the parameters on the host, by name."""
        ...

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what `state_dict` returned. Raises ValueError, before any is written, if one does not fit."""
        ...


class Architecture:
    """Shape of a network.

    Args:
        sizes: widths `(inputs, *hidden, outputs)`.
        copies: size of an ensemble, or None for one network.
        activation: activation after every hidden layer of a perceptron.
        network: factory of a module in place of the perceptron; the hidden widths are then unused.
        seed: random seed of the modules' initial values.
        layer_norm: normalise every hidden layer of a perceptron before its activation.

    Attributes:
        size: length of the flat vector.
        modules: modules made by `network`, one for each copy; empty for a perceptron.

    Raises:
        ConfigurationError: the user's module cannot be run (ASYNC017); see `check_network`. Only that of a policy was
            checked before.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        copies: int | None = None,
        activation: Activation = "relu",
        network: NetworkFactory | None = None,
        seed: int = 0,
        layer_norm: bool = False,
    ) -> None:
        self._layer_norm = layer_norm
        self._sizes, self._copies, self._activation, self._seed = sizes, copies, activation, seed
        self.modules = []
        if network is not None:
            with MAKING, torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.modules = [network(sizes[0], sizes[-1]) for _ in range(copies or 1)]
                if numpy_network(network) is None and not isinstance(network, RecurrentFactory):
                    check_network(network, self.modules[0], sizes[0], sizes[-1])
        self.size = (
            flat_size(self.modules) if self.modules else parameter_count(sizes, copies or 1, layer_norm)
        )

    def on(self, flat: Tensor) -> Network:
        """Return the network with the parameters `flat` `[size]`."""
        if self.modules:
            return ModuleNetwork(self.modules, flat, self._copies is not None)
        return FlatMLP(self._sizes, flat, self._copies, self._activation, self._layer_norm)

    @torch.no_grad()
    def initial(
        self,
        generator: torch.Generator,
        *,
        head_gain: float | None = None,
        head_inputs: int | None = None,
    ) -> Tensor:
        """Return initial parameters `[size]` on the CPU.

        Args:
            generator: draws the parameters of a perceptron.
            head_gain: orthogonal weights with this gain in the head; None for uniform ones (see `MLPParameters`). A
                module without `initialise_orthogonally` keeps the values of its constructor, as all do for None.
            head_inputs: fan-in of one output of the head, see `MLPParameters.initialise`.
        """
        if self.modules:
            if head_gain is not None:
                self._initialise_orthogonally(head_gain)
            return torch.cat([tensor.detach().reshape(-1) for tensor in tensors_of(self.modules)])
        net = FlatMLP(self._sizes, torch.zeros(self.size), self._copies, self._activation, self._layer_norm)
        if head_gain is None:
            net.initialise(generator, head_inputs)
        else:
            net.initialise_orthogonally(generator, head_gain)
        return net.flat

    def _initialise_orthogonally(self, head_gain: float) -> None:
        """Initialise the modules that have a method of this name; the values are the same on every device."""
        with MAKING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            for module in self.modules:
                if initialise := getattr(module, "initialise_orthogonally", None):
                    initialise(head_gain)
