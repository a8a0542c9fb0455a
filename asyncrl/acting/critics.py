"""Critics beside a policy: values of states or of actions, in NumPy and numba, over the policy's own inputs.

    weights  [C, P] float32   a row is the flat block of one network, in the order of `layouts` or of its module

Actors need no critics. A checkpoint has them, and a policy file on request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.box import scaling
from asyncrl.acting.layouts import NetworkFactory, NetworkLayout
from asyncrl.acting.modules import make_acting_network, network_size
from asyncrl.acting.recurrent import Cell, RecurrentActingNetwork
from asyncrl.interfaces import BoxAction, EnvSpec


@dataclass(frozen=True)
class CriticLayout(NetworkLayout):
    """Shape of the C critics of an algorithm, and the order of the weights of each (see `layouts`).

    Attributes:
        inputs: values of one observation and, behind them, of one action if critics judge actions.
        hidden: widths of the hidden layers.
        copies: C.
        outputs: values of the head: 1, or the atoms of a distribution of the return.
        action: space of the actions that critics judge; None for values of states.
        activation: activation between the layers.
        network: see `NetworkLayout`.
        cell: recurrent cell before the head, or None.
    """

    inputs: int
    hidden: tuple[int, ...]
    copies: int = 1
    outputs: int = 1
    action: BoxAction | None = None
    activation: Literal["tanh", "relu"] = "relu"
    network: NetworkFactory | None = None
    cell: Cell | None = None
    normalized = False  # inputs are normalised before, by the policy's statistics

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths from the input to the head."""
        return (self.inputs, *self.hidden, self.outputs)

    @cached_property
    def network_count(self) -> int:  # type: ignore[override]
        """P, number of values of one critic."""
        return network_size(self.sizes, self.network, self.cell)

    @property
    def shape(self) -> tuple[int, int]:
        """`(C, P)`, shape of the weights."""
        return self.copies, self.network_count


class Critics:
    """The critics of a policy with fixed weights.

    Args:
        spec: the environment.
        layout: shape of the critics, made for this environment.
        weights: `[C, P]`, copied.
    """

    def __init__(self, spec: EnvSpec, layout: CriticLayout, weights: NDArray[np.float32]) -> None:
        rows = replace(
            spec,
            observation_shape=(layout.inputs,),
            observation_dtype="float32",
            observation_kind=None,
            frame_stack=1,
            leaves=(),
        )
        self._networks = [
            make_acting_network(rows, layout, layout.activation == "relu", layout.cell)
            for _ in range(layout.copies)
        ]
        for network, own in zip(self._networks, weights, strict=True):
            network.load(own)
            network.leave_torch()
        self._action = layout.action

    def __call__(
        self,
        inputs: NDArray[np.float32],
        action: NDArray[np.float32] | None = None,
        state: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Values `[R, C]`, means over the atoms of the head.

        Args:
            inputs: `[R, inputs]` as the policy's network reads them.
            action: `[R, *action_shape]` in environment units, for critics that judge actions.
            state: `[R, state_size]` before these observations, for recurrent critics.
        """
        x = inputs
        if self._action is not None:
            assert action is not None
            centre, half_range = scaling(self._action)
            moved = action.reshape(len(inputs), len(centre)).astype(np.float32) - centre
            unit = np.divide(moved, half_range, out=np.zeros_like(moved), where=half_range > 0)
            x = np.concatenate((inputs, unit), axis=1)
        values = []
        for network in self._networks:
            if isinstance(network, RecurrentActingNetwork):
                assert state is not None
                network.state = state
            values.append(network(x).mean(axis=1))
        return np.stack(values, axis=1)
