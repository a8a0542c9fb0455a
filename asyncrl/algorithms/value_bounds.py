"""Bounds of action values implied by the rewards and discounts seen so far.

A transition of the replay is (G, d): the discounted sum G of k rewards, and the factor d of the bootstrapped value,
which is gamma^k, or 0 if the episode terminated. An action value is the expectation of

    Q = G + d Q'                                                                            (1)

over such transitions. If every Q' lies in [low, high], then every Q does, provided that G + d low >= low and
G + d high <= high for all transitions, which is

    low = min(0, min G / (1 - d)),        high = max(0, max G / (1 - d))                    (2)

The range includes 0 because an episode may end. So (2) holds for the values of every policy and every n_step, without
knowledge of k. With n_step 1 the range lies within the usual [min(0, r_min), max(0, r_max)] / (1 - gamma), and is
tighter if the extreme reward ends the episode: with gamma 0.99, a reward of -100 for a crash gives the bound -100 and
not -10,000. If d is 1 (gamma 1), a side is unbounded after the first reward of its sign.

The bounds have two uses. A bootstrapped value outside the bounds is an error of the network, and such errors grow by
bootstrapping: with many updates per step and a fast target network, DQN's values on CartPole-v1, at most 100, diverged
to thousands, sooner with older acting policies. So targets are clipped to (2) (`bound_targets`), as the support of C51
clips its targets. And one warning (ASYNC024) is given when values exceed twice the bounds, which can happen without
clipping.

Values of SAC, TQC and CrossQ include an entropy bonus, which is unbounded because a density is. Their targets are not
clipped. For the warning alone, the bounds are widened by `entropy_margin`: the bonus of a policy whose entropy per step
lies between the extremes that training moves it between, the target entropy and that of uniform actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import ActionValuesOutOfRange, warn
from asyncrl.shm.kernel import kernel

FIRST_VERDICT = 1_000
"""Updates before the first check: until then values are those of the initial weights, and rewards are few."""
TOLERANCE = 2.0
"""Multiple of the bound above which values are out of range."""


class ValueBounds:
    """Running bounds of action values over all transitions seen; learner thread only. Implements `Shareable`.

    Attributes:
        values: float32 `[2]`, low and high of equation (2), in the units of the action values.
    """

    STATE = ("values",)

    def __init__(self) -> None:
        self.values = np.zeros(2, np.float32)

    def extend(self, reward: NDArray[np.float32], discount: NDArray[np.float32]) -> None:
        """Extend the bounds by transitions: G and d, `[B]` float32 each, contiguous."""
        _extend(reward, discount, self.values)

    @property
    def size(self) -> int:
        """See `Shareable`."""
        return 2

    def take_message(self) -> NDArray[np.float64]:
        """See `Shareable`: the present bounds."""
        return self.values.astype(np.float64)

    def merge(self, message: NDArray[np.float64]) -> None:
        """See `Shareable`."""
        (low, high), (other_low, other_high) = self.values.tolist(), message.tolist()
        self.values[:] = min(low, other_low), max(high, other_high)

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Shareable`: the wider bounds."""
        return np.array((min(first[0], second[0]), max(first[1], second[1])))

    def metrics(self, margin: float = 0.0) -> dict[str, float]:
        """Finite bounds by metric name, `margin` wider on both sides unless all rewards were 0."""
        low, high = self.values.tolist()
        if low < high:
            low, high = low - margin, high + margin
        found = {"train/value_low": low, "train/value_high": high}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def entropy_margin(alpha: float, target_entropy: float, action_values: int, gamma: float) -> float:
    """Largest absolute entropy bonus in an action value: alpha (d ln 2 + |target entropy|) / (1 - gamma).

    d ln 2 is the entropy of uniform actions in -1..1, the largest one. Infinite if gamma is 1.

    Args:
        alpha: entropy coefficient.
        target_entropy: entropy per step that alpha is adapted to.
        action_values: d, number of values of an action.
        gamma: discount of a step.
    """
    per_step = alpha * (action_values * math.log(2.0) + abs(target_entropy))
    return per_step / (1.0 - gamma) if gamma < 1.0 else math.inf


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
    """One-time warning about action values outside their bounds; learner thread only."""

    def __init__(self) -> None:
        self._warned = False

    def check(self, metrics: Mapping[str, float], updates: int) -> None:
        """Warn (`ActionValuesOutOfRange`) if `train/q_max` exceeds twice the larger absolute bound.

        There is no warning before `FIRST_VERDICT` updates, without bounds, or while all rewards were 0, because later
        rewards may differ.
        """
        q_max, low, high = (
            metrics.get(f"train/{name}", math.nan) for name in ("q_max", "value_low", "value_high")
        )
        bound = max(-low, high) if low <= high else math.nan  # NaN: a side is unbounded
        if self._warned or updates < FIRST_VERDICT or not bound > 0.0 or not q_max > TOLERANCE * bound:
            return
        self._warned = True
        warn(
            ActionValuesOutOfRange(
                f"[ASYNC024] an action value has reached {q_max:,.4g} in size, but the rewards so far and gamma allow "
                f"{low:,.4g} to {high:,.4g}; lower learning_rate, tau or samples_per_insert, and keep bound_targets on "
                "where the algorithm has it"
            )
        )
