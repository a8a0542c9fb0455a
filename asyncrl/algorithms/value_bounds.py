"""Bounds of action values that rewards and discount allow, from the transitions seen so far.

A transition of the replay is (G, d): the discounted sum G of k rewards, and the factor d on the value that is
bootstrapped, gamma^k, or 0 where the episode terminated. An action value is the expectation of

    Q = G + d Q'                                                                            (1)

over such transitions. If every Q' lies in [low, high], then every Q does, provided that G + d low >= low and
G + d high <= high for all transitions, which is

    low = min(0, min G / (1 - d)),        high = max(0, max G / (1 - d))                    (2)

(0 is in the range because an episode may end.) So (2) holds for the values of every policy and every n_step; k need
not be known. With n_step 1 it is at most the usual [min(0, r_min), max(0, r_max)] / (1 - gamma), and tighter where the
extreme reward ends the episode: a reward of -100 for a crash, at gamma 0.99, allows -100 and not -10,000. Where d is 1
(gamma 1) a side is unbounded as soon as a reward points to it.

Two uses. A bootstrapped value beyond the bounds is an error of the network, and such errors feed on themselves: with
many updates per step and a fast target DQN's values on CartPole-v1, at most 100, ran off to thousands, the sooner the
older the acting policy was. So targets are clipped to (2) (`bound_targets`), as the support of C51 does by its nature.
And whoever turns that off is warned once (ASYNC024) when values leave twice the bounds. Values of SAC hold an entropy
bonus, which has no bound because a density has none: SAC does neither.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import ActionValuesOutOfRange
from asyncrl.shm.kernel import kernel

FIRST_VERDICT = 1_000
"""Updates before which nothing is said: values are still those of the initial weights, and rewards are few."""
TOLERANCE = 2.0
"""Multiple of the bound from which values are out of range."""


class ValueBounds:
    """Running bounds over all transitions seen; learner thread only. Implements `Shareable`.

    Attributes:
        values: float32 `[2]`, low and high of equation (2), in the units of the action values.
    """

    def __init__(self) -> None:
        self.values = np.zeros(2, np.float32)

    def extend(self, reward: NDArray[np.float32], discount: NDArray[np.float32]) -> None:
        """Take in transitions: G and d, `[B]` float32 each, contiguous."""
        _extend(reward, discount, self.values)

    @property
    def size(self) -> int:
        """Values that tell of the bounds."""
        return 2

    def tell(self) -> NDArray[np.float64]:
        """See `Shareable`: the bounds as they are."""
        return self.values.astype(np.float64)

    def hear(self, told: NDArray[np.float64]) -> None:
        """See `Shareable`."""
        self.values[:] = self.merged(self.values.astype(np.float64), told)

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Shareable`: the wider ones."""
        return np.array((min(first[0], second[0]), max(first[1], second[1])))

    def metrics(self) -> dict[str, float]:
        """Both bounds by metric name, those that are finite."""
        low, high = self.values.tolist()
        found = {"train/value_low": low, "train/value_high": high}
        return {name: value for name, value in found.items() if math.isfinite(value)}


@kernel("void(float32[::1], float32[::1], float32[::1])")
def _extend(reward: NDArray[np.float32], discount: NDArray[np.float32], bounds: NDArray[np.float32]) -> None:
    """Widen `bounds` by `reward / (1 - discount)`."""
    low, high = bounds[0], bounds[1]
    for i in range(reward.shape[0]):
        if discount[i] < 1.0:
            value = reward[i] / (np.float32(1.0) - discount[i])
            low, high = min(low, value), max(high, value)
        elif reward[i] > 0.0:
            high = np.float32(np.inf)
        elif reward[i] < 0.0:
            low = np.float32(-np.inf)
    bounds[0], bounds[1] = low, high


class ValueWatch:
    """Warns once when action values leave what rewards and discount allow; learner thread only."""

    def __init__(self) -> None:
        self._warned = False

    def check(self, metrics: Mapping[str, float], updates: int) -> None:
        """Warn (`ActionValuesOutOfRange`) if `train/q_max` is over twice the larger bound.

        Says nothing before `FIRST_VERDICT` updates, without bounds, nor while all rewards were 0: a reward may still
        come.
        """
        q_max, low, high = (
            metrics.get(f"train/{name}", math.nan) for name in ("q_max", "value_low", "value_high")
        )
        bound = max(-low, high)
        if self._warned or updates < FIRST_VERDICT or not bound > 0.0 or not q_max > TOLERANCE * bound:
            return
        self._warned = True
        warnings.warn(
            ActionValuesOutOfRange(
                f"[ASYNC024] an action value has reached {q_max:,.4g} in size, but the rewards so far and gamma allow "
                f"{low:,.4g} to {high:,.4g}; lower learning_rate, tau or samples_per_insert, and keep bound_targets on "
                "where the algorithm has it"
            ),
            stacklevel=2,
        )
