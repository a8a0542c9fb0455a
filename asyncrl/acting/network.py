"""The perceptron of a policy in an actor, and the scaling of its outputs to a box. NumPy and numba, never torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.kernels import mlp_forward, noisy_mlp_forward
from asyncrl.acting.layouts import NetworkLayout, parameter_count
from asyncrl.envs.observations import unpacker
from asyncrl.interfaces import BoxAction, EnvSpec

OBSERVATION_CLIP = 10.0
"""Clip range of normalised observations, in standard deviations (10, as in Stable-Baselines3)."""


class NetworkInputs:
    """Conversion of observations to inputs of a network, for actors and learners.

    Attributes:
        bytes: whether observations are plain bytes, which a caller may keep as bytes.
        byte_factor: factor from these bytes to inputs; see `EnvSpec.byte_factor`.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._unpack = unpacker(spec)
        self.bytes = spec.observation_dtype == "uint8" and self._unpack is None
        self.byte_factor = spec.byte_factor

    def rows(self, obs: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """R observations `[..., *obs_shape]` as rows `[R, inputs]`: a view, or `out` with unpacked rows of bytes."""
        if self._unpack is None:
            return obs.reshape(out.shape)
        self._unpack(obs, out)
        return out

    def fill(
        self,
        rows: NDArray[Any],
        out: NDArray[Any],
        normalisation: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    ) -> None:
        """Write the result of `rows` into `out` `[R, inputs]`, float32, or uint8 for bytes that stay bytes.

        With a `normalisation`, mean and 1 / standard deviation `[inputs]`, rows are normalised and clipped.
        """
        if normalisation is not None:
            np.subtract(rows, normalisation[0], out=out, casting="same_kind")
            out *= normalisation[1]
            np.minimum(np.maximum(out, -OBSERVATION_CLIP, out=out), OBSERVATION_CLIP, out=out)
        elif self.bytes and out.dtype != np.uint8:
            np.multiply(rows, np.float32(self.byte_factor), out=out)
        elif rows is not out:
            np.copyto(out, rows, casting="same_kind")


class ActingNetwork:
    """The perceptron of one policy copy: its block of weights and its buffers.

    It is used from one thread. A pickle contains the weights; buffers are allocated again after unpickling.

    Args:
        spec: the environment; bytes of images are scaled to 0..1.
        layout: sizes and length of the block, and place of the statistics of observations in it.
        relu: ReLU between the layers, else tanh.

    Attributes:
        weights: `[layout.weight_count]` float32, zero at first; values written into it are used from the next call on.
        answer: with `inference="server"` a function that returns the head's values received from the inference server,
            in place of the computation here; else None. It is not pickled.

    Raises:
        ValueError: `layout` was made for other observations.
    """

    answer: Callable[[], NDArray[np.float32]] | None = None

    def __init__(self, spec: EnvSpec, layout: NetworkLayout, relu: bool = True) -> None:
        inputs = spec.observation_values
        if layout.inputs != inputs:
            raise ValueError(
                f"layout.inputs must be {inputs}, the values of one observation, got {layout.inputs}"
            )
        self.weights = np.zeros(layout.weight_count, np.float32)
        self._inputs, self._outputs, self._widest = inputs, layout.sizes[-1], max(layout.sizes)
        self._sizes = np.array(layout.sizes, np.int64)
        self._relu, self._layer_norm, self._statistics = relu, layout.layer_norm, layout.statistics
        self._to_inputs = NetworkInputs(spec)
        self._plain = layout.statistics is None and spec.observation_dtype != "uint8"
        self._reserve = np.empty((0, inputs), np.float32)
        self._allocate(0)

    def _allocate(self, rows: int) -> None:
        if rows > len(self._reserve):
            self._reserve = np.empty((rows, self._inputs), np.float32)
        self._x = self._reserve[:rows]
        self._scratch = np.empty((2, rows, self._widest), np.float32)

    @property
    def outputs(self) -> int:
        """Values of the head."""
        return self._outputs

    def load(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` `[weight_count]` into the block.

        Raises:
            ValueError: if the length is wrong.
        """
        if weights.shape != self.weights.shape:
            raise ValueError(f"weights must have shape {self.weights.shape}, got {weights.shape}")
        np.copyto(self.weights, weights)

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Values `[E, sizes[-1]]` of the head for `obs` `[E, *obs_shape]`, which may be strided; a fresh array."""
        if self.answer is not None:
            return self.answer()
        self._observe(obs)
        return self._forward()

    def inputs_of(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Inputs `[E, inputs]` of the network for `obs` `[E, *obs_shape]`; valid until the next call."""
        self._observe(obs)
        return self._x

    def of_all(self, observations: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Values of the head for several arrays of observations, concatenated, in one forward pass; a fresh array."""
        rows = [len(obs) for obs in observations]
        if self._x.shape[0] != sum(rows):
            self._allocate(sum(rows))
        end = 0
        for obs, count in zip(observations, rows, strict=True):
            self._fill(self._x[end : end + count], obs)
            end += count
        return self._forward()

    def weights_changed(self) -> None:
        """Callback after `weights` was written."""

    def leave_torch(self) -> None:
        """Act without torch from now on, if this network can; this class never uses torch."""

    def perturbed(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        """Values of the head with noise in the weights; this class has no noise."""
        return self(obs)

    def _observe(self, obs: NDArray[Any]) -> None:
        """Fill the input buffer with `obs`."""
        rows = obs.shape[0]
        if self._x.shape[0] != rows:
            self._allocate(rows)
        self._fill(self._x, obs)

    def _fill(self, x: NDArray[np.float32], obs: NDArray[Any]) -> None:
        """Fill rows `x` `[R, inputs]` of the input buffer: bytes scaled, values normalised if there are statistics."""
        if self._plain:
            x[...] = obs.reshape(x.shape)  # half the time of np.copyto
            return
        normalisation = None
        if self._statistics is not None:
            normalisation = self.weights[self._statistics[0]], self.weights[self._statistics[1]]
        self._to_inputs.fill(self._to_inputs.rows(obs, x), x, normalisation)

    def _forward(self) -> NDArray[np.float32]:
        """Values of the head for the input buffer; a fresh array."""
        out = np.empty((self._x.shape[0], self._outputs), np.float32)
        mlp_forward(self._x, self.weights, self._sizes, self._relu, self._layer_norm, self._scratch, out)
        return out

    def __getstate__(self) -> dict[str, Any]:
        empty = {"_x": self._x[:0], "_reserve": self._reserve[:0], "_scratch": self._scratch[:, :0]}
        return self.__dict__ | empty | {"answer": None}


class NoisyActingNetwork(ActingNetwork):
    """An `ActingNetwork` with noise in its weights (Fortunato et al. 2018); a plain call uses their means only.

    Args:
        spec: the environment; bytes of images are scaled to 0..1.
        layout: its flat block begins with the means of all layers, then the standard deviations of all but the first.
    """

    def __init__(self, spec: EnvSpec, layout: NetworkLayout) -> None:
        self._noise_count = sum(a + b for a, b in itertools.pairwise(layout.sizes[1:]))
        self._mean_count = parameter_count(layout.sizes)
        super().__init__(spec, layout)

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


def has_finite_bounds(action: BoxAction) -> bool:
    """Whether all bounds of the box are finite in float32."""
    largest = float(np.finfo(np.float32).max)
    return all(abs(bound) <= largest for bound in (*action.low, *action.high))


class ActionBox:
    """Scaling of network outputs to actions in a box, float32, never outside of the float32 bounds.

    Args:
        action: the box; see `has_finite_bounds`.
    """

    def __init__(self, action: BoxAction) -> None:
        self._low, self._high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._shape = action.shape

    def at(self, share: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions `[E, *act_shape]` at fraction `share` `[E, d]` between low (0) and high (1); a fresh array.

        Fractions 0 and 1 give the exact bounds, others are clipped to them. `high - low` may overflow float32.
        """
        action: NDArray[np.float32] = self._low * (1 - share) + self._high * share
        np.minimum(np.maximum(action, self._low, out=action), self._high, out=action)
        return action.reshape(share.shape[0], *self._shape)

    def scale(self, unit: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions `[E, *act_shape]`, `low + (unit + 1) / 2 * (high - low)`, for `unit` `[E, d]`, clipped to the box."""
        return self.at((unit + np.float32(1)) * np.float32(0.5))

    def squash(self, latent: NDArray[np.float32]) -> NDArray[np.float32]:
        """Actions `[E, *act_shape]`: tanh of `latent` `[E, d]`, scaled to the box."""
        return self.scale(np.tanh(latent))
