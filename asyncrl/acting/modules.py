"""Acting with a `torch.nn.Module`, for networks that the kernels cannot run. Imports torch when a network is made.

The module's parameters and floating-point buffers live in one flat float32 block: all parameters in the order of
`parameters()`, then all buffers. Writing the block changes the module at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

NetworkFactory = Callable[[int, int], Any]
"""`network(inputs, outputs)` returns a module from float32 `[R, inputs]` to `[R, outputs]`."""


def tensors_of(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Parameters of all modules, then their floating-point buffers: the order of the flat block."""
    parameters = [p for module in modules for p in module.parameters()]
    return parameters + [b for module in modules for b in module.buffers() if b.is_floating_point()]


def flat_size(modules: Sequence[nn.Module]) -> int:
    """Length of the flat block."""
    return sum(tensor.numel() for tensor in tensors_of(modules))


def bind(modules: Sequence[nn.Module], flat: Tensor) -> None:
    """Make the modules' tensors views into `flat`, whose values they take on. Parameters must be float32."""
    start = 0
    for tensor in tensors_of(modules):
        stop = start + tensor.numel()
        tensor.data = flat[start:stop].view(tensor.shape)
        start = stop
    assert start == flat.numel()


class ModuleActingNetwork:
    """A module that acts: its flat block and the forward pass. Used from one thread.

    It pickles with its weights (the factory by reference, so use cloudpickle for one of `__main__`).

    Args:
        spec: the environment; uint8 observations are scaled to 0..1.
        network: makes the module.
        outputs: values of the head.

    Attributes:
        weights: `[flat_size]` float32; whatever is written into it acts from then on.
    """

    def __init__(self, spec: EnvSpec, network: NetworkFactory, outputs: int) -> None:
        self._network, self._inputs, self._outputs = network, math.prod(spec.observation_shape), outputs
        self._scale = np.float32(1 / 255) if spec.observation_dtype == "uint8" else None
        self._module: nn.Module | None = None
        self.weights = np.zeros(flat_size([network(self._inputs, outputs)]), np.float32)

    def load(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` `[flat_size]` in. Raises ValueError if the length is another."""
        if weights.shape != self.weights.shape:
            raise ValueError(f"weights must have shape {self.weights.shape}, got {weights.shape}")
        np.copyto(self.weights, weights)

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """The head's values `[E, outputs]` for `obs` `[E, *obs_shape]`, which may be strided; a fresh array."""
        import torch

        if self._module is None:
            torch.set_num_threads(1)
            self._module = self._network(self._inputs, self._outputs).eval().requires_grad_(False)
            bind([self._module], torch.from_numpy(self.weights))
        x = obs.reshape(obs.shape[0], self._inputs).astype(np.float32)
        if self._scale is not None:
            x *= self._scale
        with torch.no_grad():
            out: NDArray[np.float32] = self._module(torch.from_numpy(x)).numpy()
        return out

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_module": None}
