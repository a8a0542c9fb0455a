"""Networks with noise in their weights, in the learner (Fortunato et al. 2018).

A draw for a perceptron sets the weights w = mu + sigma * f(e_out) f(e_in)^T and the biases b = mu + sigma * f(e_out)
once for all rows of a batch (eq. 10 and 11). Passes use them like other weights; the gradient of sigma is that of the
weights times the noise. A module with noisy layers (`acting.noisy_layers`) uses autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.noisy_layers import factor_counts, noisy_layers, set_noise, signed_root_
from asyncrl.networks.mlp import FlatMLP, MLPPass
from asyncrl.networks.module import ModuleNetwork
from asyncrl.networks.parameters import MLPParameters, NamedTensors, PassOptions


class NoisyMLP(NamedTensors):
    """Means and standard deviations of a perceptron in one flat vector; every layer but the first is noisy.

    The means have the names of `FlatMLP`, the standard deviations `sigma.<layer>.weight` and `sigma.<layer>.bias`.

    Args:
        sizes: widths `(inputs, *hidden, outputs)`.
        flat: `[noisy_size(sizes)]`: means of all layers, then standard deviations of all but the first.

    Attributes:
        flat: as given.
        mean: the network of the means.
        sigma: the standard deviations.
        ensemble, copies: see `architecture.Network`.
    """

    ensemble, copies = False, 1

    def __init__(self, sizes: Sequence[int], flat: Tensor) -> None:
        count = parameter_count(sizes)
        self.flat = flat
        self.mean = FlatMLP(sizes, flat[:count])
        self.sigma = MLPParameters(sizes[1:], flat[count:])
        self._drawn = FlatMLP(sizes, flat[:count].clone())
        self._noise = MLPParameters(sizes[1:], torch.zeros_like(self.sigma.flat))
        first = parameter_count(sizes[:2])
        self._first = self._drawn.flat[:first], self.mean.flat[:first]
        self._rest = self._drawn.flat[first:], self.mean.flat[first:]

    def on(self, flat: Tensor) -> NoisyMLP:
        """Return a network of the same shape on another vector (a target network, a gradient)."""
        return NoisyMLP(self.mean.sizes, flat)

    @torch.no_grad()
    def initialise_sigma(self, sigma: float, head_inputs: int | None = None) -> None:
        """Set the standard deviations of each layer to `sigma / sqrt(inputs)` (Fortunato et al. 2018, section 3.2).

        `head_inputs` is the fan-in of one output of the head, as in `MLPParameters.initialise`.
        """
        own = self.sigma
        for weight, bias in zip(own.weights, own.biases, strict=True):
            weight.fill_(sigma * weight.shape[1] ** -0.5)
            bias.fill_(sigma * weight.shape[1] ** -0.5)
        own.head.fill_(sigma * (head_inputs or own.head.shape[2]) ** -0.5)
        own.head_bias.fill_(sigma * (head_inputs or own.head.shape[2]) ** -0.5)

    @property
    def noise_count(self) -> int:
        """Number of factors of one draw."""
        return noise_count(self.mean.sizes)

    def mean_sigma(self) -> Tensor:
        """Mean absolute value of the standard deviations."""
        return self.sigma.flat.abs().mean()

    def draw(self, factors: Tensor) -> None:
        """Set the weights of the passes; `factors` `[noise_count]` are f(e_in), f(e_out) of each noisy layer."""
        noise, sizes = self._noise, self.mean.sizes
        parts = factors.split([width for pair in itertools.pairwise(sizes[1:]) for width in pair])
        *inner, e_in, e_out = parts
        for i, (weight, bias) in enumerate(zip(noise.weights, noise.biases, strict=True)):
            torch.outer(inner[2 * i], inner[2 * i + 1], out=weight[0])
            bias[0, 0].copy_(inner[2 * i + 1])
        torch.outer(e_out, e_in, out=noise.head[0])
        noise.head_bias[0, 0].copy_(e_out)
        self._first[0].copy_(self._first[1])
        torch.addcmul(self._rest[1], self.sigma.flat, noise.flat, out=self._rest[0])

    def make_pass(self, x: Tensor, gradient: Tensor | None = None, **options: Unpack[PassOptions]) -> MLPPass:
        """Return passes with the weights of the last `draw`; for the arguments see `MLPPass`."""
        if gradient is None:
            return self._drawn.make_pass(x, **options)
        return _NoisyPass(self._drawn, x, gradient, self._noise.flat, options)

    def by_copy(self) -> Tensor:
        """Return a copy `[1, P]` on the host of the vector, means and standard deviations."""
        return self.flat.detach()[None].cpu().clone()

    def load_copies(self, weights: Tensor) -> None:
        """Copy what `by_copy` returned."""
        self.flat.copy_(weights[0])

    def _views(self) -> dict[str, Tensor]:
        found = self.mean._views()
        for name, view in self.sigma._views().items():
            layer, kind = name.split(".")
            found[f"sigma.{int(layer) + 1}.{kind}"] = view
        return found


class _NoisyPass(MLPPass):
    """Passes that also fill the gradient of the standard deviations."""

    def __init__(
        self, drawn: FlatMLP, x: Tensor, gradient: Tensor, noise: Tensor, options: PassOptions
    ) -> None:
        count, noisy = drawn.flat.numel(), noise.numel()
        super().__init__(drawn, x, drawn.on(gradient[:count]), **options)
        self._for_weights, self._for_sigma = gradient[count - noisy : count], gradient[count:]
        self._noise = noise

    def backward(self, grad_output: Tensor) -> Tensor:
        """See `MLPPass.backward`."""
        grad_input = super().backward(grad_output)
        torch.mul(self._for_weights, self._noise, out=self._for_sigma)
        return grad_input


class NoisyModule(ModuleNetwork):
    """A module with noisy layers on a flat vector; its passes use the factors of the last `draw`.

    Attributes:
        noise_count: number of factors of one draw.
    """

    def __init__(self, modules: Sequence[nn.Module], flat: Tensor) -> None:
        super().__init__(modules, flat)
        self._layers = noisy_layers(self.modules)
        self.noise_count = sum(factor_counts(self._layers))
        self._factors = flat.new_zeros(self.noise_count)  # a CUDA graph reads every draw from this memory
        set_noise(self._layers, self._factors)

    @property
    def mean(self) -> ModuleNetwork:
        """The network of the means, on the same vector."""
        plain = ModuleNetwork(self.modules, self.flat)
        set_noise(noisy_layers(plain.modules), None)
        return plain

    def mean_sigma(self) -> Tensor:
        """Mean absolute value of the standard deviations."""
        sigmas = [s.reshape(-1) for layer in self._layers for s in (layer.sigma_weight, layer.sigma_bias)]
        return torch.cat(sigmas).abs().mean()

    def draw(self, factors: Tensor) -> None:
        """Set the noise of the passes to `factors` `[noise_count]`: f(e_in), f(e_out) of each noisy layer."""
        self._factors.copy_(factors)


class NoiseSource:
    """Noise for several networks of one shape, drawn on the host, so it is the same on every device.

    Args:
        networks: the networks; the noise of each is independent.
        seed: random seed.

    Attributes:
        generator: random generator of the noise.
    """

    STATE = ("generator",)

    def __init__(self, networks: Sequence[NoisyMLP | NoisyModule], seed: int) -> None:
        self._networks = networks
        device = networks[0].flat.device
        pinned = device.type == "cuda"
        self._host = torch.zeros(len(networks), networks[0].noise_count, pin_memory=pinned)
        self._factors = torch.zeros_like(self._host, device=device)
        self._copied = torch.cuda.Event() if pinned else None
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> None:
        """Draw factors f(e) = sign(e) sqrt|e| of normal e and set them in every network."""
        for network, factors in zip(self._networks, self.factors(), strict=True):
            network.draw(factors)

    def factors(self) -> Tensor:
        """Return new f(e) `[networks, noise_count]`: the same tensor at every call."""
        if self._copied is not None:
            self._copied.synchronize()
        self._host.normal_(generator=self.generator)
        self._factors.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return signed_root_(self._factors)


def noise_count(sizes: Sequence[int]) -> int:
    """Number of factors of one draw: inputs and outputs of every layer but the first."""
    return sum(a + b for a, b in itertools.pairwise(sizes[1:]))


def noisy_size(sizes: Sequence[int]) -> int:
    """Length of the flat vector of a `NoisyMLP`."""
    return parameter_count(sizes) + parameter_count(sizes[1:])
