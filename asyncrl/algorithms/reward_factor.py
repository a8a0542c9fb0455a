"""Factor on the rewards that a learner trains on, given by the user or decided by the first rewards.

A learning rate fits values of some size: with rewards of 1,000 a network does not reach its values in time, and with
rewards of 0.001 the entropy of SAC drowns them. So where the user gives no factor, the first
rewards decide one, once: 1 if their mean size per step lies between `SMALLEST` and `LARGEST`, as in most environments
by which the defaults were chosen, else the power of ten that brings it nearest to 1. It depends on rewards alone, so
runs in lockstep repeat it (benchmarks/learning/reward_sizes.py: what it is worth).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SMALLEST, LARGEST = 0.01, 10.0
"""Mean sizes of rewards between which nothing is scaled."""
_EXPONENTS = 30
"""Largest power of ten of a factor, so that a factor is a normal float32."""


class RewardFactor:
    """Factor on rewards; learner's thread only.

    Args:
        given: the user's factor; None lets `decide` choose it.
        replaceable: whether the factor of networks that are loaded takes the place of the given one.

    Attributes:
        factor: the factor; 1 until it is decided.
        decided: whether it is final.
    """

    def __init__(self, given: float | None = None, replaceable: bool = False) -> None:
        self.factor, self._replaceable = 1.0 if given is None else given, replaceable
        self.decided = self._given = given is not None

    @property
    def chosen(self) -> float:
        """Factor that the rewards decided, 0 without one; another object continues with it."""
        return self.factor if self.decided and not self._given else 0.0

    @chosen.setter
    def chosen(self, factor: float) -> None:
        if not self._given or (self._replaceable and factor > 0):
            self.factor, self.decided, self._given = factor or 1.0, factor > 0, False

    def decide(self, reward: NDArray[np.float32], steps: int = 1) -> None:
        """Choose the factor by a batch, unless it is decided, all rewards are 0, or one is not finite.

        Args:
            reward: sums of rewards over `steps` steps, of any shape.
            steps: n of n-step returns.
        """
        if self.decided:
            return
        sizes = np.abs(reward[reward != 0].astype(np.float64))
        if sizes.size == 0 or not math.isfinite(mean := float(sizes.mean()) / steps):
            return
        self.decided = True
        if not SMALLEST <= mean < LARGEST:
            exponent = -round(math.log10(mean))
            self.factor = 10.0 ** min(max(exponent, -_EXPONENTS), _EXPONENTS)

    def scaled(self, reward: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rewards times the factor, a copy."""
        return reward * np.float32(self.factor)

    def metrics(self) -> dict[str, float]:
        """`train/reward_scale`, if the rewards decided a factor other than 1."""
        return {} if self.chosen in (0.0, 1.0) else {"train/reward_scale": self.factor}
