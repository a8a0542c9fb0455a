"""HTTP server of a run: page, numbers, event streams and commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.errors import AsyncRLError
from asyncrl.server.feed import SnapshotFeed
from asyncrl.server.http_server import GOODBYE_SECONDS, HttpServer
from asyncrl.server.pages import RUN_PAGE, page_response
from asyncrl.show.metrics import Snapshot

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
MAX_STREAMS = 20
WRITE_SECONDS = 5.0
"""Time limit for an event stream to accept a snapshot."""


class RunServer(HttpServer):
    """Server of one run on the event loop that calls `start`.

    Every callable is called on that loop and must not block.

    Args:
        snapshot: returns the newest snapshot; called at most five times a second, whatever the number of clients.
        config: returns the run's options for `/config`; a value that is not JSON is shown by `str`.
        stop: asks the run to stop.
        checkpoint: writes a checkpoint and returns its path; may take long; requests during a write share its result.
        ready: whether training steps have arrived.
        film: returns the file of the newest film of an evaluation, which may not be there; None without films.
        host, port, token: see `HttpServer`.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        config: Callable[[], dict[str, Any]],
        stop: Callable[[], None],
        checkpoint: Callable[[], Coroutine[Any, Any, str]],
        ready: Callable[[], bool],
        film: Callable[[], Path | None] = lambda: None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
    ) -> None:
        super().__init__(host=host, port=port, token=token)
        self._feed = SnapshotFeed(snapshot)
        self._config = config
        self._stop = stop
        self._checkpoint = checkpoint
        self._ready, self._film = ready, film
        self._write_seconds = WRITE_SECONDS
        self._writing: asyncio.Task[str] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[Any]] = set()

    def routes(self) -> list[web.RouteDef]:
        """See `HttpServer.routes`."""
        return [
            web.get("/", self.page),
            web.get("/stats", self.stats),
            web.get("/history", self.history),
            web.get("/metrics", self.metrics),
            web.get("/config", self.config),
            web.get("/film", self.film),
            web.get("/healthz", self.healthz),
            web.get("/readyz", self.readyz),
            web.get("/events", self.events, allow_head=False),
            web.post("/stop", self.stop),
            web.post("/checkpoint", self.checkpoint),
        ]

    async def start(self) -> None:
        """Bind and serve; see `HttpServer.start`."""
        await super().start()
        self._ticker = asyncio.create_task(self._feed.run(), name="asyncrl-http-ticker")

    async def close(self) -> None:
        """Send a last snapshot to every event stream, close, and drop the references to the run; idempotent.

        aiohttp caches the handlers of the last applications in its module: a failed run would be kept alive with its
        error, whose traceback holds the rings.
        """
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
        self._feed.close()
        if self._streams:
            _, stuck = await asyncio.wait(set(self._streams), timeout=GOODBYE_SECONDS)
            for stream in stuck:
                stream.cancel()
        await super().close()
        self._feed.let_go()
        self._config, self._stop, self._ready = dict, lambda: None, lambda: False
        self._film = lambda: None
        self._checkpoint = _no_checkpoint

    async def page(self, request: web.Request) -> web.Response:
        """The page."""
        return page_response(RUN_PAGE)

    async def stats(self, request: web.Request) -> web.Response:
        """The newest snapshot."""
        return _json(self._feed.current().json)

    async def history(self, request: web.Request) -> web.Response:
        """Columns for the page's charts."""
        return _json(self._feed.history())

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=self._feed.current().prometheus, headers={"Content-Type": PROMETHEUS_TEXT})

    async def config(self, request: web.Request) -> web.Response:
        """The options."""
        return _json(msgspec.json.encode(self._config(), enc_hook=_as_text))

    async def film(self, request: web.Request) -> web.Response:
        """The newest film of an evaluation, an MP4; 204 without one, which no browser reports as an error."""
        path = self._film()
        try:
            video = b"" if path is None else await asyncio.to_thread(path.read_bytes)
        except OSError:
            video = b""
        if not video:
            return web.Response(status=204)
        return web.Response(body=video, content_type="video/mp4")

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the event loop answers."""
        return _json(msgspec.json.encode({"ok": True, "service": "asyncrl", "pid": os.getpid()}))

    async def readyz(self, request: web.Request) -> web.Response:
        """200 once training steps arrive, until the run ends."""
        ready = self._ready() and not self._feed.closed
        return _json(b'{"ready":true}' if ready else b'{"ready":false}', status=200 if ready else 503)

    async def stop(self, request: web.Request) -> web.Response:
        """Ask the run to stop."""
        self._stop()
        return _json(b'{"stopping":true}', status=202)

    async def checkpoint(self, request: web.Request) -> web.Response:
        """Write a checkpoint; requests during the write share its result, and no disconnection cancels it."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._checkpoint(), name="asyncrl-http-checkpoint")
        try:
            path = await asyncio.shield(self._writing)
        except AsyncRLError as error:
            raise web.HTTPInternalServerError(text=str(error)) from None
        return _json(msgspec.json.encode({"path": os.fspath(path)}))

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream a snapshot immediately and then every second; at the end a last one and `event: end`.

        `event: evaluations` precedes each snapshot with new evaluations, and the first snapshot with all so far.
        `first` is the index of the first of `evaluations`: those from there on are replaced. It is 0 again after a run
        has thinned its evaluations.
        """
        if len(self._streams) >= MAX_STREAMS:
            text = f"at most {MAX_STREAMS} event streams, all are taken"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "10"})
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            return await self._stream(request)
        finally:
            self._streams.discard(task)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        try:
            await response.prepare(request)
            await _send(response, self._write_seconds, b"retry: 2000\n\n")
            known = 0
            while True:
                event, known = self._event(known)
                await _send(response, self._write_seconds, event)
                if self._feed.closed:
                    break
                await self._feed.next_tick()
            await _send(response, self._write_seconds, b"event: end\ndata: {}\n\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        return response

    def _event(self, known: int) -> tuple[bytes, int]:
        """Next event for a stream that has `known` evaluations, and the stream's number of evaluations after it."""
        try:
            reading = self._feed.current()
            evaluations = reading.snapshot.evaluations
            text = b"data: " + reading.json + b"\n\n"
            known = known if known <= len(evaluations) else 0
            if len(evaluations) > known:
                news = msgspec.json.encode({"first": known, "evaluations": evaluations[known:]})
                text = b"event: evaluations\ndata: " + news + b"\n\n" + text
        except Exception:
            # The feed logs it; the stream goes on.
            return b": no snapshot\n\n", known
        return text, len(evaluations)


async def _send(response: web.StreamResponse, limit_seconds: float, data: bytes) -> None:
    async with asyncio.timeout(limit_seconds):
        await response.write(data)


async def _no_checkpoint() -> str:
    return ""


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def _as_text(value: object) -> str:
    return os.fspath(value) if isinstance(value, PurePath) else str(value)
