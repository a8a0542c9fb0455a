"""HTTP server on one address: start, guard, serve, close. Subclasses add the paths."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from asyncrl.errors import ConfigurationError
from asyncrl.server.connections import MAX_REQUEST_BYTES, ConnectionGuard, ConnectionStatistics
from asyncrl.server.discovery import port_in_use, reachable
from asyncrl.server.security import MAX_BODY_BYTES, STATIC_HEADERS, Gate, answer_in_json

LOGGER = logging.getLogger("asyncrl.server")
# Silent unless the user adds a handler: messages about malformed requests must not overwrite the terminal view.
LOGGER.addHandler(logging.NullHandler())

KEEPALIVE_SECONDS = 15.0
GOODBYE_SECONDS = 0.5
REQUESTS_PER_SECOND, BURST = 200.0, 50
"""Rate limit: requests beyond the burst are delayed, as the loop shares the interpreter with the learner's thread."""


class HttpServer:
    """Server that binds one address and serves one application on the event loop that calls `start`.

    Args:
        register: adds the paths.
        host: address to bind; beyond loopback every request needs the token.
        port: 0 takes any free one.
        token: the secret, not empty.

    Attributes:
        url: `http://host:port` for a browser on this machine; "" before `start`.
        port: the bound port.
    """

    def __init__(
        self, register: Callable[[web.Application], None], *, host: str, port: int, token: str
    ) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {port}")
        self.host = host
        self.port = port
        self.url = ""
        self._register = register
        self._gate = Gate(host, token)
        self._next_turn = 0.0
        self._guard: ConnectionGuard | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            PortInUse: the port is occupied (ASYNC007); the error names the run there, if there is one.
            ConfigurationError: the host cannot be bound for another reason.
        """
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=LOGGER,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=0.1,
            max_line_size=MAX_REQUEST_BYTES,
            max_field_size=MAX_REQUEST_BYTES,
            shutdown_timeout=GOODBYE_SECONDS,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._guard = ConnectionGuard(self._runner.server)
        try:
            self._listener = await self._listen(self._guard)
        except BaseException:
            await self._runner.cleanup()
            self._runner = None
            raise
        self.port = self._listener.sockets[0].getsockname()[1]
        self.url = f"http://{reachable(self.host)}:{self.port}"

    async def close(self) -> None:
        """Stop listening, end requests in progress and close all connections within a second; idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert self._listener is not None and self._guard is not None
        self._listener.close()
        await self.end_streams()
        await runner.cleanup()
        await self._guard.abort_all()

    async def end_streams(self) -> None:
        """End the endless responses; called after listening stops and before connections close."""

    def statistics(self) -> ConnectionStatistics:
        """Counters of connections. Raises RuntimeError before `start`."""
        if self._guard is None:
            raise RuntimeError("the server has not been started")
        return self._guard.statistics()

    async def _listen(self, guard: ConnectionGuard) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        # One address only: a name with two (localhost) would get two different free ports. IPv4 is preferred.
        try:
            found = await loop.getaddrinfo(self.host or "0.0.0.0", self.port, type=socket.SOCK_STREAM)
            address = min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0]
            return await loop.create_server(guard, str(address), self.port, backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise await port_in_use(self.host, self.port) from error
            raise ConfigurationError(
                f"the HTTP server cannot listen on {self.host} port {self.port}",
                facts={"host": self.host, "port": self.port, "reason": error.strerror or str(error)},
                fix="bind 127.0.0.1, or an address of this machine",
            ) from error

    def _application(self) -> web.Application:
        app = web.Application(
            client_max_size=MAX_BODY_BYTES + 1, middlewares=[self._mark_busy(), answer_in_json(self._gate)]
        )
        app.on_response_prepare.append(_add_headers)
        self._register(app)
        return app

    def _mark_busy(self) -> Middleware:
        """Make the outermost middleware, which marks connections with a request in progress as busy."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            guard, transport = self._guard, request.transport
            assert guard is not None
            guard.request_began(transport)
            try:
                await self._wait_for_turn()
                return await handler(request)
            finally:
                guard.request_ended(transport)

        return middleware

    async def _wait_for_turn(self) -> None:
        """Delay a request while more than `BURST` requests have arrived faster than `REQUESTS_PER_SECOND`."""
        now = asyncio.get_running_loop().time()
        self._next_turn = max(self._next_turn, now - BURST / REQUESTS_PER_SECOND) + 1 / REQUESTS_PER_SECOND
        if self._next_turn > now:
            await asyncio.sleep(self._next_turn - now)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(STATIC_HEADERS)
