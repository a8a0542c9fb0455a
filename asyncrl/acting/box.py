"""Policies of DDPG, TD3, TD7 and SAC for Box actions, in NumPy and numba, without torch.

`BoxLayout` is the order of the weights in the flat block that the weight mailbox transports; the learner's actor uses
the same layout. Policies and learners represent an action as its offset from the middle of the box in units of half
the action range (`scaling`), from -1 to 1. Everything else, rings included, uses the environment's units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.log_prob import squashed_gaussian
from asyncrl.acting.modules import NetworkFactory, make_acting_network, network_size
from asyncrl.acting.network import ActionBox, has_finite_bounds
from asyncrl.acting.network_policy import NetworkPolicy
from asyncrl.acting.noise import GaussianNoise, NoiseProcess
from asyncrl.interfaces import BoxAction, EnvSpec

LOG_STD_MIN = -20.0
"""Lower clip bound of a Gaussian's log standard deviations (as in the code of Haarnoja et al. 2018)."""
LOG_STD_MAX = 2.0
"""Upper clip bound of the same."""


@dataclass(frozen=True)
class BoxLayout(NetworkLayout):
    """Shape of an actor for a box of finite bounds, and the order of its weights in a flat float32 block.

    The layers are separated by ReLU; the order is that of `layouts`. Tanh of the head's d outputs is the action. With
    `gaussian` the head has 2d outputs: d means, then d log standard deviations, of the draw before tanh.

    Attributes:
        inputs, network, normalized: see `NetworkLayout`.
        hidden: widths of the hidden layers.
        action: the action space.
        gaussian: actions are drawn from a Gaussian (SAC), else a function of the observation (DDPG, TD3).

    Raises:
        ValueError: a bound is not finite in float32.
    """

    inputs: int
    hidden: tuple[int, ...]
    action: BoxAction
    gaussian: bool = False
    network: NetworkFactory | None = None
    normalized: bool = False

    def __post_init__(self) -> None:
        if not has_finite_bounds(self.action):
            raise ValueError(
                f"action must have finite bounds, got low {self.action.low} and high {self.action.high}; wrap the"
                " environment in gymnasium.wrappers.TransformAction with an action space that has them"
            )

    @property
    def action_values(self) -> int:
        """d, number of values of one action."""
        return math.prod(self.action.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from the input to the head."""
        return (self.inputs, *self.hidden, self.action_values * (2 if self.gaussian else 1))

    @cached_property
    def network_count(self) -> int:  # type: ignore[override]
        """Number of values of the network, the first part of the block."""
        return network_size(self.sizes, self.network)


def scaling(action: BoxAction) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the middle and half of the range of every action value, `[d]` float32 each, in environment units.

    The policies here represent an action a of the environment as `(a - centre) / half_range`.
    """
    low, high = (np.array(bounds, np.float32).astype(np.float64) for bounds in (action.low, action.high))
    return ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


class BoxPolicy(NetworkPolicy):
    """Base class of both policies: the network, the box, and uniformly random actions at the start of a run.

    A copy is used from one thread. A pickle contains the weights; buffers are allocated again after unpickling.

    Args:
        spec: the environment.
        layout: shape of the network, made for this environment.
        random_steps: environment steps over all actors before which actions are uniform in the box, at least 0.

    Raises:
        ValueError: `layout` was made for other observations, other actions or the other policy.
    """

    _gaussian: bool
    _process: NoiseProcess
    _streams: int | None = None  # any number

    def __init__(self, spec: EnvSpec, layout: BoxLayout, random_steps: int = 0) -> None:
        if layout.gaussian != self._gaussian:
            raise ValueError(
                f"layout.gaussian must be {self._gaussian} for {type(self).__name__}, got {layout.gaussian}"
            )
        if layout.action != spec.action:
            raise ValueError(
                f"layout.action must be the environment's, {spec.action!r}, got {layout.action!r}"
            )
        if random_steps < 0:
            raise ValueError(f"random_steps must be at least 0, got {random_steps}")
        self._network = make_acting_network(spec, layout)
        self._box = ActionBox(layout.action)
        self._values = layout.action_values
        self._exploration = 1.0
        self.layout, self.random_steps, self.weight_count = layout, random_steps, layout.weight_count
        self.frame_stack = spec.frame_stack

    @property
    def exploration_rate(self) -> float:
        """Mean standard deviation at the last `act`, in units of half the action range; 1 while actions are uniform.

        It is that of the noise, or of the Gaussian before tanh.
        """
        return self._exploration

    def take_exploration(self, other: Any) -> None:
        """See `NetworkPolicy`."""
        self.random_steps = other.random_steps
        self._process.take_options(other._process)

    def greedy(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Actions without noise, or at the Gaussian's mean, `[E, *act_shape]` float32; a fresh array."""
        return self._box.squash(self._network(obs)[:, : self._values])

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[np.float32], Mapping[str, NDArray[Any]]]:
        """Actions `[E, *act_shape]` float32 in the box, a fresh array, and no extra fields; see `Policy.act`.

        Raises:
            ValueError: if a deterministic policy's number of rows is not the number of assigned streams.
        """
        if self._streams not in (None, obs.shape[0]):
            raise ValueError(
                f"obs must have {self._streams} rows, one per assigned stream, got {obs.shape[0]}"
            )
        if total_steps >= self.random_steps:
            return self._explore(obs, rng), {}
        self._exploration = 1.0
        return self._box.at(rng.random((obs.shape[0], self._values), np.float32)), {}

    def _explore(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        raise NotImplementedError


class DeterministicPolicy(BoxPolicy):
    """The actor of DDPG, TD3 and TD7: tanh of the network plus noise, clipped to the box. Implements `Policy`.

    Args:
        spec, layout, random_steps: see `BoxPolicy`; the layout is not `gaussian`.
        noise: noise of the streams, in units of half the action range.
    """

    _gaussian = False

    def __init__(self, spec: EnvSpec, layout: BoxLayout, noise: GaussianNoise, random_steps: int = 0) -> None:
        super().__init__(spec, layout, random_steps)
        self.noise = noise
        self.assign_streams(0, 1, 1)

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Act for these streams, with a new noise process. Raises ValueError if they are not streams of `total`."""
        self._process, self._streams = self.noise.process(first, count, total, self._values), count
        self._exploration = 1.0 if self.random_steps > 0 else self._process.mean_scale

    def _explore(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        self._exploration = self._process.mean_scale
        out = self._network(obs)
        np.tanh(out, out=out)
        out += self._process.draw(rng)
        return self._box.scale(out)


class SquashedGaussianPolicy(BoxPolicy):
    """The actor of SAC: tanh of a Gaussian draw, whose mean and standard deviation are the network's outputs.

    Implements `Policy`. See Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", appendix C. With
    `correlation` the standard normal values behind the draws are correlated over the steps of a stream (Eberhard et al.
    2023, "Pink Noise Is All You Need", section 3): each single action is still a draw from the policy.

    Args:
        spec, layout, random_steps: see `BoxPolicy`; the layout is `gaussian`.
        correlation: of the normal values of successive steps, at least 0 and below 1.
    """

    _gaussian = True

    def __init__(
        self, spec: EnvSpec, layout: BoxLayout, random_steps: int = 0, correlation: float = 0.0
    ) -> None:
        super().__init__(spec, layout, random_steps)
        if not 0.0 <= correlation < 1.0:
            raise ValueError(f"correlation must be at least 0 and below 1, got {correlation}")
        self.correlation = correlation
        self.assign_streams(0, 1, 1)

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Act for `count` streams, with new noise. All streams act alike, and any number of rows is accepted."""
        self._process = NoiseProcess(np.ones(count, np.float32), self._values, self.correlation)

    def _explore(self, obs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float32]:
        out = self._network(obs)
        mean, std = out[:, : self._values], out[:, self._values :]
        np.minimum(np.maximum(std, LOG_STD_MIN, out=std), LOG_STD_MAX, out=std)
        np.exp(std, out=std)
        self._exploration = float(std.mean())
        if len(mean) != self._process.count:
            self.assign_streams(0, len(mean), len(mean))
        draw = self._process.draw(rng)
        draw *= std
        draw += mean
        return self._box.squash(draw)

    def log_prob(self, obs: NDArray[Any], action: NDArray[Any]) -> NDArray[np.float32]:
        """Log density `[E]` of `action` `[E, *act_shape]` scaled to -1..1; see `log_prob.squashed_gaussian`."""
        out = self._network(obs)
        mean, log_std = out[:, : self._values], out[:, self._values :].clip(LOG_STD_MIN, LOG_STD_MAX)
        return squashed_gaussian(mean, action.reshape(mean.shape), log_std, self.layout.action)
