"""HTTP server of a run: page, numbers and event streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from asyncrl.server.feed import SnapshotFeed
from asyncrl.server.listener import GOODBYE_SECONDS, HttpServer
from asyncrl.server.routes import Routes
from asyncrl.show.metrics import Snapshot


class RunServer(HttpServer):
    """Server of one run on the event loop that calls `start`.

    Every callable is called on that loop and must not block.

    Args:
        snapshot: returns the newest snapshot; called at most five times a second, whatever the number of clients.
        config: returns the run's options for `/config`.
        stop: asks the run to stop.
        checkpoint: writes a checkpoint and returns its path; may take long.
        ready: whether training steps have arrived.
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
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
    ) -> None:
        self._feed = SnapshotFeed(snapshot)
        self._routes = Routes(self._feed, config=config, stop=stop, checkpoint=checkpoint, ready=ready)
        self._ticker: asyncio.Task[None] | None = None
        super().__init__(self._routes.register, host=host, port=port, token=token)

    async def start(self) -> None:
        """Bind and serve; see `HttpServer.start`."""
        await super().start()
        self._ticker = asyncio.create_task(self._feed.run(), name="asyncrl-http-ticker")

    async def end_streams(self) -> None:
        """Send a last snapshot to every event stream and end it, within half a second."""
        assert self._ticker is not None
        self._ticker.cancel()
        await asyncio.wait([self._ticker])
        self._feed.close()
        if self._routes.streams:
            _, stuck = await asyncio.wait(set(self._routes.streams), timeout=GOODBYE_SECONDS)
            for stream in stuck:
                stream.cancel()

    async def close(self) -> None:
        """Close the server and drop its references to the run; idempotent."""
        await super().close()
        self._routes.let_go()
