"""The HTTP server of a run: start, serve, close."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from asyncrl.errors import ConfigurationError
from asyncrl.server.connections import ConnectionGuard, ConnectionStatistics
from asyncrl.server.discovery import port_in_use, reachable
from asyncrl.server.feed import SnapshotFeed
from asyncrl.server.routes import Routes
from asyncrl.server.security import MAX_BODY_BYTES, STATIC_HEADERS, Gate, answer_in_json
from asyncrl.show.metrics import Snapshot

LOGGER = logging.getLogger("asyncrl.server")
# Silent unless the user adds a handler: garbage sent to the port must not write over the terminal view.
LOGGER.addHandler(logging.NullHandler())

KEEPALIVE_SECONDS = 15.0
GOODBYE_SECONDS = 0.5


class RunServer:
    """Serves one run on the event loop that calls `start`.

    Every callable is called on that loop and must not block.

    Args:
        snapshot: the newest snapshot; called at most five times a second, whatever the number of clients.
        config: the run's options, as `/config` shows them.
        stop: asks the run to stop.
        checkpoint: writes a checkpoint and returns its path; may take long.
        ready: whether training steps have arrived.
        host: address to bind; beyond loopback every request needs the token.
        port: 0 takes any free one.
        token: the run's secret, not empty.

    Attributes:
        url: `http://host:port` for a browser on this machine; "" before `start`.
        port: the port that is bound.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        config: Callable[[], dict[str, Any]],
        stop: Callable[[], None],
        checkpoint: Callable[[], Coroutine[Any, Any, str]],
        ready: Callable[[], bool],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {port}")
        self.host = host
        self.port = port
        self.url = ""
        self._gate = Gate(host, token)
        self._feed = SnapshotFeed(snapshot)
        self._routes = Routes(self._feed, config=config, stop=stop, checkpoint=checkpoint, ready=ready)
        self._guard: ConnectionGuard | None = None
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            PortInUse: ASYNC007; it names the run that holds the port, if one does.
            ConfigurationError: the host cannot be bound for another reason.
        """
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=LOGGER,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=1.0,
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
        self._ticker = asyncio.create_task(self._feed.run(), name="asyncrl-http-ticker")

    async def close(self) -> None:
        """Stop listening, end the streams with a last snapshot, close all connections within a second; idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert self._listener is not None and self._guard is not None and self._ticker is not None
        self._listener.close()
        self._ticker.cancel()
        await asyncio.wait([self._ticker])
        self._feed.close()
        if self._routes.streams:
            _, stuck = await asyncio.wait(set(self._routes.streams), timeout=GOODBYE_SECONDS)
            for stream in stuck:
                stream.cancel()
        await runner.cleanup()
        await self._guard.abort_all()
        self._routes.let_go()

    def statistics(self) -> ConnectionStatistics:
        """Connections open, evicted, refused and timed out. Raises RuntimeError before `start`."""
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
            client_max_size=MAX_BODY_BYTES, middlewares=[self._mark_busy(), answer_in_json(self._gate)]
        )
        app.on_response_prepare.append(_add_headers)
        self._routes.register(app)
        return app

    def _mark_busy(self) -> Middleware:
        """The outermost middleware: marks connections with a request in progress as busy."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            guard, transport = self._guard, request.transport
            assert guard is not None
            guard.request_began(transport)
            try:
                return await handler(request)
            finally:
                guard.request_ended(transport)

        return middleware


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(STATIC_HEADERS)
