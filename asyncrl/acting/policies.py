"""Policies of value-based algorithms, in NumPy and numba.

`QLayout` is the shape of the network and the order of its weights in the flat block that the weight mailbox
transports; the learner's network has the same order, so publishing weights is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import AgentPolicies
from asyncrl.acting.kernels import epsilon_greedy
from asyncrl.acting.layouts import NetworkLayout, parameter_count
from asyncrl.acting.modules import NetworkFactory, RecurrentFactory, make_acting_network, network_size
from asyncrl.acting.network import NoisyActingNetwork
from asyncrl.acting.network_policy import NetworkPolicy
from asyncrl.acting.recurrent import Cell
from asyncrl.acting.rescaling import return_of
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.envs.observations import mask_reader
from asyncrl.interfaces import BoxAction, EnvSpec


@dataclass(frozen=True)
class QLayout(NetworkLayout):
    """Shape of an action-value network and the order of its weights in a flat float32 block (see `layouts`).

    The layers are separated by ReLU. With `dueling` (Wang et al. 2016) the last hidden layer is twice as wide: its
    first half is the value stream, its second half the advantage stream. The head's outputs are
    `[value, advantages...]`; its cross blocks are zero. With N `atoms` (a distribution of the return) every output of
    the head becomes N, those of an action contiguous.

    With `noisy` (Fortunato et al. 2018) every layer but the first has a standard deviation for each of its parameters;
    they follow the parameters of all layers, in the same order. The first layer has no noise because its noise would
    distort the observation for all later layers; the papers likewise have none in their convolutions. In a network of
    one hidden layer only the head is noisy.

    Attributes:
        inputs, network, normalized: see `NetworkLayout`.
        hidden: widths of the hidden layers, at least one.
        num_actions: n, number of action values.
        dueling: two streams, else one.
        atoms: N, outputs for one action; 1 for its value.
        noisy: weights have standard deviations; those of a module are among its parameters.
        cell: recurrent cell before the head, or None. Both streams of a dueling head are linear in its outputs.
        layer_norm: the hidden layers of a plain perceptron are normalised before their ReLU (Ba et al. 2016).
    """

    inputs: int
    hidden: tuple[int, ...]
    num_actions: int
    dueling: bool = False
    atoms: int = 1
    noisy: bool = False
    network: NetworkFactory | None = None
    normalized: bool = False
    cell: Cell | None = None
    layer_norm: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from the input to the head."""
        if not self.dueling:
            return (self.inputs, *self.hidden, self.num_actions * self.atoms)
        if self.cell is not None:
            return (self.inputs, *self.hidden, (1 + self.num_actions) * self.atoms)
        return (self.inputs, *self.hidden[:-1], 2 * self.hidden[-1], (1 + self.num_actions) * self.atoms)

    @cached_property
    def network_count(self) -> int:  # type: ignore[override]
        """Number of values of the network and its standard deviations, the first part of the block."""
        noisy = parameter_count(self.sizes[1:]) if self.noisy and self.network is None else 0
        return network_size(self.sizes, self.network, self.cell, self.layer_norm) + noisy

    @property
    def module(self) -> NetworkFactory | None:
        """Factory of the learner's network if it is a module (recurrent, or of `network`); None for a perceptron."""
        if self.cell is None:
            return self.network
        return RecurrentFactory(self.cell, self.sizes, network=self.network)


def has_epsilon(policy: object) -> bool:
    """Whether `policy` takes random actions at an exploration rate epsilon above 0."""
    if isinstance(policy, AgentPolicies):
        return any(map(has_epsilon, policy.parts))
    if not isinstance(policy, QPolicy):
        return False
    epsilon = policy.epsilon
    return epsilon.function is not None or epsilon.initial > 0 or epsilon.final > 0


class QPolicy(NetworkPolicy):
    """Epsilon-greedy policy over the action values of a network. Implements `Policy`.

    A copy acts for the E streams of one actor and is used from one thread. A pickle contains the weights; buffers that
    depend on E are allocated again after unpickling.

    Args:
        spec: an environment with discrete actions.
        layout: shape of the network; `layout.inputs` is the number of values of one observation.
        epsilon: exploration rates. A noisy network also explores by its noise: `act` draws it for every stream and
            step, while `greedy` and `q_values` use the means of the weights.
        support: `[layout.atoms]`, the return of each atom; the network's outputs are the logits of their
            probabilities. None if the outputs are returns of equal probability (quantiles).
        rescaled: whether action values of the network are rescaled returns (R2D2).
    """

    def __init__(
        self,
        spec: EnvSpec,
        layout: QLayout,
        epsilon: EpsilonSchedule | None = None,
        support: NDArray[np.float32] | None = None,
        rescaled: bool = False,
    ) -> None:
        self._network = (
            NoisyActingNetwork(spec, layout)
            if layout.noisy and layout.network is None
            else make_acting_network(spec, layout, cell=layout.cell)
        )
        self.layout, self.frame_stack = layout, spec.frame_stack
        self.support, self.rescaled = support, rescaled
        self._mask = mask_reader(spec)
        self.epsilon = epsilon or EpsilonSchedule()
        self.weight_count = layout.weight_count
        self._base = self.epsilon.base(0)
        self.assign_streams(0, 1, 1)

    @property
    def exploration_rate(self) -> float:
        """Mean epsilon of this copy's streams at the last `act`."""
        return float(self._rates.mean())

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Act for streams `first .. first + count - 1` of `total`. Raises ValueError if these are not streams of it."""
        self._exponents = self.epsilon.exponents(first, count, total)
        self._rates = self._base**self._exponents
        self._held = np.zeros(count, np.int64)
        self._left = np.zeros(count, np.int64)
        if self.memory is not None:
            self.memory.forget(count)

    def take_exploration(self, other: QPolicy) -> None:
        """See `NetworkPolicy`."""
        self.epsilon, self._exponents = other.epsilon, other._exponents
        self._base, self._rates = other._base, other._rates

    def q_values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Action values `[E, num_actions]` of `obs` `[E, *obs_shape]`, mean returns; a fresh array."""
        values = self._values(self._network(obs))
        return return_of(values) if self.rescaled else values

    def values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Largest value `[E]` of an action that no mask forbids."""
        values: NDArray[np.float32] = self._allowed(self.q_values(obs), obs).max(axis=1)
        return values

    def _allowed(self, values: NDArray[np.float32], obs: NDArray[Any]) -> NDArray[np.float32]:
        """Set the values `[E, num_actions]` of forbidden actions to minus infinity, in place."""
        if self._mask is not None:
            values[~self._mask(obs)] = -np.inf
        return values

    def _values(self, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Action values `[E, num_actions]` from the head's values `[E, sizes[-1]]`."""
        layout = self.layout
        if layout.dueling:
            value, advantage = out[:, : layout.atoms], out[:, layout.atoms :]
            if layout.atoms > 1:
                advantage = advantage.reshape(-1, layout.num_actions, layout.atoms)
                value = value[:, None]
            out = value + advantage - advantage.mean(axis=1, keepdims=True)
        if layout.atoms == 1:
            return out
        atoms = out.reshape(-1, layout.num_actions, layout.atoms)
        if self.support is None:
            mean: NDArray[np.float32] = atoms.mean(axis=2)
            return mean
        with np.errstate(under="ignore"):  # an environment may have NumPy raise
            weights = np.exp(atoms - atoms.max(axis=2, keepdims=True))
        expected: NDArray[np.float32] = (weights @ self.support) / weights.sum(axis=2)
        return expected

    def greedy(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """The best action (the first of equals) `[E]` int64, counted from 0, of each observation `[E, *obs_shape]`."""
        return self._allowed(self._values(self._network(obs)), obs).argmax(axis=1)

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]:
        """Epsilon-greedy actions `[E]` int64, counted from 0, and a recurrent network's `state`; see `Policy.act`."""
        rows = obs.shape[0]
        if self._exponents.shape[0] != rows:
            raise ValueError(
                f"obs must have {self._exponents.shape[0]} rows, one per assigned stream, got {rows}"
            )
        base = self.epsilon.base(total_steps)
        if base != self._base:
            self._base, self._rates = base, base**self._exponents
        network = self._network
        extras = {} if self.memory is None else {"state": self.memory.state}
        out = network.perturbed(obs, rng) if self.layout.noisy else network(obs)
        values = self._values(out)
        if self._mask is not None:
            values[~self._mask(obs)] = -np.inf
        repeat = self.epsilon.repeat
        uniform, action = rng.random((2 if repeat == 1 else 3, rows)), np.empty(rows, np.int64)
        epsilon_greedy(values, uniform, self._rates, repeat, self._held, self._left, action)
        return action, extras


def float32_bounds(box: BoxAction) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the largest float32 bounds inside of the box: a bound rounded to float32 may lie outside of it."""
    low, high = np.array(box.low, np.float64), np.array(box.high, np.float64)
    low32, high32 = low.astype(np.float32), high.astype(np.float32)
    low32 = np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32)
    return low32.reshape(box.shape), high32.reshape(box.shape)
