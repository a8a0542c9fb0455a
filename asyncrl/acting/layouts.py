"""Order of a perceptron's parameters in a flat float32 block, shared by actors and learner.

A layer is its weights and then its biases; layers follow one another without gaps. The weights of a hidden layer are
`[inputs, outputs]`, those of the head `[outputs, inputs]`, both row-major: a product with a short last axis is two to
four times slower than its transpose, and a head has few outputs where a first layer has few inputs. An ensemble of C
perceptrons has the weights of all copies of a layer, `[C, ...]`, then their biases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def parameter_count(sizes: Sequence[int], copies: int = 1) -> int:
    """How many parameters `copies` perceptrons of these widths have, from the inputs to the outputs."""
    return copies * sum((a + 1) * b for a, b in itertools.pairwise(sizes))
