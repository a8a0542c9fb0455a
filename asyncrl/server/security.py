"""Checks of every request before its handler runs: host, origin, token, size."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

LOGGER = logging.getLogger("asyncrl.server")

MAX_BODY_BYTES = 64 * 1024
TOKEN_HEADER = "X-AsyncRL-Token"
READS = ("GET", "HEAD")

STATIC_HEADERS = {
    "Server": "asyncrl",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(Exception):
    """Exception that ends a request with `status` and a JSON body."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


def refusal_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Response to a refused request."""
    body = msgspec.json.encode({"error": {"status": status, "message": message}})
    return web.Response(
        status=status, body=body, content_type="application/json", charset="utf-8", headers=headers
    )


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

    Args:
        host: the address that the server binds.
        token: the run's token, not empty.
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
        """Raise Refusal unless `request` passes every check."""
        self._check_host(request)
        self._check_origin(request)
        self._check_token(request)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise Refusal(413, f"a body may have {MAX_BODY_BYTES} bytes, got {request.content_length}")

    def _check_host(self, request: web.Request) -> None:
        hosts = request.headers.getall("Host", [])
        if len(hosts) == 1 and (self._knows(hosts[0]) or self._is_own(_given_token(request, query=True))):
            return
        named = ", ".join(hosts) or "(none)"
        raise Refusal(
            421, f"this server answers for the host {named} with the run's token only: add ?token=..."
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
            raise Refusal(403, f"requests from the origin {origin} are refused")
        # An <img> or <script> of a foreign page sends no Origin, but browsers report the site in Sec-Fetch-*.
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site in ("cross-site", "same-site") and request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise Refusal(403, "requests from other sites are refused")

    def _check_token(self, request: web.Request) -> None:
        read = request.method in READS
        unmatched = request.match_info.http_exception is not None
        if self._local and (read or unmatched):
            return
        given = _given_token(request, query=read)
        if given is None:
            raise Refusal(401, "this needs the run's token", {"WWW-Authenticate": 'Bearer realm="asyncrl"'})
        if not self._is_own(given):
            raise Refusal(401, "this is not the run's token", {"WWW-Authenticate": 'Bearer realm="asyncrl"'})

    def _is_own(self, given: str | None) -> bool:
        """Whether `given` is the run's token, compared in constant time."""
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


async def read_body(request: web.Request, *, timeout_seconds: float = 5.0) -> bytes:
    """Read the whole body. Raises `web.HTTPException` 413 if it is too long, Refusal 408 if it is too slow."""
    try:
        async with asyncio.timeout(timeout_seconds):
            body = await request.read()
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {timeout_seconds:g} s") from None
    if len(body) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(body))
    return body


def answer_in_json(gate: Gate) -> Middleware:
    """Make a middleware that checks every request with `gate` and answers refusals and failures in JSON."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            gate.check(request)
            return await handler(request)
        except Refusal as refusal:
            return refusal_response(refusal.status, str(refusal), refusal.headers)
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return refusal_response(error.status, _message(error, request), allow)
        except Exception:
            LOGGER.exception("a handler failed")
            return refusal_response(500, "the handler failed; the run's log has the traceback")

    return middleware


def _message(error: web.HTTPException, request: web.Request) -> str:
    if error.status == 404:
        return f"there is no {request.path}"
    if error.status == 405:
        return f"{request.path} does not take {request.method}"
    if error.status == 413:
        return f"a body may have {MAX_BODY_BYTES} bytes"
    return error.reason
