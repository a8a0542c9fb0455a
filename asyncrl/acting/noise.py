"""Noise on the actions of a deterministic policy: its scale on each stream, and its process. NumPy only.

Scales are standard deviations in units of half the action range, so they mean the same in every box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.schedules import places


class NoiseProcess:
    """Noise of the streams of one policy copy: a first-order autoregressive process with standard deviations `scales`.

    `x_0 = s N_0` and `x_t = keep x_(t-1) + s sqrt(1 - keep^2) N_t`, so x has standard deviation s from the first draw
    on, and draws k steps apart have correlation `keep^k`. It is not reset at the end of an episode, because a policy
    receives no episode ends. A pickle contains its state.

    Args:
        scales: `[count]` float32, s of each stream.
        size: d, number of values of one draw.
        keep: 0 for independent draws; below 1.
    """

    def __init__(self, scales: NDArray[np.float32], size: int, keep: float = 0.0) -> None:
        self.mean_scale = float(scales.mean())
        self._scales = scales[:, None]
        self._shape = (len(scales), size)
        self._keep, self._drive = np.float32(keep), np.float32(math.sqrt(1.0 - keep * keep))
        self._state: NDArray[np.float32] | None = None

    @property
    def count(self) -> int:
        """Number of streams."""
        return self._shape[0]

    def take_options(self, other: NoiseProcess) -> None:
        """Go on with scales and correlation of `other`, a process of as many streams."""
        self.mean_scale, self._scales = other.mean_scale, other._scales
        self._keep, self._drive = other._keep, other._drive

    def draw(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """The next noise `[count, size]`; a fresh array."""
        normal = rng.standard_normal(self._shape, np.float32)
        if self._keep:
            if self._state is not None:
                normal *= self._drive
                normal += self._keep * self._state
            self._state = normal
        return normal * self._scales


@dataclass(frozen=True)
class GaussianNoise:
    """Independent draws from a normal distribution, as in TD3 (Fujimoto et al. 2018, section 6.1: scale 0.1).

    Attributes:
        scale: standard deviation on the first stream, in units of half the action range, at least 0.
        scale_last: standard deviation on the last stream of all actors; those in between are geometrically spaced.
            None for `scale` on all.
    """

    scale: float
    scale_last: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.scale < math.inf:
            raise ValueError(f"scale must be finite and at least 0, got {self.scale}")
        if self.scale_last is None:
            return
        if not 0.0 < self.scale_last < math.inf:
            raise ValueError(f"scale_last must be finite and above 0, or None, got {self.scale_last}")
        if self.scale == 0.0:
            raise ValueError(
                "scale must be above 0 where scale_last is given, for a ladder in logarithm, got 0"
            )

    def scales(self, first: int, count: int, total: int) -> NDArray[np.float32]:
        """Scales `[count]` of these streams, `scale` for a single one. Raises ValueError as `places` does."""
        place = places(first, count, total)
        if self.scale_last is None:
            return np.full(count, self.scale, np.float32)
        return (self.scale ** (1.0 - place) * self.scale_last**place).astype(np.float32)

    def process(self, first: int, count: int, total: int, size: int) -> NoiseProcess:
        """A process of its own for these streams, `size` values per draw. Raises ValueError as `places` does."""
        return NoiseProcess(self.scales(first, count, total), size)


@dataclass(frozen=True)
class OrnsteinUhlenbeckNoise(GaussianNoise):
    """Correlated draws, as in DDPG (Lillicrap et al. 2016, section 7): each keeps `1 - theta` of the last.

    `scale` is the stationary standard deviation, not the paper's sigma of the driving noise: sigma =
    `scale sqrt(2 theta - theta^2)`. The paper's sigma 0.2 at theta 0.15 is a scale of 0.38. So noise of both kinds is
    equally strong at one scale. The process begins at its stationary distribution, the paper's begins at zero.

    Attributes:
        theta: share of the noise that decays per step, above 0, at most 1 (independent draws).
    """

    theta: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.theta <= 1.0:
            raise ValueError(f"theta must be above 0 and at most 1, got {self.theta}")

    def process(self, first: int, count: int, total: int, size: int) -> NoiseProcess:
        """A process of its own for these streams, `size` values per draw. Raises ValueError as `places` does."""
        return NoiseProcess(self.scales(first, count, total), size, 1.0 - self.theta)
