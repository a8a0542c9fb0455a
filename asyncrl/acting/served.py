"""Policies whose network the learner's side may run in their place (`inference="server"`)."""

from __future__ import annotations

from typing import Any, Protocol, cast

from asyncrl.acting.network import ActingNetwork
from asyncrl.acting.recurrent import RecurrentActingNetwork
from asyncrl.errors import ConfigurationError
from asyncrl.protocols import Policy


class ServedPolicy(Policy, Protocol):
    """A policy whose `act` runs `network` on its observations, at most once, and draws everything else itself."""

    @property
    def network(self) -> ActingNetwork:
        """The network, whose weights are the policy's."""
        ...


def own_weights(policy: Any) -> slice:
    """Where in a policy's weights those stand that `act` reads beside the network's outputs; empty for most."""
    return getattr(policy, "own_weights", slice(0, 0))


def require_served(policy: Policy) -> ServedPolicy:
    """The policy, where the learner's side may run its network.

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
