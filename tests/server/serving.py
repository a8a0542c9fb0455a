"""A server on its own thread, tested through plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import uvloop
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS

from asyncrl.server.run_server import RunServer
from asyncrl.show.metrics import Snapshot

# libuv keeps one pipe for the life of the process; opened now, it is nobody's leak.
uvloop.new_event_loop().close()

TOKEN = "the-run's-token"


@dataclass
class Answer:
    """One HTTP answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body as strict JSON."""
        return json.loads(self.body, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


@dataclass
class Run:
    """Fake run of the server: its state is set by the test, and it records calls."""

    snapshot: Snapshot = field(default_factory=make_snapshot)
    fails: Exception | None = None
    config: dict[str, Any] = field(default_factory=lambda: {"env": "CartPole-v1", "dqn": {"n_step": 3}})
    ready: bool = True
    taken: int = 0
    stops: int = 0
    checkpoints: int = 0
    checkpoint_fails: Exception | None = None
    checkpoint_gate: threading.Event = field(default_factory=threading.Event)

    def take(self) -> Snapshot:
        self.taken += 1
        if self.fails is not None:
            raise self.fails
        return self.snapshot

    def stop(self) -> None:
        self.stops += 1

    async def checkpoint(self) -> str:
        self.checkpoints += 1
        while not self.checkpoint_gate.is_set():
            await asyncio.sleep(0.005)
        if self.checkpoint_fails is not None:
            raise self.checkpoint_fails
        return "runs/x/checkpoints/latest"


class ServerThread:
    """`RunServer` on its own loop and thread; the test calls these methods."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, loops: str = "asyncio") -> None:
        self.run = Run()
        self.run.checkpoint_gate.set()
        self._factory = uvloop.new_event_loop if loops == "uvloop" else asyncio.new_event_loop
        self.loop = self._factory()
        self._thread = threading.Thread(target=self._serve, name="test-server", daemon=True)
        self._thread.start()
        self.server = RunServer(
            snapshot=self.run.take,
            config=lambda: self.run.config,
            stop=self.run.stop,
            checkpoint=self.run.checkpoint,
            ready=lambda: self.run.ready,
            host=host,
            port=port,
            token=TOKEN,
        )

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_SECONDS)

    def show(self, snapshot: Snapshot) -> None:
        """Make this the run's snapshot, also if a tick has just taken the one before."""

        async def replace() -> None:
            self.run.snapshot = snapshot
            self.server._feed._reading = None

        self.call(replace())

    def start(self) -> ServerThread:
        self.call(self.server.start())
        return self

    def close(self) -> None:
        """Close the server, then its loop and thread."""
        self.call(self.server.close())
        self.call(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self.loop.close()

    @property
    def port(self) -> int:
        return self.server.port

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        host: str | None = None,
        body: Any = None,
        token: str | None = None,
        chunked: bool = False,
    ) -> Answer:
        """Send one request on its own connection."""
        given = dict(headers or {})
        if host is not None:
            given["Host"] = host
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, path, body=body, headers=given, encode_chunked=chunked)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def open(self, data: bytes = b"") -> socket.socket:
        """A plain connection on which `data` was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)
        connection.sendall(data)
        return connection

    def stream(self) -> EventStream:
        """An open event stream whose head has been read."""
        return EventStream(self)


def read_all(connection: socket.socket) -> bytes:
    """All data until the other side closes the connection in any way."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


class EventStream:
    """The client side of `/events`."""

    def __init__(self, server: ServerThread) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
        self._connection.request("GET", "/events")
        self.response = self._connection.getresponse()

    def event(self) -> str:
        """The next event without its blank line; "" at the end of the stream."""
        lines = []
        while line := self.response.readline().decode():
            if line == "\n":
                break
            lines.append(line)
        return "".join(lines).rstrip("\n")

    def snapshot(self) -> str:
        """The next event that is a snapshot."""
        while not (event := self.event()).startswith("data: "):
            assert event, "the stream has ended"
        return event

    def close(self) -> None:
        self.response.close()
        self._connection.close()
