"""Limits on connections: their number, the time for each to send a request head, and the bytes of a request.

aiohttp has none of them. It keeps an incomplete request open for an hour, and a few hundred of them exhaust the
process's file descriptors. It reads whatever is sent, and formats the whole of a header that is too long into its
error: clients that sent nothing else took 95 % of a learner's speed and 600 MB. The guard is an `asyncio.Protocol`
between the transport and aiohttp's protocol. It does not parse HTTP: aiohttp's middleware calls `request_began` when a
head is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from asyncrl.server.security import MAX_BODY_BYTES

MAX_CONNECTIONS = 64
HEAD_SECONDS = 2.0

MAX_HEAD_BYTES = 32 * 1024
MAX_REQUEST_BYTES = MAX_HEAD_BYTES + MAX_BODY_BYTES
"""Bytes of a request that are read. aiohttp's own limits lie above it: one of the two answers what is too long."""


def _refusal(status: int, reason: str, message: str) -> bytes:
    body = f'{{"error":{{"status":{status},"message":"{message}"}}}}'
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json; charset=utf-8\r\nServer: asyncrl\r\n"
    )
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


TOO_SLOW = _refusal(408, "Request Timeout", f"a request head must come within {HEAD_SECONDS:g} s")
TOO_LONG = _refusal(413, "Content Too Large", f"a request may have {MAX_REQUEST_BYTES} bytes")


@dataclass(frozen=True)
class ConnectionStatistics:
    """Number of connections open now, and evicted, refused, timed out and cut for length since the start."""

    open: int
    evicted: int
    refused: int
    timed_out: int
    cut: int


class ConnectionGuard:
    """Protocol factory for `loop.create_server` that limits the connections of the wrapped factory.

    At most `max_connections` are open. A new one beyond that evicts the oldest connection that never sent a complete
    request, else the oldest that is idle between two requests; it is refused if all are busy. A head must be complete
    within `HEAD_SECONDS` of its first byte; the first head within `HEAD_SECONDS` of the connection's start. A
    connection that sends more than `MAX_REQUEST_BYTES` for a request is read no further.
    """

    def __init__(
        self,
        factory: Callable[[], web.RequestHandler],
        *,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._factory = factory
        self._max_connections = max_connections
        self._head_seconds = HEAD_SECONDS
        # By transport, oldest first.
        self._open: dict[asyncio.Transport, _Connection] = {}
        self._evicted = self._refused = self._timed_out = self._cut = 0
        self._emptied: asyncio.Future[None] | None = None

    def __call__(self) -> asyncio.Protocol:
        """Make the guarded protocol of one new connection."""
        return _Connection(self, self._factory())

    def request_began(self, transport: asyncio.Transport | None) -> None:
        """Mark the connection of `transport` as busy until `request_ended`, as a complete head has arrived."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.busy = connection.served = True
            connection.stop_timer()

    def request_ended(self, transport: asyncio.Transport | None) -> None:
        """Mark the connection of `transport` as idle, as the request's handler has returned."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.busy = False
            connection.received_bytes = 0

    async def abort_all(self) -> None:
        """Close every connection without waiting for peers; returns after the sockets are closed."""
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            for transport in list(self._open):
                transport.abort()
            await self._emptied
            # A transport closes its socket just after `connection_lost`.
            await asyncio.sleep(0)

    def statistics(self) -> ConnectionStatistics:
        """Counters since the start."""
        counts = self._evicted, self._refused, self._timed_out, self._cut
        return ConnectionStatistics(len(self._open), *counts)

    def admit(self, connection: _Connection, transport: asyncio.Transport) -> bool:
        """Register a new connection, evicting another if necessary; returns whether it is admitted."""
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

    def cut(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """Answer a connection that sends too much and is read no further; one with a whole request has its own answer.

        It is closed `HEAD_SECONDS` later: a client that is closed at once comes back at once.
        """
        self._cut += 1
        connection.stop_timer()
        if not connection.served and not transport.is_closing():
            connection.silence()
            transport.write(TOO_LONG)
        asyncio.get_running_loop().call_later(self._head_seconds, transport.abort)


class _Connection(asyncio.Protocol):
    """Protocol of one connection: forwards every event and limits the time of heads."""

    def __init__(self, guard: ConnectionGuard, inner: web.RequestHandler) -> None:
        self._guard = guard
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.began = False
        self.busy = False
        self.served = False
        self.received_bytes = 0
        self._cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of a TCP socket can write, but uvloop's is no subclass of asyncio.Transport.
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
        self.received_bytes += len(data)
        if self._cut or self.received_bytes > MAX_REQUEST_BYTES:
            self._transport.pause_reading()  # again, if aiohttp has resumed it
            if not self._cut:
                self._cut = True
                self._guard.cut(self, self._transport)
            return
        if not self.busy and self._timer is None:
            self._timer = self._guard.start_timer(self._transport)
        self._inner.data_received(data)

    def silence(self) -> None:
        """Make aiohttp answer nothing more: for it the connection is lost, while the transport stays open."""
        self._inner.transport = None  # aiohttp would close it
        self._inner.connection_lost(None)

    def eof_received(self) -> None:
        if self._transport is not None:
            self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
