"""Order of a perceptron's parameters in a flat float32 block, shared by actors and learner.

A layer is its weights and then its biases; layers follow one another without gaps. The weights of a hidden layer are
`[inputs, outputs]`, those of the head `[outputs, inputs]`, both row-major: a product with a short last axis is two to
four times slower than its transpose, and a head has few outputs where a first layer has few inputs. An ensemble of C
perceptrons has the weights of all copies of a layer, `[C, ...]`, then their biases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

NetworkFactory = Callable[[int, int], Any]
"""`network(inputs, outputs)` returns a module from float32 `[R, inputs]` to `[R, outputs]`."""


def parameter_count(sizes: Sequence[int], copies: int = 1) -> int:
    """How many parameters `copies` perceptrons of these widths have, from the inputs to the outputs."""
    return copies * sum((a + 1) * b for a, b in itertools.pairwise(sizes))


class WithStatistics:
    """Where the statistics of normalised observations stand in a flat block: `[...][mean][1 / deviation]`, at its end.

    A layout that extends this has `inputs`, `normalized` and `network_count`, and may have more before them.
    """

    inputs: int
    normalized: bool
    network_count: int

    @property
    def statistics_start(self) -> int:
        """Length of what stands before them."""
        return self.network_count

    @property
    def obs_mean(self) -> slice:
        """Where the mean of each observed value stands; an empty slice unless normalised."""
        start = self.statistics_start
        return slice(start, start + (self.inputs if self.normalized else 0))

    @property
    def obs_scale(self) -> slice:
        """Where one over the standard deviation of each observed value stands; empty unless normalised."""
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
