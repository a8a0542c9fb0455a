"""Linear layers with noise in their weights, for torch modules (Fortunato et al. 2018, eq. 9 to 11).

    y = (mu + sigma * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out)
      = mu x + mu_b + f(e_out) * (sigma (f(e_in) * x) + sigma_b)

The second form needs no matrix of noise and allows noise per row. Actors draw it per stream, a learner once per batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Linear):
    """A linear layer with noise in its weights; it uses its means only while `factors` is None (see `set_noise`).

    Args:
        inputs: input width.
        outputs: output width.
        sigma: initial standard deviation times the square root of `inputs` (section 3.2).
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__(inputs, outputs)
        self.sigma_weight = nn.Parameter(torch.full((outputs, inputs), sigma * inputs**-0.5))
        self.sigma_bias = nn.Parameter(torch.full((outputs,), sigma * inputs**-0.5))
        self.factors: tuple[Tensor, Tensor] | None = None  # no buffer: those are published with the weights

    def forward(self, x: Tensor) -> Tensor:
        """`[R, inputs]` to `[R, outputs]`."""
        out = super().forward(x)
        if self.factors is None:
            return out
        e_in, e_out = self.factors
        return out + e_out * functional.linear(e_in * x, self.sigma_weight, self.sigma_bias)


def linear(inputs: int, outputs: int, sigma: float) -> nn.Linear:
    """Return a linear layer, noisy if `sigma` is above 0."""
    return NoisyLinear(inputs, outputs, sigma) if sigma > 0 else nn.Linear(inputs, outputs)


def noisy_layers(modules: Iterable[nn.Module]) -> list[NoisyLinear]:
    """Noisy layers of the modules, in the order of their factors."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, NoisyLinear)]


def factor_counts(layers: Iterable[NoisyLinear]) -> list[int]:
    """Numbers of factors: inputs and outputs of every layer."""
    return [width for layer in layers for width in (layer.in_features, layer.out_features)]


def set_noise(layers: list[NoisyLinear], factors: Tensor | None) -> None:
    """Set the noise of the layers: `factors` `[n]`, or `[R, n]` for R rows, kept as views; None for the means."""
    if factors is None:
        for layer in layers:
            layer.factors = None
        return
    parts = factors.split(factor_counts(layers), dim=-1)
    for layer, e_in, e_out in zip(layers, parts[::2], parts[1::2], strict=True):
        layer.factors = e_in, e_out


def signed_root_(noise: Tensor) -> Tensor:
    """Apply f(e) = sign(e) sqrt|e| in place."""
    root = noise.abs().sqrt_()
    return noise.sign_().mul_(root)
