"""Connections between ranks: gloo process groups of torch.distributed, which carry tensors on the CPU.

Each is an object of its own, not torch's default process group, so that a pair of ranks can lose each other while the
others go on. A wait is made of short ones: gloo cannot be interrupted from another thread.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # its stores and process groups are written in C++ and carry no types

SLICE = timedelta(seconds=0.5)
"""Longest wait in gloo before `closed` is looked at."""
_FOREVER = timedelta(days=7)
"""gloo's own limit: who waits too long is decided by the heartbeat."""


class PeerLost(Exception):
    """A connection to another rank has broken, or was closed here while it was waited for."""


class Peers:
    """Sums and messages between `size` ranks; used by one thread at a time, but for `close`.

    Args:
        store: where the ranks find each other's addresses.
        name: of the connection, the same on every rank and new for every connection.
        rank, size: of this rank within it.
        address: local address or host name that the others connect to; "" lets torch choose the interface.

    Attributes:
        sent_bytes, received_bytes: payload so far, as it passes this rank's network interface.

    Raises:
        PeerLost: a rank does not come; of every other method: the connection has broken, or was closed here.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        size: int,
        address: str = "127.0.0.1",
        *,
        connect_seconds: float = 60.0,
    ) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = self.received_bytes = 0
        self._closed = False
        options = dist.ProcessGroupGloo._Options()
        gloo = dist.ProcessGroupGloo
        options._devices = [gloo.create_device(hostname=address) if address else gloo.create_default_device()]
        options._timeout = timedelta(seconds=connect_seconds)
        options._threads = 1
        try:
            self._group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)
        except RuntimeError as error:
            raise PeerLost(f"{name}: {_first_line(error)}") from error
        self._group.set_timeout(_FOREVER)

    def sum(self, vector: Tensor) -> None:
        """Replace `vector` by its sum over all ranks, the same to the bit on each of them."""
        self.wait(self.begin_sum(vector))

    def begin_sum(self, vector: Tensor) -> Any:
        """Begin `sum`; `vector` belongs to gloo until the work that is returned is over."""
        moved = 2 * vector.nbytes * (self.size - 1) // self.size
        self.sent_bytes += moved
        self.received_bytes += moved
        return self._begin(self._group.allreduce, [vector])

    def gather(self, message: Tensor, out: list[Tensor]) -> None:
        """Fill `out`, one tensor for each rank, with the messages of all."""
        self.wait(self.begin_gather(message, out))

    def begin_gather(self, message: Tensor, out: list[Tensor]) -> Any:
        """Begin `gather`; see `begin_sum`."""
        self.sent_bytes += message.nbytes * (self.size - 1)
        self.received_bytes += message.nbytes * (self.size - 1)
        return self._begin(self._group.allgather, [out], [message])

    def broadcast(self, message: Tensor, source: int) -> None:
        """Fill `message` with that of the rank `source`.

        Between two ranks this is sending and receiving. torch's own `recv` would break the connection where its wait
        has a limit.
        """
        self.wait(self.begin_broadcast(message, source))

    def begin_broadcast(self, message: Tensor, source: int) -> Any:
        """Begin `broadcast`; see `begin_sum`. What is begun first is done first."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        if source == self.rank:
            self.sent_bytes += message.nbytes
        else:
            self.received_bytes += message.nbytes
        return self._begin(self._group.broadcast, [message], options)

    def close(self) -> None:
        """Let whoever waits raise `PeerLost` within half a second, and every later call at once; any thread."""
        self._closed = True

    def _begin(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except RuntimeError as error:  # the connection has broken in an earlier one
            raise PeerLost(_first_line(error)) from error

    def wait(self, work: Any) -> None:
        """Wait for what was begun."""
        while True:
            if self._closed:
                raise PeerLost("the connection was closed here")
            try:
                work.wait(SLICE)
                return
            except RuntimeError as error:
                if "timed out" not in str(error).lower():
                    raise PeerLost(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Of gloo's text without the place in its source and its advice."""
    return str(error).partition("\n")[0].partition("] ")[2].partition(". This is typically")[0]


def own_address(host: str, port: int) -> str:
    """Local address from which `host` is reached; `GLOO_SOCKET_IFNAME` goes before, as torch reads it."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return ""
    with socket.socket(socket.AF_INET6 if _is_ipv6(host) else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # of a datagram socket: sends nothing, chooses the route
        return str(probe.getsockname()[0])


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def broadcast_bytes(peers: Peers, data: bytes | None, source: int) -> bytes:
    """The bytes that the rank `source` gives as `data`, on every rank."""
    size = torch.tensor([len(data) if data is not None else 0])
    peers.broadcast(size, source)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if data is not None:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    peers.broadcast(buffer, source)
    return bytes(buffer.numpy().tobytes())
