"""Acting with a `torch.nn.Module`, for networks that the kernels cannot run. Building a module imports torch.

A network of asyncrl also acts in NumPy (`leave_torch`); a module of the user's own only with torch.

The module's parameters and floating-point buffers are views of one flat float32 block: all parameters in the order of
`parameters()`, then all buffers. Writing the block changes the module.

Modules run eagerly. A trace of a small perceptron is 1.6 times faster, of convolutions no faster; but it keeps the
branch that Python took for the example, and torch has deprecated traces and scripts. `torch.compile` takes up to twice
as long for such batches, and seconds in every actor (`benchmarks/systems/acting_modes.py`).
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.images import numpy_network
from asyncrl.acting.layouts import NetworkFactory as NetworkFactory
from asyncrl.acting.layouts import NetworkLayout, parameter_count
from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.numpy_network import InNumpy
from asyncrl.acting.own_module import check_network
from asyncrl.acting.recurrent import Cell, RecurrentActingNetwork, recurrent_count, recurrent_forward
from asyncrl.acting.sale import SaleNetwork
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

MAKING = threading.RLock()
"""Held while a module is made: initial values come from torch's own generator, which all threads of a process share."""


def tensors_of(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Parameters of all modules, then their floating-point buffers, in the order of the flat block."""
    parameters = [p for module in modules for p in module.parameters()]
    return parameters + [b for module in modules for b in module.buffers() if b.is_floating_point()]


def flat_size(modules: Sequence[nn.Module]) -> int:
    """Length of the flat block."""
    return sum(tensor.numel() for tensor in tensors_of(modules))


def bind(modules: Sequence[nn.Module], flat: Tensor) -> None:
    """Make the modules' tensors views of `flat`, with its values. Parameters must be float32."""
    start = 0
    for tensor in tensors_of(modules):
        stop = start + tensor.numel()
        tensor.data = flat[start:stop].view(tensor.shape)
        start = stop
    assert start == flat.numel()


class ModuleActingNetwork(ActingNetwork):
    """An acting network that is a torch module, whose tensors are the first part of the block.

    A pickle contains the weights and the factory (by reference; cloudpickle includes one defined in `__main__`).

    On a GPU the module runs on a stream of its own, which goes before the learner's: on the learner's stream a pass
    would wait for all updates that are launched already. Bytes are uploaded as bytes, from pinned memory.

    Args:
        spec: the environment; bytes of images are scaled to 0..1.
        layout: sizes and length of the block.
        network: factory of the module.

    Attributes:
        device: device of the module, to be set before the first call. It is not pickled.
    """

    device = "cpu"

    def __init__(self, spec: EnvSpec, layout: NetworkLayout, network: NetworkFactory) -> None:
        super().__init__(spec, layout)
        self._network = network
        # Perceptrons over embeddings act in NumPy everywhere, convolutions where torch is left.
        self._numpy: InNumpy | None = network if isinstance(network, SaleNetwork) else None
        self._module: nn.Module | None = None
        self._flat: Tensor | None = None
        self._stream: Any = None
        self._host: Tensor | None = None

    @property
    def _on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def _allocate(self, rows: int) -> None:
        """Allocate the buffers; for a GPU the input buffer is pinned, and of bytes if the observations are."""
        if self.device != "cpu" and rows > len(self._reserve):
            import torch

            as_bytes = self._to_inputs.bytes and self._statistics is None
            kind = torch.uint8 if as_bytes else torch.float32
            self._host = torch.empty(rows, self._inputs, dtype=kind, pin_memory=self._on_gpu)
            self._reserve = self._host.numpy()
        super()._allocate(rows)

    def leave_torch(self) -> None:
        """See `ActingNetwork.leave_torch`; a module of the user's own stays one."""
        self._numpy = numpy_network(self._network)

    def weights_changed(self) -> None:
        """Copy the weights to the module if it is on another device."""
        if self._flat is not None and self.device != "cpu":
            with self._on_stream():
                self._flat.copy_(_tensor(self.weights)[: len(self._flat)])

    def perturbed(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        """Values of the head with fresh noise for every row; see `NoisyActingNetwork.perturbed`."""
        if self._numpy is not None:
            self._observe(obs)
            factors = self._numpy.noise_count(self._inputs, self._outputs)
            noise = rng.standard_normal((obs.shape[0], factors), dtype=np.float32)
            noise = np.copysign(np.sqrt(np.abs(noise)), noise)
            return self._numpy.forward(self._x, self.weights, self._outputs, noise)
        import torch

        from asyncrl.acting.noisy_layers import factor_counts, noisy_layers, set_noise, signed_root_

        layers = noisy_layers([self._made()])
        noise = rng.standard_normal((obs.shape[0], sum(factor_counts(layers))), dtype=np.float32)
        with self._on_stream():
            set_noise(layers, signed_root_(torch.from_numpy(noise)).to(self.device))
            out = self(obs)
            set_noise(layers, None)
        return out

    def _made(self) -> nn.Module:
        import torch

        if self._module is None:
            torch.set_num_threads(1)
            with MAKING:
                made = self._network(self._inputs, self._outputs)
            with self._on_stream():
                self._module = made.to(self.device).eval().requires_grad_(False)
                # A view of the weights on the CPU, a copy on another device.
                self._flat = _tensor(self.weights)[: flat_size([self._module])].to(self.device)
                bind([self._module], self._flat)
        return self._module

    def _forward(self) -> NDArray[np.float32]:
        if self._numpy is not None:
            return self._numpy.forward(self._x, self.weights, self._outputs)
        import torch

        module = self._made()
        if self.device == "cpu":
            with torch.no_grad():
                on_cpu: NDArray[np.float32] = module(_tensor(self._x)).contiguous().numpy()
            return on_cpu
        assert self._host is not None
        with torch.no_grad(), self._on_stream():
            x = self._host[: len(self._x)].to(self.device, non_blocking=True)
            if x.dtype == torch.uint8:
                x = x.float().mul_(self._to_inputs.byte_factor)
            values: NDArray[np.float32] = module(x).contiguous().cpu().numpy()
        return values

    def _on_stream(self) -> AbstractContextManager[Any]:
        """Launch on this network's stream inside of a `with` block, if the device has streams."""
        if not self._on_gpu:
            return nullcontext()
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._stream)

    def __getstate__(self) -> dict[str, Any]:
        empty = np.empty((0, self._inputs), np.float32)
        here = {"_module": None, "_flat": None, "_stream": None, "_host": None, "device": "cpu"}
        return super().__getstate__() | here | {"_reserve": empty, "_x": empty}


def _tensor(array: NDArray[np.float32]) -> Tensor:
    """Return a tensor that shares the array's memory."""
    import torch

    return torch.from_numpy(array)


class RecurrentModuleActingNetwork(RecurrentActingNetwork):
    """A recurrent acting network whose encoder is a torch module; torch runs all of it, or NumPy and numba."""

    def __init__(
        self, spec: EnvSpec, layout: NetworkLayout, cell: Cell, network: NetworkFactory, relu: bool = True
    ) -> None:
        super().__init__(spec, layout, cell, relu)
        self._network = network
        self._made = RecurrentFactory(cell, layout.sizes, relu, network)
        self._numpy: InNumpy | None = None
        self._module: nn.Module | None = None

    def leave_torch(self) -> None:
        """See `ActingNetwork.leave_torch`; an encoder of the user's own stays a module."""
        self._numpy = numpy_network(self._network)

    def _advance(
        self, before: NDArray[np.float32], after: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        if self._numpy is not None:
            self._advance_numpy(self._numpy, before, after, out)
            return
        import torch

        if self._module is None:
            torch.set_num_threads(1)
            with MAKING:
                self._module = self._made(self._inputs, self._outputs).eval().requires_grad_(False)
            bind([self._module], torch.from_numpy(self.weights)[: flat_size([self._module])])
        with torch.no_grad():
            values, state = self._module(torch.from_numpy(self._x), torch.from_numpy(before))
        out[:], after[:] = values.numpy(), state.numpy()

    def _advance_numpy(
        self,
        encoder: InNumpy,
        before: NDArray[np.float32],
        after: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`_advance` by the encoder in NumPy and the kernel of a cell without hidden layers before it."""
        size, lstm = self._cell.size, self._cell.kind == "lstm"
        encoded = encoder.forward(self._x, self.weights, size)
        encoded = np.maximum(encoded, 0, out=encoded) if self._relu else np.tanh(encoded, out=encoded)
        cell = self.weights[encoder.parameter_count(self._inputs, size) :]
        sizes = np.array((size, size, self._outputs), np.int64)
        recurrent_forward(encoded, before, cell, sizes, self._relu, lstm, self._row_scratch, after, out)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_module": None}


@dataclass(frozen=True)
class RecurrentFactory:
    """Factory of recurrent modules.

    Attributes:
        cell: kind and size.
        sizes: widths `(inputs, *hidden, outputs)`.
        relu: ReLU in the encoder, else tanh.
        network: factory of the encoder, or None for a perceptron of the hidden widths.
    """

    cell: Cell
    sizes: tuple[int, ...]
    relu: bool = True
    network: NetworkFactory | None = None

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """Return a `RecurrentModule`; `inputs` and `outputs` must be those of `sizes`. Imports torch."""
        from asyncrl.acting.recurrent_module import RecurrentModule

        assert (inputs, outputs) == (self.sizes[0], self.sizes[-1])
        return RecurrentModule(self.cell, self.sizes, "relu" if self.relu else "tanh", self.network)


def network_size(
    sizes: tuple[int, ...],
    network: NetworkFactory | None,
    cell: Cell | None = None,
    layer_norm: bool = False,
) -> int:
    """Number of values of a network in its flat block: a perceptron of these widths, or the module of `network`.

    With a `cell` it is that of the recurrent network with this encoder. `layer_norm` is of a perceptron without a cell.

    Raises:
        ConfigurationError: the user's module is none that can be run (ASYNC017); see `check_network`.
    """
    if network is None:
        return parameter_count(sizes, layer_norm=layer_norm) if cell is None else recurrent_count(sizes, cell)
    features = sizes[-1] if cell is None else cell.size
    if (known := numpy_network(network)) is not None:
        count = known.parameter_count(sizes[0], features)
    else:
        require_torch()
        with MAKING:
            module = network(sizes[0], features)
            check_network(network, module, sizes[0], features, trained=cell is None)
        count = flat_size([module])
    return count if cell is None else count + cell.count(features) + (cell.size + 1) * sizes[-1]


def require_torch() -> None:
    """Raise ConfigurationError if torch is not installed, for a network that needs it."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            "a network of your own acts with torch, which is not installed",
            fix="pip install torch; only the networks of asyncrl act without it",
        )


def make_acting_network(
    spec: EnvSpec, layout: NetworkLayout, relu: bool = True, cell: Cell | None = None
) -> ActingNetwork:
    """Return the perceptron of `layout`, or the module of its factory; recurrent with a `cell`."""
    network = layout.network
    if cell is not None and network is not None:
        return RecurrentModuleActingNetwork(spec, layout, cell, network, relu)
    if cell is not None:
        return RecurrentActingNetwork(spec, layout, cell, relu)
    if network is not None:
        return ModuleActingNetwork(spec, layout, network)
    return ActingNetwork(spec, layout, relu)
