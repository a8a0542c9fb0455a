"""A learner's state as bytes, for the groups that take it over at the start and at the end."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from asyncrl.groups.peers import Peers, broadcast_bytes
from asyncrl.networks.flat_vector import FlatVector

OWN = ("generator", "noise")
"""Parts of a state that each group keeps as its own: the random numbers differ from group to group."""


class Core(Protocol):
    """What groups need of an algorithm's updater."""

    vector: FlatVector

    def state_dict(self) -> Mapping[str, Any]:
        """Everything needed to go on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


def packed(state: Mapping[str, Any]) -> bytes:
    """A state as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def take_over(core: Core, data: bytes) -> None:
    """Put another group's state into `core`, which keeps its own random numbers."""
    state = torch.load(io.BytesIO(data), weights_only=False)  # of a rank of this job
    own = {name: value for name, value in core.state_dict().items() if name in OWN}
    core.load_state_dict({**state, **own})


def share(core: Core, peers: Peers, source: int) -> None:
    """Let every core have the state of the rank `source`'s; collective."""
    data = packed(core.state_dict()) if peers.rank == source else None
    received = broadcast_bytes(peers, data, source)
    if peers.rank != source:
        take_over(core, received)
