"""Keyword arguments of `make_pass`, common to all kinds of networks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypedDict


class PassOptions(TypedDict, total=False):
    """Rows and columns of its input for which a pass computes gradients, and how it computes.

    The backward pass computes the gradient of the weights over the first G rows, and the gradient at the last A columns
    of the input for the I rows after them. The remaining rows have a forward pass only.
    """

    weight_rows: int
    """G, default 0."""
    input_rows: int
    """I, default 0."""
    input_columns: int
    """A, default 0."""
    copies: int | None
    """K, to use the first K networks of an ensemble only; default all. With a gradient it must be all."""
    precision: AbstractContextManager[None] | None
    """Context for large products: those of a perceptron with no side below 128, all of a module."""
    kernels: bool | None
    """Whether compiled kernels, on host memory, compute a perceptron's biases and activations; default on the CPU."""
