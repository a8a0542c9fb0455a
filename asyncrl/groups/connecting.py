"""Connections of a rank's learner to the others: one function for each side of each mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch

from asyncrl.config import TrainerConfig
from asyncrl.errors import StoppedWhileStarting
from asyncrl.groups.async_fusion import AsyncClient, AsyncServer, FusedWeights
from asyncrl.groups.device_sums import device_sums
from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.meeting import JOIN_SECONDS, LOOK_SECONDS
from asyncrl.groups.messages import Encoding, encoding_of
from asyncrl.groups.peers import PeerLost, Peers, broadcast_bytes
from asyncrl.groups.place import Place
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.state import Core, share, take_over
from asyncrl.groups.weight_fusion import AverageFuser, BackgroundFusion, Deltas, fused_parts

OVER = "over"
"""Key of the store that rank 0 sets when it has finished."""
CONNECT_SECONDS = 60.0
"""Time limit for the other ranks to be ready to connect."""
Fusion = GradientFusion | BackgroundFusion
"""A running fusion: `finish` on the learner's thread, `close` and `statistics` on any."""


@dataclass(frozen=True)
class Connection:
    """Data by which a rank connects to others.

    `closed` is set by `close`, and `opened` are the connections that were made.
    """

    store: Any
    place: Place
    address: str
    closed: threading.Event = field(default_factory=threading.Event)
    opened: WeakSet[Peers] = field(default_factory=WeakSet)

    def all(self) -> Peers:
        """Connect all ranks, once all are ready: gloo's own wait for them cannot be ended. Raises `PeerLost`."""
        deadline = time.monotonic() + CONNECT_SECONDS
        self.store.add("ready", 1)
        while self.store.add("ready", 0) < self.place.size:
            if self.closed.is_set():
                raise PeerLost("the connection was closed here")
            if time.monotonic() > deadline:
                raise PeerLost(f"a rank was not ready within {CONNECT_SECONDS:.0f} s of this one")
            time.sleep(LOOK_SECONDS)
        return self._kept(Peers(self.store, "all", self.place.rank, self.place.size, self.address))

    def pair(self, rank: int, life: int) -> Peers:
        """Connect rank 0 and one life of another rank."""
        side = 0 if self.place.rank == 0 else 1
        return self._kept(Peers(self.store, _pair(rank, life), side, 2, self.address))

    def _kept(self, peers: Peers) -> Peers:
        self.opened.add(peers)
        if self.closed.is_set():
            peers.close()
        return peers

    def close(self) -> None:
        """Close all connections, also those that are made later; any thread."""
        self.closed.set()
        for peers in list(self.opened):
            peers.close()


def _pair(rank: int, life: int) -> str:
    return f"pair/{rank}/{life}"


def _encoding(config: TrainerConfig, core: Core) -> Encoding:
    size = sum(part.numel() for part in fused_parts(core.vector, config.fusion_moments))
    return encoding_of(config.fusion_dtype, size, core.vector.buffers)


def collective_fusion(
    connection: Connection, config: TrainerConfig, core: Core, *, exact: bool = False
) -> Fusion:
    """Make the fusion by `gradients` or `average`, starting from rank 0's state; collective. Raises `PeerLost`.

    With `exact` the same seed must give the same numbers, so that `average` waits at fixed updates.
    """
    peers = connection.all()
    share(core, peers, source=0)
    encoding, shared = _encoding(config, core), SharedStatistics(core.vector.shared)
    if config.fusion == "gradients":
        sums = device_sums(peers, connection.store, core.vector.gradient.device)
        return GradientFusion(core, peers, encoding, shared, sums)
    rounds = Rounds(peers, encoding, shared=shared)
    vector, moments = core.vector, config.fusion_moments
    start = torch.cat([part.cpu() for part in fused_parts(vector, moments)])
    fuser = AverageFuser(
        rounds,
        start,
        learning_rate=config.fusion_learning_rate,
        momentum=config.fusion_momentum,
        weights=vector.parameters.numel(),
        deltas=Deltas(vector.buffers),
        velocity=vector.velocity,
    )
    vector.velocity = fuser.velocity.numpy() if config.fusion_momentum else None
    return BackgroundFusion(fuser, vector, config.fusion_interval, exact=exact, moments=moments)


class Reception:
    """Rank 0's side of connecting the groups of `async`, which may join late and rejoin; the server's threads.

    Args:
        connection: connection data of rank 0.
        state: returns the current state of rank 0's learner, with which a group begins.
        tie: makes the lifeline between rank 0 and one life of a group.

    Attributes:
        lives: newest life of every group that has joined.
    """

    def __init__(
        self, connection: Connection, state: Callable[[], bytes], tie: Callable[[int, int], None]
    ) -> None:
        self.connection = connection
        self.lives: dict[int, int] = {}
        self._state, self._tie = state, tie

    def __call__(self, rank: int) -> Peers | None:
        """Connect to a new life of the group; None while there is none. Raises `PeerLost`."""
        store, key = self.connection.store, f"life/{rank}"
        if not store.check([key]):
            return None
        life = int(store.get(key))
        if life <= self.lives.get(rank, -1):
            return None
        store.set(_pair(rank, life), "welcome")
        peers = self.connection.pair(rank, life)
        broadcast_bytes(peers, self._state(), 0)
        self._tie(rank, life)
        self.lives[rank] = life
        return peers


def serving_fusion(reception: Reception, config: TrainerConfig, core: Core) -> Fusion:
    """Make rank 0's fusion by `async`."""
    deltas = Deltas(core.vector.buffers)
    weights = FusedWeights(core.vector.parameters, config.max_fusion_staleness, deltas=deltas)
    ranks = range(1, reception.connection.place.size)
    server = AsyncServer(
        weights, _encoding(config, core), ranks, reception, SharedStatistics(core.vector.shared)
    )
    return BackgroundFusion(server, core.vector, config.fusion_interval)


def client_fusion(
    connection: Connection, config: TrainerConfig, core: Core, tie: Callable[[], None]
) -> Fusion:
    """Make another group's fusion by `async`, starting from rank 0's state and the fused weights.

    Raises:
        PeerLost: rank 0 does not answer.
        StoppedWhileStarting: rank 0 has finished.
    """
    place, store = connection.place, connection.store
    store.set(f"life/{place.rank}", str(place.life))
    deadline = time.monotonic() + JOIN_SECONDS
    while not store.check([_pair(place.rank, place.life)]):
        if store.check([OVER]):
            raise StoppedWhileStarting("The run was over when this group came.")
        if time.monotonic() > deadline:
            raise PeerLost("rank 0 does not answer")
        if connection.closed.is_set():
            raise PeerLost("the connection was closed here")
        time.sleep(LOOK_SECONDS)
    peers = connection.pair(place.rank, place.life)
    take_over(core, broadcast_bytes(peers, None, 0))
    tie()
    client = AsyncClient(
        peers, _encoding(config, core), SharedStatistics(core.vector.shared), Deltas(core.vector.buffers)
    )
    core.vector.parameters.copy_(client.base)
    return BackgroundFusion(client, core.vector, config.fusion_interval)
