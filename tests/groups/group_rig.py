"""Groups in one process for tests: one thread per rank, over real gloo connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from waiting import PATIENCE_SECONDS as SECONDS

from asyncrl.groups.async_fusion import AsyncServer
from asyncrl.groups.peers import Peers
from asyncrl.groups.weight_fusion import BackgroundFusion
from asyncrl.networks.flat_vector import FlatVector

SIZE = 11
"""Parameters of a vector whose deltas are scripted."""


def on_ranks(count: int, function: Callable[[int], Any]) -> list[Any]:
    """Return values of `function(rank)` on each of `count` threads; raises the first error."""
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


class Meeting:
    """Rendezvous of the ranks of one test."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.store = ranks, dist.HashStore()
        self._connected = threading.Barrier(ranks, timeout=SECONDS)

    def peers(self, rank: int, name: str = "all") -> Peers:
        """Connection of all ranks, once all of them have it.

        A rank that is done with its connection while another one still makes its own would break that one.
        """
        try:
            peers = Peers(self.store, name, rank, self.ranks)
        except BaseException:
            self._connected.abort()
            raise
        self._connected.wait()
        return peers

    def pair(self, rank: int, side: int, life: int = 0) -> Peers:
        return Peers(self.store, f"pair/{rank}/{life}", side, 2)


def vector_of(values: torch.Tensor) -> FlatVector:
    return FlatVector(values.clone(), torch.zeros_like(values))


def scripted(updates: int, seed: int) -> torch.Tensor:
    return torch.randint(-4, 5, (updates, SIZE), generator=torch.Generator().manual_seed(seed)).float()


def all_joined(server: AsyncServer, groups: int) -> AsyncServer:
    """Wait until so many groups have connected, as a run does: at its end the server waits for those alone."""
    with server._changed:
        joined = server._changed.wait_for(
            lambda: len({*server._connections, *server._finished}) == groups, SECONDS
        )
    assert joined, "a group does not come"
    return server


def wait_for(fusion: BackgroundFusion) -> None:
    """Wait for the end of the running fusion."""
    deadline = time.monotonic() + SECONDS
    while not fusion._fuser.done() and time.monotonic() < deadline:
        time.sleep(1e-5)


def fuse(fuser: Any, snapshot: torch.Tensor, finished: bool = False) -> tuple[torch.Tensor, bool]:
    fuser.begin(snapshot, finished)
    fused, final = fuser.end()
    return fused, final
