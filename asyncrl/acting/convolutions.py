"""Convolutional networks as torch modules, for learner and actors. Imports torch, so it is imported lazily.

The input rows are flat float32 (bytes scaled to 0..1), as for every network of the engine; an `ImageModule` reshapes
them into images. The frames of a stack become channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncrl.acting.convolution_layers import (
    PLAIN,
    SECTIONS,
    VALUES_WIDTH,
    WIDTHS,
    feature_count,
    section_layer,
)
from asyncrl.acting.layouts import LAYER_NORM_EPS
from asyncrl.acting.noisy_layers import linear
from asyncrl.envs.observations import Image

LARGE = 36
"""Smallest side of images whose channels come last in memory while gradients are computed.

Forward and backward pass are then 10 to 25 % faster with one thread (84 x 84 x 4, Nature CNN, 256 rows: 241 to 184 ms
on an AMD EPYC). A forward pass alone is slower so, and small images gain nothing.
"""


class ImageModule(nn.Module):
    """Convolutions for the images of a row, a linear layer for its other values, one hidden layer over both, the head.

    Its rows are independent (`rows_are_independent`), so a learner may compute those without gradient without a graph.

    Args:
        images: start in an observation, shape, and name of the convolutions (small, nature, impala) of each image.
        shape: frames of the stack, and values of one observation.
        value_outputs: outputs of the value stream of a dueling network, 0 without.
        inputs: values of a row; those after the observations are inputs of the first linear layer.
        outputs: values of the head.
        sigma: sigma of the noisy layers after the convolutions (see `noisy_layers`), 0 without noise.
        layer_norm: see `images.ConvolutionalNetwork`.
    """

    rows_are_independent = True

    def __init__(
        self,
        images: Sequence[tuple[int, Image, str]],
        shape: tuple[int, int],
        value_outputs: int,
        inputs: int,
        outputs: int,
        sigma: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self._images, (self._frames, self._row) = [(start, image) for start, image, _ in images], shape
        columns = torch.ones(self._row, dtype=torch.bool)
        self.convolutions, features = nn.ModuleList(), 0
        for start, image, name in images:
            columns[start : start + image.values // self._frames] = False
            self.convolutions.append(convolutions(name, image.frames * image.channels, layer_norm))
            features += feature_count(name, image.height, image.width)
        self._others: Tensor
        self.register_buffer("_others", columns.nonzero().squeeze(1), persistent=False)
        others = self._frames * int(columns.sum())
        self.values: nn.Module | None = None
        if others:
            linear_layer = nn.Linear(others, VALUES_WIDTH)
            self.values = (
                nn.Sequential(linear_layer, nn.LayerNorm(VALUES_WIDTH, LAYER_NORM_EPS))
                if layer_norm
                else linear_layer
            )
        features += (VALUES_WIDTH if others else 0) + inputs - self._frames * self._row
        width = max(WIDTHS[name] for _, _, name in images)
        self.head = head_of(features, width, value_outputs, outputs, sigma, layer_norm)

    def forward(self, x: Tensor) -> Tensor:
        """`[R, inputs]` to `[R, outputs]`."""
        out: Tensor = self.head(self.encode(x))
        return out

    def encode(self, x: Tensor) -> Tensor:
        """Inputs of the head for rows `[R, inputs]`."""
        end = self._frames * self._row
        rows = x[:, :end].reshape(x.shape[0], self._frames, self._row)
        parts: list[Tensor] = []
        for (start, image), layers in zip(self._images, self.convolutions, strict=True):
            own = rows[:, :, start : start + image.values // self._frames].reshape(x.shape[0], -1)
            pixels = channels_of(own, image)
            if torch.is_grad_enabled() and min(image.height, image.width) >= LARGE:
                pixels = pixels.contiguous(memory_format=torch.channels_last)
            parts.append(layers(pixels).flatten(1))
        if self.values is not None:
            parts.append(self.values(rows[:, :, self._others].flatten(1)).relu())
        if x.shape[1] > end:
            parts.append(x[:, end:])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @torch.no_grad()
    def initialise_orthogonally(self, head_gain: float) -> None:
        """Set orthogonal weights with gain sqrt(2), `head_gain` in the last layer, and zero biases."""
        layers = [m for m in self.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, head_gain if layer is layers[-1] else math.sqrt(2.0))
            assert layer.bias is not None
            layer.bias.zero_()


def channels_of(rows: Tensor, image: Image) -> Tensor:
    """Reshape flat images `[R, values]` to `[R, frames * channels, height, width]`."""
    count, frames, channels = rows.shape[0], image.frames, image.channels
    if image.channels_first or channels == 1:
        return rows.reshape(count, frames * channels, image.height, image.width)
    shaped = rows.reshape(count, frames, image.height, image.width, channels)
    return shaped.permute(0, 1, 4, 2, 3).reshape(count, frames * channels, image.height, image.width)


class DuelingHead(nn.Module):
    """Dueling head (Wang et al. 2016): two streams of one hidden layer each; value outputs first, then advantages."""

    def __init__(
        self, features: int, width: int, value_outputs: int, outputs: int, sigma: float, layer_norm: bool
    ) -> None:
        super().__init__()
        self.value, self.advantage = (
            stream(features, width, count, sigma, layer_norm)
            for count in (value_outputs, outputs - value_outputs)
        )

    def forward(self, features: Tensor) -> Tensor:
        """`[R, features]` to `[R, outputs]`."""
        return torch.cat((self.value(features), self.advantage(features)), dim=1)


def head_of(
    features: int, width: int, value_outputs: int, outputs: int, sigma: float, layer_norm: bool = False
) -> nn.Module:
    """One hidden layer and the outputs; a dueling head if `value_outputs` is not 0; noisy if `sigma` is not 0."""
    if value_outputs:
        return DuelingHead(features, width, value_outputs, outputs, sigma, layer_norm)
    return stream(features, width, outputs, sigma, layer_norm)


def stream(features: int, width: int, outputs: int, sigma: float, layer_norm: bool) -> nn.Sequential:
    """One hidden layer, normalised if `layer_norm`, and the outputs."""
    norm = [nn.LayerNorm(width, LAYER_NORM_EPS)] if layer_norm else []
    return nn.Sequential(linear(features, width, sigma), *norm, nn.ReLU(), linear(width, outputs, sigma))


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each pixel of images `[R, C, H, W]`, as in the code of PQN's authors."""

    def forward(self, x: Tensor) -> Tensor:
        """`[R, C, H, W]` to the same shape."""
        # The exporter to ONNX takes no negative axis here.
        return super().forward(x.movedim(1, 3)).movedim(3, 1)


def convolutions(name: str, channels: int, layer_norm: bool = False) -> nn.Sequential:
    """Convolutions `name` (see `convolution_layers`) over images of this many channels."""
    layers: list[nn.Module] = []
    if name == "impala":
        for width in SECTIONS:
            layers += [nn.Conv2d(channels, *section_layer(width)), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(width), Residual(width)]
            channels = width
        return nn.Sequential(*layers, nn.ReLU())
    for layer in PLAIN[name]:
        norm = [ChannelNorm(layer.channels, LAYER_NORM_EPS)] if layer_norm else []
        layers += [nn.Conv2d(channels, *layer), *norm, nn.ReLU()]
        channels = layer.channels
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, *section_layer(channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """`[R, channels, H, W]` to the same shape."""
        inner: Tensor = self.second(functional.relu(self.first(functional.relu(x))))
        return x + inner
