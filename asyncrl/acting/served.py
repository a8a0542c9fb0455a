"""Policies whose network an inference server may run in place of the actor (`inference="server"`)."""

from __future__ import annotations

from typing import Any, Protocol, cast

from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.recurrent import RecurrentActingNetwork
from asyncrl.errors import ConfigurationError
from asyncrl.protocols import Policy


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
