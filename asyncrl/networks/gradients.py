"""Gradient of a loss with respect to the outputs of networks, by autograd.

A loss is a pure function, written as in its paper. The networks' outputs are its leaves, so autograd runs through a few
small operations only; the backward pass of the networks is that of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor


class HasLoss(Protocol):
    """Result of a loss function, with the loss among its attributes."""

    @property
    def loss(self) -> Tensor:
        """The scalar to minimise."""
        ...


Result = TypeVar("Result", bound=HasLoss)


def output_gradients(
    function: Callable[..., Result], outputs: tuple[Tensor, ...], *args: Any, **options: Any
) -> tuple[Result, tuple[Tensor, ...]]:
    """Call `function(*outputs, *args, **options)`; return its result and the loss's gradient at each of `outputs`.

    An output that the loss does not depend on gets zeros. `outputs` must not be inference tensors.
    """
    with torch.enable_grad():
        leaves = tuple(output.detach().requires_grad_() for output in outputs)
        result = function(*leaves, *args, **options)
        found = torch.autograd.grad(result.loss, leaves, allow_unused=True)
    return result, tuple(
        torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)
    )


def vector_jacobian_product(
    function: Callable[..., Any], output: Tensor, *args: Any
) -> tuple[Any, Callable[..., Tensor]]:
    """Call `function(output, *args)`; return its result, detached, and its vector-Jacobian product.

    The latter is a function from the loss's gradient at the result (at each of its tensors, if there are several) to
    the loss's gradient at `output`.
    """
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        result = function(leaf, *args)

    def pull_back(*grads: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(result, (leaf,), grads)
        return grad

    if isinstance(result, Tensor):
        return result.detach(), pull_back
    return tuple(tensor.detach() for tensor in result), pull_back
