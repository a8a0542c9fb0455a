"""Order of a perceptron's parameters in a flat float32 block, shared by actors and learner.

A layer is its weights, then its biases; layers follow each other without gaps. The weights of a hidden layer are
`[inputs, outputs]`, those of the head `[outputs, inputs]`, both row-major: a product with a short last axis is two to
four times slower than its transpose, and a head has few outputs while a first layer has few inputs. For an ensemble of
C perceptrons a layer is the weights of all copies, `[C, ...]`, then their biases. With layer normalisation the gains
and the shifts of a hidden layer follow its biases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NetworkFactory = Callable[[int, int], Any]
"""`network(inputs, outputs)` returns a module that maps float32 `[R, inputs]` to `[R, outputs]`."""


LAYER_NORM_EPS = 1e-5
"""Added to the variance in layer normalisation (Ba et al. 2016), as torch does."""

AVG_L1_EPS = 1e-8
"""Least mean of absolute values by which AvgL1Norm divides (Fujimoto et al. 2023), as in the paper's code."""


def parameter_count(sizes: Sequence[int], copies: int = 1, layer_norm: bool = False) -> int:
    """Number of parameters of `copies` perceptrons with the widths `sizes`, from the input to the outputs."""
    norms = 2 * sum(sizes[1:-1]) if layer_norm else 0
    return copies * (sum((a + 1) * b for a, b in itertools.pairwise(sizes)) + norms)


class ParameterReader:
    """Reader of a torch module's parameters from a flat block, in the order of `parameters()`.

    Args:
        flat: the block; it may be longer than the parameters.
    """

    def __init__(self, flat: NDArray[np.float32]) -> None:
        self._flat = flat
        self._taken = 0

    def take(self, *shape: int) -> NDArray[np.float32]:
        """Return the next tensor, a view."""
        start, self._taken = self._taken, self._taken + math.prod(shape)
        return self._flat[start : self._taken].reshape(shape)


class NetworkLayout:
    """Base class of the layouts of a policy's values in its flat block, `[network][...][obs mean][1 / obs std]`.

    A subclass overrides `statistics_start` if the block has more than the network before the statistics.

    Attributes:
        inputs: number of values of one flattened observation.
        network: factory of a module in place of the perceptron, or None.
        normalized: observations are normalised by the statistics at the end of the block.
        layer_norm: the hidden layers of the perceptron are normalised.
        network_count: number of values of the network.
    """

    inputs: int
    network: NetworkFactory | None
    normalized: bool
    layer_norm: bool = False
    network_count: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from the input to the head."""
        raise NotImplementedError

    @property
    def statistics_start(self) -> int:
        """Start of the statistics in the block."""
        return self.network_count

    @property
    def obs_mean(self) -> slice:
        """Slice of the observation means; empty unless normalised."""
        start = self.statistics_start
        return slice(start, start + (self.inputs if self.normalized else 0))

    @property
    def obs_scale(self) -> slice:
        """Slice of the inverse standard deviations of the observations; empty unless normalised."""
        start = self.obs_mean.stop
        return slice(start, start + (self.inputs if self.normalized else 0))

    @property
    def weight_count(self) -> int:
        """Length of the flat block."""
        return int(self.obs_scale.stop)

    @property
    def statistics(self) -> tuple[slice, slice] | None:
        """`obs_mean` and `obs_scale`, or None."""
        return (self.obs_mean, self.obs_scale) if self.normalized else None
