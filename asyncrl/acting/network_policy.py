"""Base class of the policies that act with a network of asyncrl."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.recurrent import RecurrentActingNetwork


class NetworkPolicy:
    """A policy whose weights are those of one network, `_network`."""

    _network: Any

    @property
    def network(self) -> ActingNetwork:
        """The network; its weights are the policy's."""
        network: ActingNetwork = self._network
        return network

    @property
    def memory(self) -> RecurrentActingNetwork | None:
        """The recurrent network, which holds the state; None if the policy is not recurrent."""
        return self._network if isinstance(self._network, RecurrentActingNetwork) else None

    @property
    def weights(self) -> NDArray[np.float32]:
        """The network's block of weights, `[weight_count]`, not a copy."""
        return self.network.weights

    def weights_changed(self) -> None:
        """Do nothing: no value derived from `weights` is kept."""

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` `[weight_count]` into the network. Raises ValueError if the length is wrong."""
        self.network.load(weights)
        self.weights_changed()
