"""Stochastic policies of the on-policy algorithms, in NumPy and numba, without torch.

`ActorLayout` is the order of the values in the flat block that the weight mailbox transports: the policy's network,
the log standard deviations of a Gaussian, and the statistics that normalise observations. The learner
(`algorithms/actor_critic.py`, `networks/distributions.py`) uses the same layout. `StochasticPolicy` draws actions and
adds the log probability of the draw to every row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.kernels import add_squashing, draw_choices, draw_gaussian
from asyncrl.acting.layouts import NetworkLayout
from asyncrl.acting.log_prob import categorical, gaussian, log_softmax, squashed_gaussian
from asyncrl.acting.modules import NetworkFactory, RecurrentFactory, make_acting_network, network_size
from asyncrl.acting.network import ActionBox, has_finite_bounds
from asyncrl.acting.network_policy import NetworkPolicy
from asyncrl.acting.recurrent import Cell
from asyncrl.envs.observations import FORBIDDEN, mask_reader
from asyncrl.interfaces import ActionSpec, BoxAction, DiscreteAction, EnvSpec, FieldSpec, MultiDiscreteAction


@dataclass(frozen=True)
class ActorLayout(NetworkLayout):
    """Shape of a policy network and the order of its values in a flat float32 block.

    The block is `[network][log_std][obs_mean][obs_scale]`; the order within the network is that of `layouts`.

    Attributes:
        inputs, network, normalized: see `NetworkLayout`.
        hidden: widths of the hidden layers.
        action: the action space, which determines the network's outputs.
        activation: activation between the layers.
        squashed: tanh of a Gaussian's draw is scaled to the box; requires finite bounds.
        cell: recurrent cell between the hidden layers (the encoder) and the head, or None.
    """

    inputs: int
    hidden: tuple[int, ...]
    action: ActionSpec
    activation: Literal["tanh", "relu"] = "tanh"
    squashed: bool = False
    normalized: bool = False
    network: NetworkFactory | None = None
    cell: Cell | None = None

    def __post_init__(self) -> None:
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation must be 'tanh' or 'relu', got {self.activation!r}")
        if not self.squashed:
            return
        if not isinstance(self.action, BoxAction):
            raise ValueError(f"squashed needs a Box action, got {type(self.action).__name__}")
        if not has_finite_bounds(self.action):
            raise ValueError(
                f"squashed needs finite bounds, got low {self.action.low} and high {self.action.high}"
            )

    @property
    def gaussian(self) -> bool:
        """Whether actions are drawn from a Gaussian (a Box), rather than discrete."""
        return isinstance(self.action, BoxAction)

    @property
    def action_values(self) -> int:
        """d, number of values of one action; 0 for discrete actions."""
        return math.prod(self.action.shape) if isinstance(self.action, BoxAction) else 0

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each component of an action; empty for a Gaussian."""
        if isinstance(self.action, DiscreteAction):
            return (self.action.n,)
        return self.action.nvec if isinstance(self.action, MultiDiscreteAction) else ()

    @property
    def outputs(self) -> int:
        """Number of values of the head: concatenated logits of all components, or the Gaussian's d means."""
        return self.action_values if self.gaussian else sum(self.choices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from the input to the head."""
        return (self.inputs, *self.hidden, self.outputs)

    @cached_property
    def network_count(self) -> int:  # type: ignore[override]
        """Number of values of the network, the first part of the block."""
        return network_size(self.sizes, self.network, self.cell)

    @property
    def recurrent_factory(self) -> RecurrentFactory:
        """Factory of the layout's recurrent network."""
        assert self.cell is not None
        return RecurrentFactory(self.cell, self.sizes, self.activation == "relu", self.network)

    @property
    def log_std(self) -> slice:
        """Slice of the d log standard deviations; empty unless Gaussian."""
        return slice(self.network_count, self.network_count + self.action_values)

    @property
    def statistics_start(self) -> int:
        """Start of the observation statistics in the block."""
        return int(self.log_std.stop)


def extra_fields_of(layout: ActorLayout) -> tuple[FieldSpec, ...]:
    """Extra fields of a row.

    They are `log_prob` (behaviour log probability), the draw `latent` `[d]` of a squashed Gaussian before tanh, and
    the `state` of a recurrent policy before the row's observation.
    """
    fields = [FieldSpec("log_prob", (), "float32")]
    if layout.squashed:
        fields.append(FieldSpec("latent", (layout.action_values,), "float32"))
    if layout.cell is not None:
        fields.append(layout.cell.field)
    return tuple(fields)


class StochasticPolicy(NetworkPolicy):
    """Policy that draws actions from a distribution whose parameters a network computes. Implements `Policy`.

    All streams act alike, so `act` accepts any number of rows, unless the policy is recurrent. A copy is used from one
    thread. A pickle contains the weights; other buffers are allocated again after unpickling.

    Discrete components are drawn independently from the softmax of their logits. A Gaussian's draw is not clipped to
    the box: `log_prob` is that of the draw, and the caller clips when it steps the environment.

    Args:
        spec: the environment.
        layout: shape of the network, made for this environment.

    Raises:
        ValueError: `layout` was made for other observations or actions.
    """

    def __init__(self, spec: EnvSpec, layout: ActorLayout) -> None:
        self._network = make_acting_network(spec, layout, layout.activation == "relu", layout.cell)
        if layout.action != spec.action:
            raise ValueError(
                f"layout.action must be the environment's, {spec.action!r}, got {layout.action!r}"
            )
        self.layout, self.frame_stack = layout, spec.frame_stack
        self.weight_count = layout.weight_count
        self._shape, self._mask = spec.action.shape, mask_reader(spec)
        self._choices = np.array(layout.choices, np.int64)
        self._exploration = 1.0 if layout.gaussian else 1.0 - float(np.mean(1.0 / self._choices))
        self._gaussian, self._log_std = layout.gaussian, layout.log_std
        self._std = np.empty(layout.action_values, np.float64)
        action = layout.action
        self._box = ActionBox(action) if layout.squashed and isinstance(action, BoxAction) else None

    @property
    def exploration_rate(self) -> float:
        """Mean probability of not taking the likeliest choice, at the last `act`; for a Gaussian the mean std."""
        return self._exploration

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """Begin episodes in `count` streams if the policy is recurrent; else do nothing, since streams act alike."""
        if self.memory is not None:
            self.memory.forget(count)

    @property
    def own_weights(self) -> slice:
        """Slice of the weights that `act` itself reads: the log standard deviations."""
        return self._log_std

    def weights_changed(self) -> None:
        """Update a Gaussian's exploration rate after `weights` was written."""
        if self._gaussian:
            self._exploration = float(np.exp(self._network.weights[self._log_std]).mean())

    def outputs(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Logits or means `[E, layout.outputs]` of `obs` `[E, *obs_shape]`; a fresh array."""
        out = self._network(obs)
        if self._mask is not None:
            out[~self._mask(obs)] = FORBIDDEN
        return out

    def greedy(self, obs: NDArray[Any]) -> NDArray[Any]:
        """The likeliest action `[E, *act_shape]` of each observation: the first of the best choices, or the mean.

        For a squashed Gaussian it is tanh of the mean, scaled to the box (the median, not the mode).
        """
        out, rows = self.outputs(obs), obs.shape[0]
        if self._box is not None:
            return self._box.squash(out)
        if self._gaussian:
            return out.reshape(rows, *self._shape)
        ends = np.cumsum(self._choices)
        parts = [out[:, end - n : end].argmax(axis=1) for n, end in zip(self._choices, ends, strict=True)]
        return np.stack(parts, axis=1).reshape(rows, *self._shape)

    def probabilities(self, obs: NDArray[Any]) -> list[NDArray[np.float32]]:
        """Probabilities `[E, n]` of the n choices of each discrete component; those that a mask forbids are 0."""
        assert not self._gaussian
        parts = log_softmax(self.outputs(obs), self.layout.choices)
        return [np.exp(part).astype(np.float32) for part in parts]

    def log_prob(self, obs: NDArray[Any], action: NDArray[Any]) -> NDArray[np.float32]:
        """Log probability `[E]` of `action` `[E, *act_shape]` in storage form, or its log density if it is real-valued.

        A squashed Gaussian's is that of the action scaled to -1..1.
        """
        out, layout = self.outputs(obs), self.layout
        rows = action.reshape(len(out), math.prod(action.shape[1:]))
        if not self._gaussian:
            return categorical(out, rows, layout.choices)
        log_std = self.weights[self._log_std]
        if layout.squashed:
            assert isinstance(layout.action, BoxAction)
            return squashed_gaussian(out, rows, log_std, layout.action)
        return gaussian(out, rows, log_std).astype(np.float32)

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
        """Draw actions `[E, *act_shape]`, and the fields of `extra_fields_of`; see `Policy.act`.

        The arrays are fresh. The log probability of a squashed Gaussian is that of `tanh(latent)`, without the
        constant of the box's scale.
        """
        memory = self.memory
        extras = {} if memory is None else {"state": memory.state}
        out, rows = self.outputs(obs), obs.shape[0]
        extras["log_prob"] = log_prob = np.empty(rows, np.float32)
        if not self._gaussian:
            choices = len(self._choices)
            action = np.empty((rows, choices), np.int64)
            self._exploration = draw_choices(
                out, self._choices, rng.random((rows, choices)), action, log_prob
            )
            return action.reshape(rows, *self._shape), extras
        draw = rng.standard_normal(out.shape, np.float32)
        draw_gaussian(out, self._network.weights[self._log_std], self._std, draw, log_prob)
        if self._box is None:
            return draw.reshape(rows, *self._shape), extras
        add_squashing(draw, log_prob)
        return self._box.squash(draw), {**extras, "latent": draw}
