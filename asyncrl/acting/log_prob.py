"""Log probabilities of given actions, in NumPy: the twins of `networks/distributions.py` for a policy without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import BoxAction

LARGEST = 1.0 - float(np.finfo(np.float32).eps)
"""Largest absolute value of a squashed action whose draw is computed, 1 - 2^-23 as in Stable-Baselines3: float32 has no
digits of the draw beyond it."""
_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)


def log_softmax(logits: NDArray[np.float32], choices: Sequence[int]) -> list[NDArray[np.float64]]:
    """Log probabilities `[B, n]` of every component, from logits `[B, sum(choices)]` concatenated over components."""
    parts = np.split(logits.astype(np.float64), np.cumsum(choices)[:-1], axis=1)
    shifted = [part - part.max(axis=1, keepdims=True) for part in parts]
    return [part - np.log(np.exp(part).sum(axis=1, keepdims=True)) for part in shifted]


def categorical(
    logits: NDArray[np.float32], action: NDArray[Any], choices: Sequence[int]
) -> NDArray[np.float32]:
    """Log probability `[B]` of `action` `[B, k]`, counted from 0, summed over k independent components."""
    chosen = [
        np.take_along_axis(part, action[:, i : i + 1].astype(np.int64), axis=1)
        for i, part in enumerate(log_softmax(logits, choices))
    ]
    return np.concatenate(chosen, axis=1).sum(axis=1).astype(np.float32)


def gaussian(mean: NDArray[Any], draw: NDArray[Any], log_std: NDArray[Any]) -> NDArray[np.float64]:
    """Log density `[B]` of `draw` `[B, d]`; `mean` is `[B, d]`, `log_std` `[d]` or `[B, d]`."""
    log_std = log_std.astype(np.float64)
    z = (draw - mean.astype(np.float64)) * np.exp(-log_std)
    each: NDArray[np.float64] = -0.5 * z * z - log_std - _HALF_LOG_TWO_PI
    return each.sum(axis=1)


def squashed_gaussian(
    mean: NDArray[Any], action: NDArray[Any], log_std: NDArray[Any], box: BoxAction
) -> NDArray[np.float32]:
    """Log density `[B]` of actions `[B, d]` of the box scaled to -1..1, drawn as tanh of a Gaussian.

    log pi(a|s) = log N(u; mean, std) - log(1 - tanh(u)^2), u = artanh(a)      (Haarnoja et al. 2018a, appendix C)

    An action at a bound counts as one `LARGEST` from the middle, as in Stable-Baselines3. Its densities are lower near
    a bound, for it adds 1e-6 to the slope 1 - a^2; here, as in the losses, the slope is exact. The difference of a
    value is log(1 + 1e-6 / (1 - a^2)): 5e-6 at |a| = 0.9, 5e-4 at 0.999, 0.05 at 0.99999, and 1.43 at the bound.
    """
    low, high = (np.array(bound, np.float64) for bound in (box.low, box.high))
    half_range = (high - low) / 2
    unit = np.zeros(action.shape)
    np.divide(action - (high + low) / 2, half_range, out=unit, where=half_range > 0)
    u = np.arctanh(unit.clip(-LARGEST, LARGEST))
    slope = 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))
    return (gaussian(mean, u, log_std) - slope.sum(axis=1)).astype(np.float32)
