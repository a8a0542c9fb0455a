"""HTTP server of a run: its page, its metrics and two commands.

| path | what | token |
|---|---|---|
| `GET /` | one page without external resources | when bound beyond loopback |
| `GET /stats` | strict JSON: the newest snapshot's fields, and its metrics by public name | same |
| `GET /history` | columns of up to 600 moments since the start, all evaluations, for charts | same |
| `GET /events` | server-sent events: a snapshot a second, then `event: end` | same |
| `GET /metrics` | Prometheus text format | same |
| `GET /config` | the run's options | same |
| `GET /film` | the film of the last evaluation (MP4), 204 without one | same |
| `GET /healthz`, `/readyz` | 200 while the loop answers / once training steps arrive, else 503 | same |
| `POST /stop` | 202; the run stops as after one Ctrl-C | always |
| `POST /checkpoint` | 200 with the path of a new checkpoint | always |

The token is sent as `Authorization: Bearer TOKEN` or `X-AsyncRL-Token: TOKEN`; for a GET also as `?token=TOKEN` in the
URL.

Every refusal has a JSON body, `{"error": {"status": ..., "message": ...}}`: 401 token, 403 origin, 404 path, 405
method, 408 slow body, 413 body over 64 KB, 421 host, 503 too many streams. What is not HTTP, or has too long a head,
gets aiohttp's plain 400.

Snapshots are taken at most five times a second, whatever the number of clients, encoded once, and kept as a thinned
history.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.errors import AsyncRLError
from asyncrl.interfaces import Metrics
from asyncrl.server.http_server import GOODBYE_SECONDS, LOGGER, HttpServer
from asyncrl.server.pages import RUN_PAGE, page_response
from asyncrl.show.metrics import BY_KEY, UNMEASURED, EvaluationResult, Snapshot, flat

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
MAX_STREAMS = 20
WRITE_SECONDS = 5.0
"""Time limit for an event stream to accept a snapshot."""
FRESH_SECONDS = 0.2
TICK_SECONDS = 1.0
"""Interval at which streams get a snapshot and the history grows."""
HISTORY_POINTS = 600

CHARTED = {key: metric.name for key, metric in BY_KEY.items() if metric.charted}
"""Public name of each column of the history."""


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
        error, whose traceback holds the rings. So would the ticker's cancellation, whose traceback has the frames below
        it in Python 3.13.
        """
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.cancel()
            await asyncio.wait([ticker])
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
        return _json(msgspec.json.encode(_with_text_keys(self._config()), enc_hook=_as_text))

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
            # Its callers may have gone, and asyncio prints the traceback of an error that nobody has retrieved.
            self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((self._writing,))
            path = self._writing.result()
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


@dataclass(frozen=True)
class Reading:
    """One snapshot with its encodings, each computed at most once."""

    snapshot: Snapshot

    @cached_property
    def json(self) -> bytes:
        """Strict JSON on one line: the fields, then the metrics by public name; NaN and infinity are null.

        It has only the last and the best evaluation; `/history` and `/events` have all.
        """
        snapshot, last = self.snapshot, self.snapshot.evaluation
        return msgspec.json.encode(snapshot.fields() | flat(snapshot) | (flat(last) if last else {}))

    @cached_property
    def prometheus(self) -> bytes:
        """Prometheus text format 0.0.4."""
        # Imported at the first request: a run that is not scraped does not load the client.
        from asyncrl.server.prometheus import prometheus_text

        return prometheus_text(self.snapshot)


class SnapshotFeed:
    """Source of snapshots for all clients of the server; event-loop thread only.

    Args:
        take: returns the newest snapshot; called at most five times a second.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._tick_seconds = TICK_SECONDS
        self._reading: Reading | None = None
        self._taken_at = float("-inf")
        self._tick: asyncio.Future[None] | None = None
        self._history: list[tuple[Metrics, dict[str, float]]] = []
        self._evaluations: tuple[EvaluationResult, ...] = ()
        self._stride = 1
        self._ticks = 0
        self._failing = False
        self.closed = False

    def current(self) -> Reading:
        """Return a snapshot at most `FRESH_SECONDS` old. Raises what `take` raises."""
        now = asyncio.get_running_loop().time()
        if self._reading is None or now - self._taken_at >= FRESH_SECONDS:
            snapshot = self._take()
            if self._reading is None or self._reading.snapshot is not snapshot:
                self._reading = Reading(snapshot)
            self._taken_at = now
        return self._reading

    async def run(self) -> None:
        """Extend the history and wake the streams at every tick until cancelled; a failing `take` is logged once."""
        while True:
            try:
                self._remember(self.current().snapshot)
                self._failing = False
            except Exception:
                if not self._failing:
                    LOGGER.exception("no snapshot for the page")
                self._failing = True
            self._wake()
            await asyncio.sleep(self._tick_seconds)

    async def next_tick(self) -> None:
        """Wait for the next tick, or for `close`."""
        if not self.closed:
            if self._tick is None:
                self._tick = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._tick)

    def close(self) -> None:
        """Wake every stream for the last time; the next call of `current` takes a new snapshot."""
        self.closed = True
        self._taken_at = float("-inf")
        self._wake()

    def let_go(self) -> None:
        """Drop the reference to the run; the last snapshot remains available."""
        if self._reading is not None:
            last = self._reading.snapshot
            self._take = lambda: last

    def history(self) -> bytes:
        """JSON object of columns of equal lengths, oldest first, and `evaluations`, all of them.

        The columns are `CHARTED`; under `train` one for each further number of the algorithm's updates; and under
        `logged` one for each name that the user logs, with the newest value at each moment.
        """
        moments, logs = [metrics for metrics, _ in self._history], [logged for _, logged in self._history]
        columns = {key: [moment[name] for moment in moments] for key, name in CHARTED.items()}
        further = dict.fromkeys(name for moment in moments for name in moment if name not in UNMEASURED)
        train = {name: [moment.get(name) for moment in moments] for name in further}
        logged = {name: [at.get(name) for at in logs] for name in (logs[-1] if logs else ())}
        return msgspec.json.encode(
            {**columns, "train": train, "logged": logged, "evaluations": self._evaluations}
        )

    def _remember(self, snapshot: Snapshot) -> None:
        self._evaluations = snapshot.evaluations
        if self._ticks % self._stride == 0:
            self._history.append((snapshot.metrics, snapshot.logged))
        self._ticks += 1
        if len(self._history) > HISTORY_POINTS:
            # Halve the resolution instead of dropping the oldest moments.
            del self._history[1::2]
            self._stride *= 2

    def _wake(self) -> None:
        if self._tick is not None and not self._tick.done():
            self._tick.set_result(None)
        self._tick = None


async def _send(response: web.StreamResponse, limit_seconds: float, data: bytes) -> None:
    async with asyncio.timeout(limit_seconds):
        await response.write(data)


async def _no_checkpoint() -> str:
    return ""


def _json(body: bytes, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def _with_text_keys(value: Any) -> Any:
    """The value with texts as keys of its mappings, which in keyword arguments of an environment are any literals.

    Bytes of a path that are no UTF-8 are escaped.
    """
    if isinstance(value, Mapping):
        return {
            _with_text_keys(key if isinstance(key, str) else repr(key)): _with_text_keys(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _as_text(value: object) -> str:
    return os.fspath(value) if isinstance(value, PurePath) else str(value)
