"""Noisy layers as the learner trains them: weights drawn around learned means (Fortunato et al. 2018).

A draw makes effective weights `mu + sigma * outer(f(e), f(e'))` once for all rows of a batch, with which a pass runs as
with any others; the gradient for sigma is that for the weights times the same product. The forward and backward pass
(`mlp.MLPPass`) know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asyncrl.networks.mlp import FlatMLP


class NoisyMLP:
    """Means and standard deviations of a perceptron in one flat tensor; every layer but the first is noisy.

    Attributes:
        flat: `[means of all layers][standard deviations of all but the first]`, written by its owner.
        mean: view of the means.
        drawn: the network with the weights of the last `draw`; those of a first layer are its means.
    """

    def __init__(self, blocks: Sequence[tuple[int, int]], flat: Tensor) -> None:
        count = _numel(blocks)
        self.flat = flat
        self.mean = FlatMLP(blocks, flat[:count])
        self._sigma = FlatMLP(blocks[1:], flat[count:])
        self.drawn = FlatMLP(blocks, flat[:count].clone())
        first = _numel(blocks[:1])
        self._first = (self.drawn.flat[:first], self.mean.flat[:first])
        self._rest = (self.drawn.flat[first:], self.mean.flat[first:])
        self._noise = FlatMLP(blocks[1:], torch.zeros_like(self._sigma.flat))

    def draw(self, factors: Tensor) -> None:
        """Make `drawn` anew with `factors` `[noise_count(blocks)]`, as `NoiseSource` gives them."""
        start = 0
        for block in (*self._noise.hidden, self._noise.head):
            rows, columns = block.shape
            left, right = factors[start : start + rows], factors[start + rows : start + rows + columns]
            torch.mul(left.unsqueeze(1), right, out=block)
            start += rows + columns
        self._first[0].copy_(self._first[1])
        torch.addcmul(self._rest[1], self._sigma.flat, self._noise.flat, out=self._rest[0])

    def spread_gradient(self, gradient: Tensor) -> None:
        """Fill the part of `gradient` (flat as `flat`) for the standard deviations from that for the weights."""
        count, noisy = self.mean.flat.numel(), self._sigma.flat.numel()
        torch.mul(gradient[count - noisy : count], self._noise.flat, out=gradient[count:])

    def sigma_mean(self) -> Tensor:
        """Scalar: mean size of the standard deviations, which may have become negative."""
        return self._sigma.flat.abs().mean()

    def named(self) -> dict[str, Tensor]:
        """Copies on the host: those of the means as `FlatMLP` names them, and `sigma.<layer>.<part>`."""
        return self.mean.named() | {_sigma_name(name): value for name, value in self._sigma.named().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy in what `named` returned. Raises ValueError where it does not fit."""
        names = {_sigma_name(name): name for name in self._sigma.named()}
        self.mean.load({name: value for name, value in tensors.items() if name not in names})
        self._sigma.load({names[name]: value for name, value in tensors.items() if name in names})


class NoiseSource:
    """Factors of noise for the layers of several networks, drawn on the host, so that every device sees the same.

    Args:
        networks: how many networks one call draws for.
        blocks: of each network.
        device: where the factors are wanted.
        seed: of the sequence.
    """

    def __init__(
        self, networks: int, blocks: Sequence[tuple[int, int]], device: torch.device, seed: int
    ) -> None:
        pinned = device.type == "cuda"
        self._host = torch.zeros(networks, noise_count(blocks), pin_memory=pinned)
        self._factors = torch.zeros_like(self._host, device=device)
        self._copied = torch.cuda.Event() if pinned else None
        self._biases = torch.tensor(_bias_places(blocks), device=device)
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> Tensor:
        """f(e) = sign(e) sqrt|e| of fresh normal numbers, 1 where a bias is the input; `[networks, noise_count]`.

        The same tensor every time.
        """
        if self._copied is not None:
            self._copied.synchronize()
        self._host.normal_(generator=self._generator)
        self._factors.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        root = self._factors.abs().sqrt_()
        return self._factors.sign_().mul_(root).index_fill_(1, self._biases, 1.0)

    def state(self) -> Tensor:
        """Where the sequence stands; a copy."""
        return self._generator.get_state()

    def load(self, state: Tensor) -> None:
        """Go on from `state`."""
        self._generator.set_state(state)


def noise_count(blocks: Sequence[tuple[int, int]]) -> int:
    """Factors that one draw of a network takes: rows and columns of every block but the first."""
    return sum(rows + columns for rows, columns in blocks[1:])


def _numel(blocks: Sequence[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in blocks)


def _bias_places(blocks: Sequence[tuple[int, int]]) -> list[int]:
    """Where the factor of the bias stands: in a hidden layer the last of the rows, in a head of the columns."""
    places, start = [], 0
    for rows, columns in blocks[1:-1]:
        places.append(start + rows - 1)
        start += rows + columns
    return [*places, start + sum(blocks[-1]) - 1]


def _sigma_name(name: str) -> str:
    layer, part = name.split(".")
    return f"sigma.{int(layer) + 1}.{part}"


def initial_sigma(blocks: Sequence[tuple[int, int]], sigma: float, head_inputs: int | None = None) -> Tensor:
    """Standard deviations at the start, `sigma / sqrt(inputs)` in a layer (Fortunato et al. 2018, section 3.2).

    `head_inputs` is the fan-in of one output of the head, as in `mlp.initial_weights`.
    """
    inputs = [*(rows - 1 for rows, _ in blocks[1:-1]), head_inputs or blocks[-1][1] - 1]
    parts = [
        torch.full((rows * columns,), sigma * max(count, 1) ** -0.5)
        for (rows, columns), count in zip(blocks[1:], inputs, strict=True)
    ]
    return torch.cat(parts)
