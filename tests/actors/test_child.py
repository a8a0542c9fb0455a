"""A child as the main process holds it, with a fork server that only takes notes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from asyncrl.actors.child import Child


class Server:
    """Forks nothing; the process it names never answers and never ends."""

    def __init__(self) -> None:
        self.signals: list[tuple[int, int]] = []

    async def fork(self, role: str, payload: bytes, fds: Any, **options: Any) -> int:
        return 2**22 + 1

    def signal(self, pid: int, number: int, group: bool = True) -> None:
        self.signals.append((pid, number))


def test_ending_that_is_cancelled_leaves_neither_process_nor_descriptor() -> None:
    """A task that is cancelled while it ends its child: what a task group does to it where another task fails."""

    async def story() -> None:
        server = Server()
        child = Child(server, "evaluator")  # type: ignore[arg-type]
        await child.start(b"", {})
        ending = asyncio.create_task(child.end(patience_seconds=60))
        while not child._waiters:
            await asyncio.sleep(0)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending
        assert server.signals == [(2**22 + 1, signal.SIGKILL)]
        assert child._channel.fileno() == -1 and child._theirs.fileno() == -1 and child._stack.closed

    asyncio.run(story())
