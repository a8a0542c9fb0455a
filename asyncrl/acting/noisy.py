"""A perceptron with noise in its weights, for exploration (Fortunato et al. 2018). NumPy and numba, never torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.kernels import noisy_mlp_forward
from asyncrl.acting.layouts import parameter_count
from asyncrl.acting.network import ActingLayout, ActingNetwork
from asyncrl.interfaces import EnvSpec


class NoisyActingNetwork(ActingNetwork):
    """An `ActingNetwork` with means and standard deviations of its weights; a call uses the means only.

    Args:
        spec: the environment; uint8 observations are scaled to 0..1.
        layout: its flat block begins with the means of all layers, then the standard deviations of all but the first.
        statistics: see `ActingNetwork`.
    """

    def __init__(
        self, spec: EnvSpec, layout: ActingLayout, statistics: tuple[slice, slice] | None = None
    ) -> None:
        self._noise_count = sum(a + b for a, b in itertools.pairwise(layout.sizes[1:]))
        self._mean_count = parameter_count(layout.sizes)
        super().__init__(spec, layout, statistics=statistics)

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        self._noise = np.empty((rows, self._noise_count), np.float32)
        self._row_scratch = np.empty((4, self._widest), np.float32)

    def perturbed(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        """Values of the head `[E, sizes[-1]]` with fresh noise for every row of `obs` `[E, *obs_shape]`.

        The noise is independent per stream, so streams explore differently, and per step, as in Rainbow (Hessel et al.
        2018). It is factorised: inputs + outputs draws per layer, most of the extra cost in a small network.
        """
        self._observe(obs)
        rng.standard_normal(dtype=np.float32, out=self._noise)
        out = np.empty((obs.shape[0], self._outputs), np.float32)
        noisy_mlp_forward(
            self._x, self.weights, self._sizes, self._mean_count, self._noise, self._row_scratch, out
        )
        return out

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_noise": self._noise[:0]}
