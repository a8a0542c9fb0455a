"""Transfer of a learner's state as bytes between groups, at the start and at the end."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from asyncrl.groups.peers import Peers, broadcast_bytes
from asyncrl.learning.learner import Learner
from asyncrl.networks.flat_vector import FlatVector

OWN = ("generator", "noise")
"""Entries of a state that each group keeps as its own: the random generators, which differ between groups."""
STATE_SECONDS = 60.0
"""Time limit of the wait for a learner's state."""


class Core(Protocol):
    """Part of an updater's interface that groups use."""

    vector: FlatVector

    def state_dict(self) -> Mapping[str, Any]:
        """State from which training can continue."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


def packed(state: Mapping[str, Any]) -> bytes:
    """Serialise a state as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def state_of(learner: Learner, loop: asyncio.AbstractEventLoop) -> bytes:
    """State of the learner's core; not on the loop's thread. Raises TimeoutError after `STATE_SECONDS`."""
    pack = learner.thread.call(lambda: packed(learner.core.state_dict()))
    try:
        packing = asyncio.run_coroutine_threadsafe(pack, loop)
    except RuntimeError:  # the loop has ended
        pack.close()
        raise
    try:
        return packing.result(STATE_SECONDS)
    except TimeoutError:
        packing.cancel()
        raise


def take_over(core: Core, data: bytes) -> None:
    """Load another group's state into `core`, which keeps its own random generators."""
    state = torch.load(io.BytesIO(data), weights_only=False)  # trusted: it comes from a rank of this job
    own = {name: value for name, value in core.state_dict().items() if name in OWN}
    core.load_state_dict({**state, **own})


def share(core: Core, peers: Peers, source: int) -> None:
    """Give every core the state of the rank `source`, except random generators; collective."""
    data = packed(core.state_dict()) if peers.rank == source else None
    received = broadcast_bytes(peers, data, source)
    if peers.rank != source:
        take_over(core, received)
