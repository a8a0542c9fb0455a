"""HTTP server on one address: which requests it answers, how it refuses, start and close. Subclasses add the paths.

aiohttp limits heads (8 KB a line, 128 headers), bodies (`client_max_size`) and the time of a connection without a
complete request (`keepalive_timeout`, from its start and from its last answer). Its error handling is wrapped by one
middleware that gives every refusal a JSON body. It limits neither the number of connections nor their rate:

* A few hundred connections take the descriptors that a run needs for its files and actors, so more than
  `MAX_CONNECTIONS` are turned away (asyncio may accept `BACKLOG` of them at once before it counts one).
* The event loop and the learner share the GIL: four clients that requested /stats as fast as they got answers (8,300
  requests/s) left a learner 6 % of its updates, and headers without end 8 % (`benchmarks/systems/endpoint_load.py`). So
  a connection is read at a limited rate (`_PacedConnection`), and so are new connections. A client that exceeds it
  waits; none is refused.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from asyncrl.errors import ConfigurationError, PortInUse, printable

LOGGER = logging.getLogger("asyncrl.server")
# Silent unless the user adds a handler: messages about malformed requests must not overwrite the terminal view.
LOGGER.addHandler(logging.NullHandler())

MAX_CONNECTIONS = 64
BACKLOG = 32
MAX_BODY_BYTES = 64 * 1024
KEEPALIVE_SECONDS = 5.0
"""Time of a connection without a complete request; bytes of one that trickle in do not extend it."""
BODY_SECONDS = 5.0
ASK_SECONDS, MAX_ANSWER_BYTES = 0.5, 256 * 1024
"""Limits of the question who holds an occupied port."""
GOODBYE_SECONDS = 0.5
READ_COSTS_PER_SECOND, READ_COSTS_AT_ONCE = 200.0, 600.0
"""Rate at which a connection is read, and costs that it may have saved up: 1 a part, 1 a request, 2 a kilobyte."""
PART_BYTES = 4096
"""Most bytes that aiohttp gets at once. It answers all requests in them before the rate is looked at again."""
CONNECTIONS_PER_SECOND = 20.0
"""Rate at which new connections are read, beyond the first `MAX_CONNECTIONS`."""
TOKEN_HEADER = "X-AsyncRL-Token"
READS = ("GET", "HEAD")

STATIC_HEADERS = {
    "Server": "asyncrl",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class HttpServer:
    """Server that binds one address and serves its paths on the event loop that calls `start`.

    Args:
        host: address to bind; beyond loopback every request needs the token.
        port: 0 takes any free one.
        token: the secret, not empty.

    Attributes:
        url: `http://host:port` for a browser on this machine; "" before `start`.
        port: the bound port.
    """

    def __init__(self, *, host: str, port: int, token: str) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {port}")
        self.host = host
        self.port = port
        self.url = ""
        self._gate = Gate(host, token)
        self._keepalive_seconds = KEEPALIVE_SECONDS
        self._body_seconds = BODY_SECONDS
        self._new_connections = Budget(CONNECTIONS_PER_SECOND, MAX_CONNECTIONS)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    def routes(self) -> list[web.RouteDef]:
        """Paths of the server and their handlers."""
        raise NotImplementedError

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            PortInUse: the port is occupied (ASYNC007); the error names the run there, if there is one.
            ConfigurationError: the host cannot be bound for another reason.
        """
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._answer])
        app.on_response_prepare.append(_add_headers)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=LOGGER,
            keepalive_timeout=self._keepalive_seconds,
            lingering_time=0.1,
            shutdown_timeout=GOODBYE_SECONDS,
        )
        await self._runner.setup()
        try:
            self._listener = await self._listen()
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
        assert self._listener is not None and runner.server is not None
        self._listener.close()
        transports = [connection.transport for connection in runner.server.connections]
        await runner.cleanup()
        for transport in transports:
            if transport is not None:
                transport.abort()  # a peer that reads nothing holds a closed transport until its buffer is empty
        # A transport closes its socket in a later turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        server = self._runner.server if self._runner is not None else None
        return len(server.connections) if server is not None else 0

    def _protocol(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        assert self._runner is not None and self._runner.server is not None
        if self.connections >= MAX_CONNECTIONS:
            return _TurnedAway()
        return _PacedConnection(self._runner.server(), self._new_connections.spend(1.0))

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        # One address only: a name with two (localhost) would get two different free ports. IPv4 is preferred.
        try:
            found = await loop.getaddrinfo(self.host or "0.0.0.0", self.port, type=socket.SOCK_STREAM)
            address = min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0]
            return await loop.create_server(self._protocol, str(address), self.port, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise await port_in_use(self.host, self.port) from error
            raise ConfigurationError(
                f"the HTTP server cannot listen on {self.host} port {self.port}",
                facts={"host": self.host, "port": self.port, "reason": error.strerror or str(error)},
                fix="bind 127.0.0.1, or an address of this machine",
            ) from error

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request, read its body and call its handler; a refusal or failure gets a JSON body."""
        try:
            self._gate.check(request)
            await self._read_body(request)
            return await handler(request)
        except web.HTTPException as error:
            raise _in_json(error, _message(error, request)) from None
        except Exception:
            LOGGER.exception("a handler failed")
            message = "the handler failed; the logger asyncrl.server has the traceback"
            raise _in_json(web.HTTPInternalServerError(), message) from None

    async def _read_body(self, request: web.Request) -> None:
        """Read the whole body, which no handler needs. Raises `HTTPRequestEntityTooLarge` or `HTTPRequestTimeout`."""
        try:
            async with asyncio.timeout(self._body_seconds):
                await request.read()
        except TimeoutError:
            text = f"the body did not come within {self._body_seconds:g} s"
            raise web.HTTPRequestTimeout(text=text) from None


async def port_in_use(host: str, port: int) -> PortInUse:
    """Make the error for an occupied port; it names the run there if one answers within half a second."""
    return PortInUse(
        f"port {port} on {host} is in use",
        facts={"host": host, "port": port, "held by": await _holder(reachable(host), port)},
        fix="choose another port, or any free one: `--http auto`, of `asyncrl ui` `--port 0`",
    )


def reachable(host: str) -> str:
    """Host part of a URL that reaches, from this machine, a server bound to `host`."""
    address = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{address}]" if ":" in address else address


async def _holder(host: str, port: int) -> str:
    stranger = "another program"
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"http://{host}:{port}/healthz", allow_redirects=False) as answer:
                if answer.headers.get("Server") != "asyncrl":
                    return stranger
                if answer.status != 200:
                    return "a run of asyncrl that tells nothing without its token"
                health = await _decoded(answer)
            if health.get("service") != "asyncrl":
                return f"{health.get('service')}, pid {health.get('pid')}"
            async with session.get(f"http://{host}:{port}/stats", allow_redirects=False) as answer:
                run = await _decoded(answer)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return stranger
    return f"a run of asyncrl: {run.get('algo')} on {run.get('env')}, {run.get('state')}, pid {health.get('pid')}"


async def _decoded(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    return msgspec.json.decode(await answer.content.read(MAX_ANSWER_BYTES), type=dict[str, Any])


class Budget:
    """Costs that may be spent: `per_second` of them are added, up to `at_once`, which it begins with."""

    def __init__(self, per_second: float, at_once: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._at_once, self._now = per_second, at_once, now
        self._left, self._then = at_once, now()

    def spend(self, costs: float) -> float:
        """Spend `costs`, into debt if need be; returns the seconds until the debt is paid, 0 without one."""
        now = self._now()
        self._left = min(self._at_once, self._left + (now - self._then) * self._per_second) - costs
        self._then = now
        return max(0.0, -self._left / self._per_second)


class _PacedConnection(asyncio.Protocol):
    """Protocol of one connection, between the transport and aiohttp's protocol: limits the rate at which it is read.

    What has been received beyond the rate is kept, at most what the transport reads at once, and nothing more is read.

    Args:
        inner: aiohttp's protocol.
        wait_seconds: time before anything is read.
    """

    def __init__(self, inner: web.RequestHandler, wait_seconds: float) -> None:
        self._inner, self._wait_seconds = inner, wait_seconds
        self._budget = Budget(READ_COSTS_PER_SECOND, READ_COSTS_AT_ONCE)
        self._unread = memoryview(b"")
        self._resting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is no subclass of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)
        if self._wait_seconds > 0.0:
            self._rest(self._wait_seconds)

    def data_received(self, data: bytes) -> None:
        self._unread = memoryview(bytes(self._unread) + data)
        if self._resting is None:
            self._pass_on()
        else:
            self._transport.pause_reading()  # again: aiohttp has resumed it

    def _pass_on(self) -> None:
        """Pass on what has been received, part by part, until the rate is exceeded."""
        self._resting = None
        while self._unread and not self._transport.is_closing():
            part, self._unread = bytes(self._unread[:PART_BYTES]), self._unread[PART_BYTES:]
            self._inner.data_received(part)
            wait = self._budget.spend(1.0 + part.count(b"\r\n\r\n") + len(part) / 512)
            if wait > 0.0:
                self._rest(wait)
                return
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _rest(self, seconds: float) -> None:
        self._transport.pause_reading()
        self._resting = asyncio.get_running_loop().call_later(seconds, self._pass_on)

    def eof_received(self) -> bool:
        """Keep the connection open, for answers, while something is unread."""
        self._inner.eof_received()
        return bool(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread = memoryview(b"")
        if self._resting is not None:
            self._resting.cancel()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _TurnedAway(asyncio.Protocol):
    """Protocol of a connection beyond `MAX_CONNECTIONS`, which is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is no subclass of asyncio.Transport.
        cast(asyncio.Transport, transport).abort()


def _in_json(error: web.HTTPException, message: str) -> web.HTTPException:
    """Give `error` the JSON body of a refusal; its headers stay."""
    error.text = msgspec.json.encode({"error": {"status": error.status, "message": message}}).decode()
    error.content_type = "application/json"
    return error


def _message(error: web.HTTPException, request: web.Request) -> str:
    if error is not request.match_info.http_exception:
        return error.text or error.reason
    return (
        f"there is no {request.path}"
        if error.status == 404
        else f"{request.path} does not take {request.method}"
    )


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(STATIC_HEADERS)


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Checks of one server, in this order: host 421, origin 403, token 401, size 413.

    Hosts accepted on loopback: `localhost` and loopback addresses with any port (a tunnel may change it); this prevents
    DNS rebinding. Beyond loopback: any address literal, this machine's name and the bound name, and every read needs
    the token. Any other host, such as a reverse proxy's, is accepted only with the token, which a rebound page does not
    have.
    """

    def __init__(self, host: str, token: str) -> None:
        if not token:
            raise ValueError("token must not be empty, got ''")
        self._local = is_loopback(host)
        self._names = (
            {"localhost"} if self._local else {"localhost", host.lower(), socket.gethostname().lower()}
        )
        self._token = token.encode()

    def check(self, request: web.Request) -> None:
        """Raise `web.HTTPException` unless `request` passes every check."""
        self._check_host(request)
        self._check_origin(request)
        self._check_token(request)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)

    def _check_host(self, request: web.Request) -> None:
        hosts = request.headers.getall("Host", [])
        if len(hosts) == 1 and (self._knows(hosts[0]) or self._is_own(_given_token(request, query=True))):
            return
        named = printable(", ".join(hosts)) or "(none)"  # its bytes may be no text
        raise web.HTTPMisdirectedRequest(
            text=f"this server answers for the host {named} with the token only: add ?token=..."
        )

    def _knows(self, host: str) -> bool:
        name = _without_port(host.strip().lower())
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._local

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        own = {f"{scheme}://{request.headers['Host'].strip().lower()}" for scheme in ("http", "https")}
        if origin is not None and origin.lower() not in own:
            raise web.HTTPForbidden(text=f"requests from the origin {printable(origin)} are refused")
        # An <img> or <script> of a foreign page sends no Origin, but browsers report the site in Sec-Fetch-*.
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site in ("cross-site", "same-site") and request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPForbidden(text="requests from other sites are refused")

    def _check_token(self, request: web.Request) -> None:
        read = request.method in READS
        unmatched = request.match_info.http_exception is not None
        if self._local and (read or unmatched):
            return
        given = _given_token(request, query=read)
        if not self._is_own(given):
            text = "this needs the token" if given is None else "this is not the token"
            text += " of the address that was printed"
            raise web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": 'Bearer realm="asyncrl"'})

    def _is_own(self, given: str | None) -> bool:
        """Whether `given` is the token, compared in constant time."""
        return given is not None and hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), self._token
        )


def _given_token(request: web.Request, *, query: bool) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    if TOKEN_HEADER in request.headers:
        return request.headers[TOKEN_HEADER]
    return request.query.get("token") if query else None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
