"""Layers of the convolutional networks as data, for the forward pass in NumPy and for ONNX. No torch.

`acting.convolutions` builds the same layers as torch modules.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

VALUES_WIDTH = 64
"""Units of the linear layer for the values that are not part of an image."""
WIDTHS = {"small": 128, "cells": 128, "coarse": 128, "nature": 512, "impala": 256}
"""Units of the linear layer after the convolutions of each network."""
SECTIONS = (16, 32, 32)
"""Channels of the three sections of Espeholt et al. 2018 (fig. 3, right): a 3x3 convolution, a 3x3 max-pooling of
stride 2, two residual blocks of two 3x3 convolutions."""


class Convolution(NamedTuple):
    """One convolution with a square kernel: output channels, kernel, stride and zero padding in pixels."""

    channels: int
    kernel: int
    stride: int
    padding: int

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        padded = 2 * self.padding - self.kernel
        return (height + padded) // self.stride + 1, (width + padded) // self.stride + 1


PLAIN = {
    "small": (Convolution(16, 3, 2, 1), Convolution(32, 3, 2, 1)),
    "cells": (Convolution(16, 3, 1, 0), Convolution(32, 3, 1, 0)),
    "coarse": (Convolution(16, 6, 3, 0), Convolution(32, 4, 2, 1)),
    "nature": (Convolution(32, 8, 4, 0), Convolution(64, 4, 2, 0), Convolution(64, 3, 1, 0)),
}
"""Convolutions of the networks without residual blocks; ReLU follows each of them.

Those of `small` are padded: without padding the second layer ignored the last rows of a 21 x 21 image. Those of
`nature` are the three layers of Mnih et al. 2015. `cells` is `small` fitted to grids with a side below 12, whose cells
are single things: no stride skips one (MinAtar's own network is one such layer). `coarse` is `small` fitted to larger
images: a pass of 32 rows forward and back takes 0.39 of the time of `nature` over 84 x 84, over 42 x 42 a tenth of it.
"""


def section_layer(channels: int) -> Convolution:
    """Convolution of a section of IMPALA's network, before the max-pooling and in the residual blocks."""
    return Convolution(channels, 3, 1, 1)


def pooled(height: int, width: int) -> tuple[int, int]:
    """Height and width after a max-pooling of 3x3, stride 2 and padding 1."""
    return (height + 1) // 2, (width + 1) // 2


def feature_shape(name: str, height: int, width: int) -> tuple[int, int, int]:
    """Channels, height and width after the convolutions `name` over an image."""
    if name == "impala":
        for _ in SECTIONS:
            height, width = pooled(height, width)
        return SECTIONS[-1], height, width
    for layer in PLAIN[name]:
        height, width = layer.sides(height, width)
    return PLAIN[name][-1].channels, height, width


def convolution_count(name: str, channels: int, layer_norm: bool = False) -> int:
    """Number of parameters of the convolutions `name` over images of this many channels, with their normalisation."""
    if name == "impala":
        pairs = [(a, b, 9) for a, b in itertools.pairwise((channels, *SECTIONS))]
        pairs += [(width, width, 9) for width in SECTIONS for _ in range(4)]
    else:
        inputs = (channels, *(layer.channels for layer in PLAIN[name]))
        kernels = (layer.kernel**2 for layer in PLAIN[name])
        pairs = [(a, b, n) for (a, b), n in zip(itertools.pairwise(inputs), kernels, strict=True)]
    norms = 2 * sum(layer.channels for layer in PLAIN[name]) if layer_norm and name in PLAIN else 0
    return norms + sum(outputs * (inputs * pixels + 1) for inputs, outputs, pixels in pairs)


def feature_count(name: str, height: int, width: int) -> int:
    """Number of values after the convolutions `name` over an image."""
    return math.prod(feature_shape(name, height, width))
