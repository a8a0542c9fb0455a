"""Keywords of `make_pass`, the same for every kind of network."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypedDict


class PassOptions(TypedDict, total=False):
    """Which rows and columns of its input a pass gives gradients for, and how it computes.

    The backward pass gives the weights' gradient from the first G rows, and the gradient at the last A columns of the
    input from the I rows after them. Rows behind these are only looked at.
    """

    weight_rows: int
    """G, 0 unless given."""
    input_rows: int
    """I, 0 unless given."""
    input_columns: int
    """A, 0 unless given."""
    copies: int | None
    """The first K networks of an ensemble only; all of them unless given. With a gradient it must be all."""
    precision: AbstractContextManager[None] | None
    """Context for large products: those of a perceptron with no side below 128, all of a module."""
    kernels: bool | None
    """Whether what stands between a perceptron's products runs compiled, on the host's memory; else where it can."""
