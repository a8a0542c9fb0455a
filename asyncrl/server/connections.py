"""Limits on connections: how many may be open, and how long each may take to send a request's head.

aiohttp has neither limit: it keeps a half-sent request open for an hour, and a few hundred of them exhaust the
process's descriptors. The guard stands between the transport and aiohttp's protocol, with `asyncio.Protocol` on both
sides, and does not parse HTTP: aiohttp's middleware tells it when a head is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

MAX_CONNECTIONS = 64
HEAD_SECONDS = 2.0

TOO_SLOW_BODY = b'{"error":{"status":408,"message":"a request head must come within 2 s"}}'
TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json; charset=utf-8\r\nServer: asyncrl\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(TOO_SLOW_BODY), TOO_SLOW_BODY)
)


@dataclass(frozen=True)
class ConnectionStatistics:
    """Connections open now, and those evicted, refused and timed out since the start."""

    open: int
    evicted: int
    refused: int
    timed_out: int


class ConnectionGuard:
    """Protocol factory for `loop.create_server` that limits the connections of the factory it wraps.

    At most `max_connections` are open. A new one beyond that evicts the oldest that never sent a whole request, else
    the oldest that is idle between two requests; it is refused while all are busy. A head must be complete within
    `head_seconds` of its first byte; the first head of a connection, of the connection itself.
    """

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        *,
        max_connections: int = MAX_CONNECTIONS,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        self._factory = factory
        self._max_connections = max_connections
        self._head_seconds = head_seconds
        # By transport, oldest first.
        self._open: dict[asyncio.Transport, _Connection] = {}
        self._evicted = self._refused = self._timed_out = 0
        self._emptied: asyncio.Future[None] | None = None

    def __call__(self) -> asyncio.Protocol:
        """Guard one new connection."""
        return _Connection(self, self._factory())

    def request_began(self, transport: asyncio.Transport | None) -> None:
        """Note that a whole head has arrived on `transport`; its connection is busy until `request_ended`."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.busy = connection.served = True
            connection.stop_timer()

    def request_ended(self, transport: asyncio.Transport | None) -> None:
        """Note that the handler of the request on `transport` has returned."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.busy = False

    async def abort_all(self) -> None:
        """Close every connection without waiting for peers; returns when the sockets are closed."""
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            for transport in list(self._open):
                transport.abort()
            await self._emptied
            # A transport closes its socket just after `connection_lost`.
            await asyncio.sleep(0)

    def statistics(self) -> ConnectionStatistics:
        """Counters since the start."""
        return ConnectionStatistics(len(self._open), self._evicted, self._refused, self._timed_out)

    def admit(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Make room for a new connection; returns whether there is any."""
        if len(self._open) >= self._max_connections:
            idle = [t for t, c in self._open.items() if not c.busy]
            if not idle:
                self._refused += 1
                return False
            victim = next((t for t in idle if not self._open[t].served), idle[0])
            self._open.pop(victim).stop_timer()
            victim.abort()
            self._evicted += 1
        self._open[transport] = connection
        return True

    def forget(self, transport: asyncio.Transport) -> None:
        """Remove a closed connection."""
        self._open.pop(transport, None)
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def start_timer(self, transport: asyncio.Transport) -> asyncio.TimerHandle:
        """Start the time limit of a head."""
        return asyncio.get_running_loop().call_later(self._head_seconds, self._time_out, transport)

    def _time_out(self, transport: asyncio.Transport) -> None:
        connection = self._open.get(transport)
        if connection is None or connection.busy:
            return
        self._timed_out += 1
        if connection.began:
            transport.write(TOO_SLOW)
            transport.close()
            # A peer that reads nothing must not hold the socket through the flush.
            asyncio.get_running_loop().call_later(self._head_seconds, transport.abort)
        else:
            transport.abort()


class _Connection(asyncio.Protocol):
    """One connection: forwards every event, and times heads."""

    def __init__(self, guard: ConnectionGuard, inner: asyncio.Protocol) -> None:
        self._guard = guard
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.began = False
        self.busy = False
        self.served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP socket's transport writes; uvloop's is no subclass of asyncio.Transport.
        stream = cast(asyncio.Transport, transport)
        if not self._guard.admit(self, stream):
            stream.abort()
            return
        self._transport = stream
        self._timer = self._guard.start_timer(stream)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        if self._transport is not None:
            self._guard.forget(self._transport)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self.began = True
        if not self.busy and self._timer is None:
            self._timer = self._guard.start_timer(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._transport is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
