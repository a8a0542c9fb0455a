"""Base class of the policies that act with one network, and those whose network an inference server may run."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.recurrent import RecurrentActingNetwork
from asyncrl.errors import ConfigurationError
from asyncrl.protocols import Policy


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

    def take_exploration(self, other: Any) -> None:
        """Explore by the options of `other`, a policy of the same kind for the same streams; the state stays."""

    def load_weights(self, weights: NDArray[np.float32]) -> None:
        """Copy `weights` `[weight_count]` into the network. Raises ValueError if the length is wrong."""
        self.network.load(weights)
        self.weights_changed()


def take_exploration(policy: Any, other: Any) -> None:
    """Have `policy` explore by the options of `other` where both are of one kind of asyncrl's; its state stays."""
    if type(policy) is type(other) and hasattr(policy, "take_exploration"):
        policy.take_exploration(other)


class ServedPolicy(Policy, Protocol):
    """A policy whose `act` calls `network` on its observations, at most once, and draws everything else itself."""

    @property
    def network(self) -> ActingNetwork:
        """The network; its weights are the policy's."""
        ...


def is_served(algorithm: object) -> bool:
    """Whether the algorithm's option `inference` is `server`. An algorithm without that option is not served."""
    return bool(getattr(algorithm, "inference", "actor") == "server")


def own_weights(policy: Any) -> slice:
    """Slice of the policy's weights that `act` itself reads, beside the network's outputs; empty for most."""
    return getattr(policy, "own_weights", slice(0, 0))


def require_served(policy: Policy) -> ServedPolicy:
    """Return the policy if an inference server may run its network.

    Raises:
        ConfigurationError: it may not (ASYNC017).
    """
    network = getattr(policy, "network", None)
    if not isinstance(network, ActingNetwork):
        why, fix = "has no ActingNetwork as its attribute network", "set inference to actor"
    elif getattr(getattr(policy, "layout", None), "noisy", False):
        why = "has noisy weights, with noise of its own in every row, which the actor draws"
        fix = "set inference to actor, which is faster for a perceptron, or noisy to false"
    elif isinstance(network, RecurrentActingNetwork):
        why, fix = (
            "is recurrent, with a state that the actor keeps",
            "set inference to actor, or recurrent to none",
        )
    else:
        return cast(ServedPolicy, policy)
    raise ConfigurationError(
        f"inference must be actor where the policy {why}, got server",
        facts={"policy": type(policy).__name__},
        fix=fix,
    )
