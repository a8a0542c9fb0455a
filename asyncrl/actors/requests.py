"""Open requests to the fork server, each with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

READY = -1
"""Tag of the implicit request to every server: to import everything and send "ready"."""
_CHECK_SECONDS = 0.25


@dataclass(frozen=True)
class ChildExit:
    """Exit of a forked process.

    Attributes:
        pid: its process id.
        status: exit status; the negative signal number if a signal killed it.
        max_rss_bytes: its peak resident memory, 0 if unknown.
        server_lost: the fork server died, and this process with it.
    """

    pid: int
    status: int
    max_rss_bytes: int
    server_lost: bool = False


OnExit = Callable[[ChildExit], None]
"""Callback of a forked process for its exit."""


@dataclass
class Request:
    """One request.

    Attributes:
        limit_seconds: time limit, counted while this process is awake and no frame arrives from the server.
        on_exit: exit callback of the process that is to be forked; None for other requests.
        waiters: futures of the answer.
        waited_seconds: time so far, counted likewise.
    """

    limit_seconds: float
    on_exit: OnExit | None = None
    waiters: list[asyncio.Future[dict[str, Any]]] = field(default_factory=list)
    waited_seconds: float = 0.0

    def answer(self, frame: dict[str, Any]) -> bool:
        """Set its futures; return whether one was still waiting."""
        waiting = self._waiting()
        for waiter in waiting:
            waiter.set_result(frame)
        return bool(waiting)

    def fail(self, error: Exception) -> None:
        """Set the error in its futures."""
        for waiter in self._waiting():
            waiter.set_exception(error)

    def _waiting(self) -> list[asyncio.Future[dict[str, Any]]]:
        return [w for w in self.waiters if not w.done() and not w.get_loop().is_closed()]


class Requests:
    """Open requests to a server, by tag; at its start the only one is `READY`.

    Args:
        ready_seconds: time limit of `READY`.
    """

    def __init__(self, ready_seconds: float) -> None:
        self._open = {READY: Request(ready_seconds)}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, tag: int, request: Request) -> None:
        """Add a request."""
        self._open[tag] = request

    def pop(self, tag: int) -> Request:
        """Remove a request that was answered, and return it."""
        return self._open.pop(tag)

    def wait_for(self, tag: int) -> asyncio.Future[dict[str, Any]]:
        """Return a future of the answer, on the running loop."""
        waiter: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[tag].waiters.append(waiter)
        return waiter

    def restart_limits(self) -> None:
        """Reset the waiting times after a frame: the server is alive and answers in order."""
        for request in self._open.values():
            request.waited_seconds = 0.0

    def overdue(self, elapsed_seconds: float) -> float | None:
        """Add `elapsed_seconds` to the waiting times; return the limit of a request that exceeds it, or None."""
        for request in self._open.values():
            request.waited_seconds += elapsed_seconds
        limits = (r.limit_seconds for r in self._open.values() if r.waited_seconds > r.limit_seconds)
        return next(limits, None)

    def look_seconds(self) -> float:
        """Interval for calls of `overdue` while there are requests, in seconds."""
        return min(_CHECK_SECONDS, min(request.limit_seconds for request in self._open.values()) / 4)

    def fail(self, error: Exception) -> None:
        """Remove all requests and set the error in their futures."""
        requests, self._open = self._open, {}
        for request in requests.values():
            request.fail(error)
