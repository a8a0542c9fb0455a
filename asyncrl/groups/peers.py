"""Connections between ranks: gloo process groups of torch.distributed, which carry tensors on the CPU.

Each is a separate object, not torch's default process group, so that a pair of ranks can lose each other while the
others continue. A wait consists of short ones, because gloo cannot be interrupted from another thread.

For the same reason a process group is never destroyed while an operation is pending: its destructor joins gloo's
thread, which may wait for a suspended rank for ever. Such a group is kept until the process ends.
"""

from __future__ import annotations

import ctypes
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
"""Longest wait in gloo before a check whether the connection was closed."""
FOREVER = timedelta(days=7)
"""Timeout of gloo itself; the heartbeat detects ranks that do not answer."""
INTERFACES = "GLOO_SOCKET_IFNAME"
"""Environment variable with the names of the network interfaces to use, separated by commas."""


class PeerLost(Exception):
    """A connection to another rank has broken, or was closed by this process."""


class Pending:
    """Operations of a process group, which is kept for ever if its last one never ends."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._newest: Any = None

    def begin(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Begin `operation` and return its work. Raises `PeerLost`."""
        try:
            self._newest = operation(*arguments)
        except RuntimeError as error:  # an earlier operation has broken the connection
            raise PeerLost(first_line(error)) from error
        return self._newest

    def __del__(self) -> None:
        """Keep the process group for ever if an operation is pending; operations end in their order."""
        if self._newest is not None and not self._newest.is_completed():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))


class Peers:
    """Sums and messages between `size` ranks; used by one thread at a time, except `close`.

    Args:
        store: store by which the ranks find each other's addresses.
        name: name of the connection, the same on every rank and new for every connection.
        rank, size: rank of this process in the connection, and number of ranks.
        address: local address or host name that the others connect to; "" takes the interfaces in `GLOO_SOCKET_IFNAME`,
            without which torch chooses one.
        connect_seconds: time limit for the ranks to connect.

    Attributes:
        sent_bytes, received_bytes: payload so far through this rank's network interface.
        device: device of the tensors, the CPU.
        closed: whether this process has closed the connection.

    Raises:
        PeerLost: a rank does not connect. Every other method raises it if the connection has broken or was closed.
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
        self.device, self.closed = torch.device("cpu"), False
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=connect_seconds)
        options._threads = 1
        try:
            options._devices = _devices(address)
            self._group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, options)
        except RuntimeError as error:
            raise PeerLost(f"{name}: {first_line(error)}") from error
        # Older versions of torch have the private method only.
        set_timeout = getattr(self._group, "set_timeout", None) or self._group._set_default_timeout
        set_timeout(FOREVER)
        self._pending = Pending(self._group)

    def sum(self, vector: Tensor) -> None:
        """Replace `vector` by its sum over all ranks, bitwise equal on all of them."""
        self.wait(self.begin_sum(vector))

    def begin_sum(self, vector: Tensor) -> Any:
        """Begin `sum`; gloo owns `vector` until the returned work is done."""
        self.count_sum(vector)
        return self._pending.begin(self._group.allreduce, [vector])

    def count_sum(self, vector: Tensor) -> None:
        """Count the bytes of a sum of `vector`."""
        moved = 2 * vector.nbytes * (self.size - 1) // self.size
        self.sent_bytes += moved
        self.received_bytes += moved

    def gather(self, message: Tensor, out: list[Tensor]) -> None:
        """Fill `out`, one tensor per rank, with the messages of all ranks."""
        self.wait(self.begin_gather(message, out))

    def begin_gather(self, message: Tensor, out: list[Tensor]) -> Any:
        """Begin `gather`; see `begin_sum`."""
        self.sent_bytes += message.nbytes * (self.size - 1)
        self.received_bytes += message.nbytes * (self.size - 1)
        return self._pending.begin(self._group.allgather, [out], [message])

    def broadcast(self, message: Tensor, source: int) -> None:
        """Fill `message` with the message of the rank `source`.

        Between two ranks this replaces send and receive: a timeout of torch's own `recv` would break the connection.
        """
        self.wait(self.begin_broadcast(message, source))

    def begin_broadcast(self, message: Tensor, source: int) -> Any:
        """Begin `broadcast`; see `begin_sum`. Operations are done in the order in which they were begun."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        if source == self.rank:
            self.sent_bytes += message.nbytes
        else:
            self.received_bytes += message.nbytes
        return self._pending.begin(self._group.broadcast, [message], options)

    def close(self) -> None:
        """Close: a waiting call raises `PeerLost` within half a second, every later wait at once; any thread."""
        self.closed = True

    def wait(self, work: Any) -> None:
        """Wait for an operation that was begun."""
        while True:
            if self.closed:
                raise PeerLost("the connection was closed here")
            try:
                work.wait(SLICE)
                return
            except RuntimeError as error:
                if "timed out" not in str(error).lower():
                    raise PeerLost(first_line(error)) from error


def first_line(error: Exception) -> str:
    """First line of torch's text, without its source location and its advice."""
    line = str(error).partition("\n")[0]
    return (line.partition("] ")[2] or line).partition(". This is typically")[0]


def _devices(address: str) -> list[Any]:
    """Network interfaces of a connection; see `Peers`. Torch reads `GLOO_SOCKET_IFNAME` for its default group only."""
    gloo, names = dist.ProcessGroupGloo, os.environ.get(INTERFACES, "").split(",")
    if address:
        return [gloo.create_device(hostname=address)]
    return [gloo.create_device(interface=name) for name in names if name] or [gloo.create_default_device()]


def own_address(host: str, port: int) -> str:
    """Local address from which `host` is reached; "" if `GLOO_SOCKET_IFNAME` is set, which `Peers` then reads."""
    if os.environ.get(INTERFACES):
        return ""
    with socket.socket(_family(host, port), socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # on a datagram socket this chooses the route and sends nothing
        return str(probe.getsockname()[0])


def _family(host: str, port: int) -> socket.AddressFamily:
    """Address family of `host`: IPv6 if it has no other address."""
    try:
        found = {family for family, *_ in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)}
    except OSError:  # `connect` says why
        return socket.AF_INET
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def broadcast_bytes(peers: Peers, data: bytes | None, source: int) -> bytes:
    """Return the `data` of the rank `source` on every rank; the others pass None."""
    size = torch.tensor([len(data) if data is not None else 0])
    peers.broadcast(size, source)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if data is not None:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    peers.broadcast(buffer, source)
    return bytes(buffer.numpy().tobytes())
