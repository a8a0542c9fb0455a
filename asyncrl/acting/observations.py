"""Shapes of what a policy observes: which observations are images. Plain Python."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.interfaces import EnvSpec

SMALLEST_IMAGE = 8
"""Arrays of bytes with a shorter side are not taken for images."""


@dataclass(frozen=True)
class Image:
    """Shape of a stack of images in one row of a network's input.

    Attributes:
        frames: images in the stack.
        height, width, channels: of one image.
        channels_first: whether an image is `[channels, height, width]`, else `[height, width, channels]`.
    """

    frames: int
    height: int
    width: int
    channels: int
    channels_first: bool

    @property
    def values(self) -> int:
        """Numbers in a stack."""
        return self.frames * self.height * self.width * self.channels


def image_of(spec: EnvSpec, *, bytes_only: bool = True) -> Image | None:
    """The image that an observation is, or None.

    An image is an array of bytes `[H, W]`, `[H, W, C]` or `[C, H, W]` (C is the shorter of first and last axis), of at
    least 8 x 8.

    Args:
        spec: what a policy sees, stacked frames included.
        bytes_only: whether arrays of other numbers are no images.
    """
    shape = spec.observation_shape[1:] if spec.frame_stack > 1 else spec.observation_shape
    if (bytes_only and spec.observation_dtype != "uint8") or len(shape) not in (2, 3):
        return None
    channels_first = len(shape) == 3 and shape[0] < shape[2]
    if len(shape) == 2:
        (height, width), channels = shape, 1
    elif channels_first:
        channels, height, width = shape
    else:
        height, width, channels = shape
    if min(height, width) < SMALLEST_IMAGE:
        return None
    return Image(spec.frame_stack, height, width, channels, channels_first)
