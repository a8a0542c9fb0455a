"""Convolutional networks in NumPy, over the same flat weights as the torch modules of `acting.convolutions`.

A loaded policy acts with it, so that it needs no torch. An image is `[R, height, width, channels]` here: the pixels of
a row of a kernel's window are then contiguous, which makes copying the windows (im2col) fast.

Actors keep torch, which is faster for many rows. Time of this to that of torch with one thread, for 1 / 8 / 32 rows
(benchmarks/systems/convolutions.py; two busy cores, so a figure moves by a third from run to run):

    Nature CNN           84 x 84 x 4    0.74 / 1.48 / 1.60
    IMPALA ResNet        84 x 84 x 4    0.75 / 1.16 / 1.26
    IMPALA ResNet        21 x 21 x 2    0.38 / 0.55 / 0.84
    small                21 x 21 x 2    1.05 / 1.24 / 2.54
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from asyncrl.acting.convolution_layers import (
    PLAIN,
    SECTIONS,
    VALUES_WIDTH,
    WIDTHS,
    Convolution,
    convolution_count,
    feature_count,
    section_layer,
)
from asyncrl.acting.layouts import LAYER_NORM_EPS, ParameterReader
from asyncrl.envs.observations import Image

Floats = NDArray[np.float32]

CHUNK_BYTES = 1 << 20
"""Most bytes of copied windows before one matrix product (one row's at least); they should stay in the cache."""


class InNumpy(Protocol):
    """Forward pass of a network of asyncrl's in NumPy, over the flat weights of its torch module."""

    def parameter_count(self, inputs: int, outputs: int) -> int:
        """Length of the network's part of the flat block."""
        ...

    def noise_count(self, inputs: int, outputs: int) -> int:
        """Number of factors of the noise of one row, 0 without noise."""
        ...

    def forward(self, x: Floats, flat: Floats, outputs: int, noise: Floats | None = None) -> Floats:
        """Values of the head `[R, outputs]` for rows `x` `[R, inputs]`; a fresh array."""
        ...


@dataclass(frozen=True)
class NumpyNetwork:
    """The forward pass of one convolutional network.

    Attributes:
        images: start in an observation, shape, and name of the convolutions of each image.
        frames: k of the frame stack.
        row_values: number of values of one observation; those of no image have a linear layer of their own.
        value_outputs: outputs of the value stream of a dueling network, 0 without.
        noisy: the layers after the convolutions have standard deviations for their weights.
        layer_norm: see `images.ConvolutionalNetwork`.
    """

    images: tuple[tuple[int, Image, str], ...]
    frames: int
    row_values: int
    value_outputs: int = 0
    noisy: bool = False
    layer_norm: bool = False

    def parameter_count(self, inputs: int, outputs: int) -> int:
        """Length of the network's part of the flat block."""
        count = sum(
            convolution_count(name, im.frames * im.channels, self.layer_norm) for _, im, name in self.images
        )
        norms = 2 if self.layer_norm else 0
        if others := self._other_values:
            count += (others + 1 + norms) * VALUES_WIDTH
        head = self._head(inputs, outputs)
        count += norms * sum(width for _, width in head[::2])
        return count + sum((a + 1) * b for a, b in head) * (2 if self.noisy else 1)

    def noise_count(self, inputs: int, outputs: int) -> int:
        """Number of factors of the noise of one row: inputs and outputs of every noisy layer."""
        return sum(a + b for a, b in self._head(inputs, outputs)) if self.noisy else 0

    def forward(self, x: Floats, flat: Floats, outputs: int, noise: Floats | None = None) -> Floats:
        """Values of the head `[R, outputs]` for rows `x` `[R, inputs]`; a fresh array.

        Args:
            x: rows, bytes scaled to 0..1.
            flat: the network's parameters; what follows them is not read.
            outputs: values of the head.
            noise: factors `[R, noise_count]` of the noise (see `noisy_layers`); None for the means.
        """
        left = ParameterReader(flat)
        features = self._encode(x, left)
        layers = self._head(x.shape[1], outputs)
        splits = np.cumsum([width for layer in layers for width in layer])[:-1]
        factors = [None] * len(layers) * 2 if noise is None else np.split(noise, splits, axis=1)
        streams = []
        for i in range(0, len(layers), 2):
            hidden = self._linear(features, left, layers[i][1], factors[2 * i : 2 * i + 2])
            if self.layer_norm:
                _normalise(hidden, left)
            hidden = np.maximum(hidden, 0, out=hidden)
            streams.append(self._linear(hidden, left, layers[i + 1][1], factors[2 * i + 2 : 2 * i + 4]))
        return streams[0] if len(streams) == 1 else np.concatenate(streams, axis=1)

    @cached_property
    def _others(self) -> NDArray[np.intp]:
        """Columns of an observation that are no part of an image."""
        columns = np.ones(self.row_values, np.bool_)
        for start, image, _ in self.images:
            columns[start : start + image.values // self.frames] = False
        return np.flatnonzero(columns)

    @property
    def _other_values(self) -> int:
        return self.frames * len(self._others)

    def _head(self, inputs: int, outputs: int) -> list[tuple[int, int]]:
        """Inputs and outputs of the layers after the convolutions: two for each stream of the head."""
        features = sum(feature_count(name, im.height, im.width) for _, im, name in self.images)
        features += (VALUES_WIDTH if self._other_values else 0) + inputs - self.frames * self.row_values
        width = max(WIDTHS[name] for _, _, name in self.images)
        streams = [self.value_outputs, outputs - self.value_outputs] if self.value_outputs else [outputs]
        return [layer for count in streams for layer in ((features, width), (width, count))]

    def _encode(self, x: Floats, left: ParameterReader) -> Floats:
        """Inputs of the head `[R, features]`."""
        end = self.frames * self.row_values
        rows = x[:, :end].reshape(x.shape[0], self.frames, self.row_values)
        parts = []
        for start, image, name in self.images:
            own = rows[:, :, start : start + image.values // self.frames]
            pixels = _convolutions(name, _pixels(own, image), left, self.layer_norm)
            parts.append(pixels.transpose(0, 3, 1, 2).reshape(x.shape[0], math.prod(pixels.shape[1:])))
        if self._other_values:
            others = np.ascontiguousarray(rows[:, :, self._others]).reshape(x.shape[0], self._other_values)
            matrix, bias = left.take(VALUES_WIDTH, self._other_values), left.take(VALUES_WIDTH)
            values = others @ matrix.T + bias
            if self.layer_norm:
                _normalise(values, left)
            parts.append(np.maximum(values, 0, out=values))
        return np.concatenate((*parts, x[:, end:]), axis=1)

    def _linear(self, x: Floats, left: ParameterReader, outputs: int, factors: list[Any]) -> Floats:
        """Linear layer; the standard deviations of a noisy one are used only with factors."""
        matrix, bias = left.take(outputs, x.shape[1]), left.take(outputs)
        out: Floats = x @ matrix.T
        out += bias
        if self.noisy:
            sigma, sigma_bias = left.take(outputs, x.shape[1]), left.take(outputs)
            if factors[0] is not None:
                out += factors[1] * ((factors[0] * x) @ sigma.T + sigma_bias)
        return out


def _pixels(rows: Floats, image: Image) -> Floats:
    """Convert flat images `[R, k, values]` to `[R, height, width, k * channels]`; a frame's channels stay together."""
    count, frames, channels = rows.shape[0], image.frames, image.channels
    if image.channels_first:
        x = rows.reshape(count, frames, channels, image.height, image.width).transpose(0, 3, 4, 1, 2)
    else:
        x = rows.reshape(count, frames, image.height, image.width, channels).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(x).reshape(count, image.height, image.width, frames * channels)


def _normalise(x: Floats, left: ParameterReader) -> None:
    """Layer normalisation over the last axis of `x`, in place."""
    gain, shift = left.take(x.shape[-1]), left.take(x.shape[-1])
    x -= x.mean(axis=-1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(LAYER_NORM_EPS))
    x *= gain
    x += shift


def _convolutions(name: str, x: Floats, left: ParameterReader, layer_norm: bool) -> Floats:
    """Convolutions `name` over pixels `[R, height, width, channels]`; a fresh array of the same order of axes."""
    if name != "impala":
        for layer in PLAIN[name]:
            x = _convolve(x, layer, left)
            if layer_norm:
                _normalise(x, left)
            np.maximum(x, 0, out=x)
        return x
    for channels in SECTIONS:
        layer = section_layer(channels)
        x = _pool(_convolve(x, layer, left))
        for _ in range(2):
            inner = _convolve(np.maximum(x, 0), layer, left)
            x += _convolve(np.maximum(inner, 0, out=inner), layer, left)
    return np.maximum(x, 0, out=x)


def _convolve(x: Floats, layer: Convolution, left: ParameterReader) -> Floats:
    """One convolution with bias, contiguous `[R, H, W, C]` to `[R, H', W', channels]`: windows times one matrix."""
    rows, height, width, inputs = x.shape
    size, pad, stride = layer.kernel, layer.padding, layer.stride
    weights, bias = left.take(layer.channels, inputs, size, size), left.take(layer.channels)
    matrix = weights.transpose(2, 3, 1, 0).reshape(-1, layer.channels)
    high, wide = layer.sides(height, width)
    x = _padded(x, pad, 0.0)
    row, line, pixel, value = x.strides
    shape = rows, high, wide, size, size * inputs
    windows = as_strided(x, shape, (row, stride * line, stride * pixel, line, value), writeable=False)
    out = np.empty((rows, high, wide, layer.channels), np.float32)
    chunk = max(1, CHUNK_BYTES // (high * wide * len(matrix) * 4))
    for start in range(0, rows, chunk):
        part = out[start : start + chunk]
        copied = windows[start : start + chunk].reshape(-1, len(matrix))
        np.matmul(copied, matrix, out=part.reshape(-1, layer.channels))
    out += bias
    return out


def _pool(x: Floats) -> Floats:
    """Maximum over 3 x 3 pixels, stride 2, padding 1."""
    x = _padded(x, 1, -np.inf)
    high, wide = ((side - 3) // 2 + 1 for side in x.shape[1:3])
    rows = [x[:, i : i + 2 * high - 1 : 2] for i in range(3)]
    x = np.maximum(np.maximum(rows[0], rows[1]), rows[2])
    columns = [x[:, :, i : i + 2 * wide - 1 : 2] for i in range(3)]
    return np.maximum(np.maximum(columns[0], columns[1]), columns[2])


def _padded(x: Floats, pad: int, value: float) -> Floats:
    """`x` with `pad` pixels of `value` around each image; itself if that is none."""
    if pad == 0:
        return x
    rows, height, width, channels = x.shape
    out = np.full((rows, height + 2 * pad, width + 2 * pad, channels), value, np.float32)
    out[:, pad:-pad, pad:-pad] = x
    return out
