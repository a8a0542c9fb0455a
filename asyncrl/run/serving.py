"""Live page of a run: its server, token, addresses and `http.json`."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.show.metrics import Snapshot
from asyncrl.storage.run_directory import RunDirectory, refuse_unwritable

TOKEN_BYTES = 15
"""Random bytes of the token. They make 20 characters, so that the address fits 50 columns."""


@dataclass(frozen=True)
class Served:
    """Callbacks of the live page: its content and the actions of its buttons; see `RunServer`."""

    snapshot: Callable[[], Snapshot]
    options: Callable[[], dict[str, Any]]
    stop: Callable[[], None]
    checkpoint: Callable[[], Coroutine[Any, Any, str]]
    ready: Callable[[], bool]


async def serve(
    config: TrainerConfig, served: Served, directory: RunDirectory, stack: contextlib.AsyncExitStack
) -> tuple[str, str] | None:
    """Serve the page until `stack` closes it; returns its address without and with the token, None if `http` is off."""
    if config.http == "off":
        return None
    from asyncrl.server import (  # imports aiohttp, which a run without a page does not need
        RunServer,
        write_http_file,
    )

    token = secrets.token_urlsafe(TOKEN_BYTES)
    server = RunServer(
        snapshot=served.snapshot,
        config=served.options,
        stop=served.stop,
        checkpoint=served.checkpoint,
        ready=served.ready,
        host=config.host,
        port=0 if config.http == "auto" else int(config.http),
        token=token,
    )
    await server.start()
    stack.push_async_callback(server.close)
    if directory.path is not None:
        with refuse_unwritable(directory.path):
            write_http_file(directory.path / "http.json", url=server.url, pid=os.getpid(), token=token)
    return server.url, f"{server.url}/#token={token}"
