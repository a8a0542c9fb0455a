"""Convolutional networks by name, and the selection of one for an environment. Building a module imports torch.

small    two 3x3 convolutions of stride 2 (16, 32 channels), 128 units     for images of 8 x 8 up to 35 x 35, and grids
         the same of stride 1                                              for grids with a side of 5 to 11 cells
         16 6x6/3, 32 4x4/2, 128 units                                     for larger images
nature   Mnih et al. 2015, "Human-level control": 32 8x8/4, 64 4x4/2, 64 3x3/1, 512 units    from 36 x 36 on
impala   Espeholt et al. 2018, fig. 3: three sections of residual blocks (16, 32, 32 channels), 256 units
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from asyncrl.acting.numpy_network import InNumpy, NumpyNetwork
from asyncrl.acting.sale import SaleNetwork
from asyncrl.acting.schedules import parameters_of
from asyncrl.envs.observations import SMALLEST_IMAGE, Image, image_of
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import EnvSpec, ObservationKind

if TYPE_CHECKING:
    from torch import nn

NetworkName = Literal["auto", "mlp", "small", "nature", "impala"]
"""Networks by name; `auto` is a convolutional network for images and grids, a perceptron for the rest."""

SMALLEST_SIDES = {"small": SMALLEST_IMAGE, "impala": SMALLEST_IMAGE, "nature": 36}
"""Smallest side, in pixels, of the images that each network accepts."""
LARGEST_CELLS = 11
"""Largest shorter side of the grids whose convolutions have no stride."""

Convolutions = Literal["small", "cells", "coarse", "nature", "impala"]


class ImageNetwork:
    """Base class of the factories of convolutional networks; `factory(inputs, outputs)` makes a module."""

    value_outputs: int
    noisy_sigma: float
    layer_norm: bool

    def __call__(self, inputs: int, outputs: int) -> nn.Module:
        """A module from float32 `[R, inputs]` to `[R, outputs]`. Imports torch."""
        from asyncrl.acting.convolutions import ImageModule

        images, shape = self._parts()
        return ImageModule(
            images, shape, self.value_outputs, inputs, outputs, self.noisy_sigma, self.layer_norm
        )

    @property
    def numpy(self) -> NumpyNetwork:
        """The same network in NumPy."""
        images, shape = self._parts()
        return NumpyNetwork(images, *shape, self.value_outputs, self.noisy_sigma > 0, self.layer_norm)

    @property
    def text(self) -> str:
        """Readable description: `images 84x84x1, 4 frames: Nature CNN (Mnih et al. 2015)`."""
        raise NotImplementedError

    def _parts(self) -> tuple[tuple[tuple[int, Image, str], ...], tuple[int, int]]:
        """Return the arguments `images` and `shape` of `convolutions.ImageModule`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConvolutionalNetwork(ImageNetwork):
    """Factory of a named convolutional network.

    Attributes:
        name: the convolutions.
        image: shape of the first `image.values` inputs; the rest (a critic's action) joins after the convolutions.
        value_outputs: outputs of the value stream of a dueling network (Wang et al. 2016), which come first, or 0.
        noisy_sigma: initial standard deviation of the noise after the convolutions (see `noisy_layers`), times the
            square root of a layer's inputs; 0 for no noise.
        layer_norm: normalise every layer but the last before its activation, convolutions over the channels of a pixel;
            those of impala are not normalised.
    """

    name: Convolutions
    image: Image
    value_outputs: int = 0
    noisy_sigma: float = 0.0
    layer_norm: bool = False

    @property
    def text(self) -> str:
        """See `ImageNetwork.text`."""
        image = self.image
        shape = f"{image.height}x{image.width}x{image.channels}"
        frames = f", {image.frames} frames" if image.frames > 1 else ""
        return f"{'grid' if image.grid else 'images'} {shape}{frames}: {_TITLES[self.name]}"

    def _parts(self) -> tuple[tuple[tuple[int, Image, str], ...], tuple[int, int]]:
        frames = self.image.frames
        return ((0, self.image, self.name),), (frames, self.image.values // frames)


@dataclass(frozen=True)
class CombinedNetwork(ImageNetwork):
    """Factory of a network with convolutions for every image of a structured observation and a layer for the rest.

    Their outputs are concatenated, as in Stable-Baselines3's `CombinedExtractor`; see `convolutions.ImageModule`.

    Attributes:
        name: the convolutions; an image too small for them gets those of `_fitting`.
        frames: k of the frame stack.
        row_values: number of values of one observation.
        images: start in an observation and shape of each image.
        value_outputs, noisy_sigma, layer_norm: see `ConvolutionalNetwork`.
    """

    name: NetworkName
    frames: int
    row_values: int
    images: tuple[tuple[int, Image], ...]
    value_outputs: int = 0
    noisy_sigma: float = 0.0
    layer_norm: bool = False

    @property
    def text(self) -> str:
        """See `ImageNetwork.text`."""
        names = (ConvolutionalNetwork(_fitting(self.name, image), image).text for _, image in self.images)
        return f"{'; '.join(names)}; other values a layer of their own"

    def _parts(self) -> tuple[tuple[tuple[int, Image, str], ...], tuple[int, int]]:
        images = tuple((start, image, _fitting(self.name, image)) for start, image in self.images)
        return images, (self.frames, self.row_values)


def _fitting(name: NetworkName, image: Image) -> Convolutions:
    """Return `name` if it is a convolutional network that accepts the image, else "nature" or "small" by its size.

    `small` has no strides for a small grid, and larger ones for a large image.
    """
    side = min(image.height, image.width)
    if image.grid and side <= LARGEST_CELLS and (name in ("auto", "small") or side < SMALLEST_IMAGE):
        return "cells"
    if name == "small" and not image.grid and side >= SMALLEST_SIDES["nature"]:
        return "coarse"
    if name in ("small", "nature", "impala") and side >= SMALLEST_SIDES[name]:
        return name  # type: ignore[return-value]
    return "nature" if side >= SMALLEST_SIDES["nature"] else "small"


def _combined(
    name: NetworkName, spec: EnvSpec, value_outputs: int, noisy_sigma: float, layer_norm: bool
) -> CombinedNetwork | None:
    """Return the network for structured observations with images; None without images."""
    images, start = [], 0
    for leaf in spec.leaves:
        if leaf.kind in ("image", "grid"):
            grid: ObservationKind | None = "grid" if leaf.kind == "grid" else None
            alone = replace(spec, observation_shape=leaf.shape, frame_stack=1, leaves=())
            image = image_of(
                replace(alone, observation_kind=grid).stacked(spec.frame_stack), bytes_only=False
            )
            assert image is not None, "leaves that are images were chosen by the same rule"
            images.append((start, image))
        start += leaf.values
    if not images:
        return None
    return CombinedNetwork(
        name, spec.frame_stack, start, tuple(images), value_outputs, noisy_sigma, layer_norm
    )


_TITLES = {
    "small": "small convolutional network",
    "cells": "small convolutional network without strides",
    "coarse": "small convolutional network with large strides",
    "nature": "Nature CNN (Mnih et al. 2015)",
    "impala": "IMPALA ResNet (Espeholt et al. 2018)",
}


def choose_network(
    name: NetworkName,
    spec: EnvSpec,
    value_outputs: int = 0,
    noisy_sigma: float = 0.0,
    layer_norm: bool = False,
) -> ImageNetwork | None:
    """Return the network `name` for the observations of `spec`; None for a perceptron over the flat observation.

    `spec` is the policy's view of the environment, stacked frames included; the rest is that of `ConvolutionalNetwork`.

    Raises:
        SpacesDoNotFit: `name` is a convolutional network, and the observations are no images or too small (ASYNC005).
    """
    if name == "mlp":
        return None
    if spec.leaves and (combined := _combined(name, spec, value_outputs, noisy_sigma, layer_norm)):
        return combined
    image = image_of(spec, bytes_only=name == "auto")
    if name == "auto":
        if image is None:
            return None
        return ConvolutionalNetwork(_fitting(name, image), image, value_outputs, noisy_sigma, layer_norm)
    side = SMALLEST_SIDES[name]
    if name == "small" and image is not None and (image.grid or min(image.height, image.width) >= side):
        return ConvolutionalNetwork(_fitting(name, image), image, value_outputs, noisy_sigma, layer_norm)
    if image is None or min(image.height, image.width) < side:
        raise SpacesDoNotFit(
            f"network {name!r} needs images of at least {side} x {side}, and the observations of {spec.name} have "
            f"shape {spec.observation_shape}",
            facts={"observation shape": spec.observation_shape, "dtype": spec.observation_dtype},
            fix="set network to auto, which takes what fits, or to mlp",
        )
    return ConvolutionalNetwork(name, image, value_outputs, noisy_sigma, layer_norm)


def with_shape(factory: Any, spec: EnvSpec) -> Any:
    """Return the user's network `factory`, with `observation_shape` bound if it has a parameter of that name.

    Of a structured observation it is `[values]` (with k frames `[k, values]`), whatever its row's bytes are.
    """
    if "observation_shape" not in parameters_of(factory):
        return factory
    shape = spec.observation_shape
    if spec.leaves:
        shape = (*shape[:-1], sum(leaf.values for leaf in spec.leaves))
    return ShapedNetwork(factory, shape)


@dataclass(frozen=True)
class ShapedNetwork:
    """A user's factory `factory(inputs, outputs, observation_shape=...)`; the rows are flat nevertheless."""

    factory: Any
    observation_shape: tuple[int, ...]

    def __call__(self, inputs: int, outputs: int) -> Any:
        """The user's module."""
        return self.factory(inputs, outputs, observation_shape=self.observation_shape)


def numpy_network(factory: Any) -> InNumpy | None:
    """Return the network that `factory` makes, in NumPy; None for a factory of the user's own."""
    return factory.numpy if isinstance(factory, ImageNetwork | SaleNetwork) else None


def network_text(policy: Any) -> str:
    """Description of a policy's network: `images 84x84x1, 4 frames: Nature CNN (Mnih et al. 2015)`.

    It is "" for a perceptron and for a user's module.
    """
    network = getattr(getattr(policy, "layout", None), "network", None)
    return network.text if isinstance(network, ImageNetwork) else ""
