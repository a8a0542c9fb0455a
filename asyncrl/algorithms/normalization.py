"""Running statistics for the normalisation of observations and rewards.

Chan, Golub, LeVeque 1979   Updating formulae and a pairwise algorithm for computing sample variances
Engstrom et al. 2020        Implementation matters in deep policy gradients (reward scaling, section 2)
Fujimoto & Gu 2021          A minimalist approach to offline reinforcement learning (statistics of a dataset)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.network import OBSERVATION_CLIP, NetworkInputs
from asyncrl.envs.observations import unusual_size
from asyncrl.errors import ObservationsOfUnusualSize, warn
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, UNTRAINED, EnvSpec, Segment
from asyncrl.saved_state import Stateful

REWARD_CLIP = 10.0
"""Bound on the absolute value of scaled rewards."""
SMALLEST_SHARE = 2.0 / REWARD_CLIP
"""Least divisor of rewards, as a share of their mean size."""


def warn_of_sizes(inputs: NDArray[Any]) -> None:
    """Warn (ASYNC049) if the inputs `[R, inputs]` of a network are of an unusual size."""
    if inputs.size and (found := unusual_size(np.square(inputs.astype(np.float64)).mean(axis=0))):
        warn(
            ObservationsOfUnusualSize(
                f"[ASYNC049] the first observations are {found}, and little is learned from values far from 1; set "
                "normalize_observations, or scale them in a wrapper"
            )
        )


class RunningMoments(Stateful):
    """Running mean and variance per component, in float64. Implements `Shareable`.

    Attributes:
        count: number of rows added.
        mean: `[N]`.
        square: `[N]`, sum of the squared deviations from the mean.
    """

    STATE: tuple[str, ...] = ("count", "mean", "square")

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self.square = np.zeros(size)
        self._unsent: RunningMoments | None = None

    def add(self, rows: NDArray[Any]) -> None:
        """Add `rows` `[R, N]`; R may be 0."""
        if rows.shape[0]:
            values = rows.astype(np.float64)
            mean = values.mean(axis=0)
            square = ((values - mean) ** 2).sum(axis=0)
            self._merge(rows.shape[0], mean, square)
            if self._unsent is not None:
                self._unsent._merge(rows.shape[0], mean, square)

    @property
    def size(self) -> int:
        """See `Shareable`."""
        return 1 + 2 * self.mean.size

    def take_message(self) -> NDArray[np.float64]:
        """See `Shareable`: count, mean and square of the rows added since the last call."""
        unsent, self._unsent = self._unsent, RunningMoments(self.mean.size)
        if unsent is None:
            return np.zeros(self.size)
        return np.concatenate(([unsent.count], unsent.mean, unsent.square))

    def merge(self, message: NDArray[np.float64]) -> None:
        """See `Shareable`."""
        if message[0] > 0:
            mean, square = np.split(message[1:], 2)
            self._merge(int(message[0]), mean, square)

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Shareable`."""
        both = RunningMoments(self.mean.size)
        both.merge(first)
        both.merge(second)
        return np.concatenate(([both.count], both.mean, both.square))

    def absorb(self, other: RunningMoments) -> None:
        """Merge `other` into these moments and empty it."""
        if other.count:
            self._merge(other.count, other.mean, other.square)
            other.count, other.mean, other.square = 0, np.zeros_like(self.mean), np.zeros_like(self.mean)

    def _merge(self, count: int, mean: NDArray[np.float64], square: NDArray[np.float64]) -> None:
        """Pairwise update of Chan et al. (equations 2.1)."""
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.square = self.square + square + delta**2 * (self.count * count / total)
        self.count = total

    @property
    def variance(self) -> NDArray[np.float64]:
        """Population variance `[N]`; ones before the first row."""
        return self.square / self.count if self.count else np.ones_like(self.square)


class NormalisingMoments(RunningMoments):
    """Moments with which values are normalised.

    Attributes:
        normalisation: float32 mean and 1 / standard deviation, `[N]` each; initially 0 and 1. Never reallocated.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.normalisation = np.zeros(size, np.float32), np.ones(size, np.float32)

    def normalised(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """`rows` `[R, N]` normalised and clipped to +- `OBSERVATION_CLIP`, a new array."""
        mean, scale = self.normalisation
        found: NDArray[np.float32] = (rows - mean) * scale
        return np.clip(found, -OBSERVATION_CLIP, OBSERVATION_CLIP, out=found)

    def _merge(self, count: int, mean: NDArray[np.float64], square: NDArray[np.float64]) -> None:
        super()._merge(count, mean, square)
        self._set()

    def _set(self) -> None:
        mean, scale = self.normalisation
        mean[:] = self.mean
        scale[:] = 1.0 / np.sqrt(self.variance + 1e-8)

    def _restored(self) -> None:
        self._set()


class PublishedMoments(NormalisingMoments):
    """Moments of observations, published with the weights, because actors normalise their observations too.

    Args:
        layout: layout of the acting network; locates the statistics in the published block.
    """

    def __init__(self, layout: NetworkLayout) -> None:
        super().__init__(layout.inputs)
        self._layout = layout

    def begin_with(self, weights: NDArray[np.float32], count: int) -> None:
        """Restore what `write` wrote, as the statistics of `count` observations."""
        mean, scale = (
            weights[at].astype(np.float64) for at in (self._layout.obs_mean, self._layout.obs_scale)
        )
        self.count, self.mean = max(count, 1), mean
        self.square = (1.0 / scale**2 - 1e-8) * self.count
        self._set()

    def write(self, out: NDArray[np.float32]) -> None:
        """Copy the statistics into the published block `out` `[weight_count]`."""
        out[self._layout.obs_mean], out[self._layout.obs_scale] = self.normalisation


class ObservationStatistics(PublishedMoments):
    """Statistics of the observations sampled from replay.

    The first `EVERY_BATCH` batches are all added, later ones at every `INTERVAL`-th: by then the statistics hardly
    change, and moments of wide observations are costly.
    """

    STATE = (*PublishedMoments.STATE, "_batches")
    EVERY_BATCH, INTERVAL = 256, 16
    _batches = 0

    def observe(self, rows: NDArray[Any]) -> None:
        """Add the observations `[B, inputs]` of a batch."""
        self._batches += 1
        if self._batches <= self.EVERY_BATCH or self._batches % self.INTERVAL == 0:
            self.add(rows)

    def begin_with(self, weights: NDArray[np.float32], count: int) -> None:
        """See `PublishedMoments.begin_with`."""
        super().begin_with(weights, count)
        self._batches = 1


class DatasetStatistics(ObservationStatistics):
    """Statistics of the observations of a dataset, computed once (Fujimoto & Gu 2021, section 5, eq. 4).

    The paper divides by the standard deviation plus `EPSILON`.
    """

    EPSILON, CHUNK = 1e-3, 65_536

    def __init__(self, layout: NetworkLayout) -> None:
        super().__init__(layout)
        self._set()

    def take(self, obs: NDArray[Any], spec: EnvSpec) -> None:
        """Add all observations of the dataset, unless the statistics are those of a policy that the run began with.

        Args:
            obs: `[R, *obs_shape]`, single observations in storage dtype.
            spec: the environment as the policy sees it, whose stacks have the same statistics for each frame.
        """
        if self.count:
            return
        frames, single = spec.frame_stack, spec
        if frames > 1:
            single = replace(spec, observation_shape=spec.observation_shape[1:], frame_stack=1)
        to_inputs, moments = NetworkInputs(single), RunningMoments(single.observation_values)
        for first in range(0, len(obs), self.CHUNK):
            chunk = obs[first : first + self.CHUNK]
            moments.add(to_inputs.rows(chunk, np.empty((len(chunk), moments.mean.size), np.float32)))
        self.count = moments.count
        self.mean, self.square = np.tile(moments.mean, frames), np.tile(moments.square, frames)
        self._set()

    def observe(self, rows: NDArray[Any]) -> None:
        """Do nothing: a batch adds nothing to the statistics of the whole."""

    def begin_with(self, weights: NDArray[np.float32], count: int) -> None:
        """See `PublishedMoments.begin_with`."""
        mean, scale = (
            weights[at].astype(np.float64) for at in (self._layout.obs_mean, self._layout.obs_scale)
        )
        self.count, self.mean = max(count, 1), mean
        self.square = np.maximum(1.0 / scale - self.EPSILON, 0.0) ** 2 * self.count
        self._set()

    def _set(self) -> None:
        mean, scale = self.normalisation
        mean[:] = self.mean
        scale[:] = 1.0 / (np.sqrt(self.variance) + self.EPSILON)


class RewardScale(Stateful):
    """Scaling of rewards by the running standard deviation of the discounted returns.

    The return of a stream is R_t = r_t + gamma R_{t-1}, starting from zero in each episode. The divisor is the
    standard deviation of all R_t seen so far over all streams, so that values are of the order of one in any units of
    the environment. The mean is not subtracted, because that would change the optimal policy. A stream continues from
    one segment of its ring to the next. A reward at the end of T steps is in one of T of these returns only, so that
    values become about sqrt(T) times as large as by the returns to come; these were tried and learn less in DoorKey and
    no more elsewhere (docs/defaults-study.md).

    Once a reward was negative the divisor is at least the mean size of the rewards that are not 0. So rare rewards are
    enlarged, and rare penalties are not: with enlarged penalties PPO more often learned to stand still in
    MiniGrid-Dynamic-Obstacles (docs/defaults-study.md).

    Returns of episodes of one step may all be nearly alike, with a deviation far below the rewards. The divisor is at
    least `SMALLEST_SHARE` of the mean size of all rewards, so that rewards up to twice that size are not clipped, which
    would make them equal. With a `gamma` near 1 and episodes of two steps or more the deviation is larger.

    Args:
        gamma: discount per step.

    Attributes:
        moments: moments of the returns.
        sizes: moments of a reward's size, of whether it is not 0, and of whether it is negative.
    """

    STATE = ("moments", "sizes", "_returns")

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self.moments, self.sizes = RunningMoments(1), RunningMoments(3)
        self._returns: dict[int, NDArray[np.float64]] = {}

    @property
    def divisor(self) -> float:
        """Present divisor of the rewards."""
        deviation = float(np.sqrt(self.moments.variance[0] + 1e-8))
        size, present, negative = self.sizes.mean
        least = float(size / present) if negative > 0 else SMALLEST_SHARE * float(size)
        return max(deviation, least)

    def begin_with(self, divisor: float, count: int) -> None:
        """Continue from a `divisor` as that of `count` returns."""
        self.moments.count = max(count, 1)
        self.moments.square = np.array([max(divisor**2 - 1e-8, 0.0) * self.moments.count])

    def observe(self, segments: Sequence[Segment]) -> None:
        """Add the rewards of the fresh ones among `segments`, all of one shape, in this order."""
        # Segments of one ring follow one another in time, so each is processed in a round of its own.
        rounds: list[list[Segment]] = []
        for segment in (s for s in segments if s.fresh):
            free = (r for r in rounds if all(other.ring != segment.ring for other in r))
            found = next(free, None)
            if found is None:
                rounds.append([segment])
            else:
                found.append(segment)
        for side_by_side in rounds:
            self._observe(side_by_side)

    def _observe(self, segments: Sequence[Segment]) -> None:
        reward = np.concatenate([s.reward for s in segments]).astype(np.float64)
        flags = np.concatenate([s.flags for s in segments])
        zeros = np.zeros(segments[0].num_envs)
        total = np.concatenate([self._returns.get(s.ring, zeros) for s in segments])
        counts = (flags & UNTRAINED) == 0
        goes_on = (flags & (TERMINATED | TRUNCATED | RESET)) == 0
        returns = np.empty_like(reward)
        for t in range(reward.shape[1]):
            total = total * self._gamma + reward[:, t]
            returns[:, t] = total
            total = total * goes_on[:, t]
        self.moments.add(returns[counts][:, None])
        given = reward[counts]
        self.sizes.add(np.stack([np.abs(given), given != 0, given < 0], axis=1))
        self._returns.update(zip((s.ring for s in segments), np.split(total, len(segments)), strict=True))

    def scaled(self, reward: NDArray[np.float32]) -> NDArray[np.float32]:
        """`reward` divided by the present divisor and clipped to +- `REWARD_CLIP`; a new float32 array."""
        result: NDArray[np.float32] = reward * np.float32(1.0 / self.divisor)
        return np.clip(result, -REWARD_CLIP, REWARD_CLIP, out=result)
