"""Open requests to the fork server, each with a time limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

READY = -1
"""Tag of the implicit request to every server: to import everything and send "ready"."""
_LOOK_SECONDS = 0.25


@dataclass
class _Request:
    """One request.

    Attributes:
        limit_seconds: time limit, counted while this process is awake and no frame arrives from the server.
        waiters: futures of the answer.
        waited_seconds: time so far, counted likewise.
    """

    limit_seconds: float
    waiters: list[asyncio.Future[dict[str, Any]]] = field(default_factory=list)
    waited_seconds: float = 0.0


class Requests:
    """Open requests to a server, by tag; at its start the only one is `READY`.

    Args:
        ready_seconds: time limit of `READY`.
    """

    def __init__(self, ready_seconds: float) -> None:
        self._open = {READY: _Request(ready_seconds)}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, tag: int, limit_seconds: float) -> None:
        """Add a request."""
        self._open[tag] = _Request(limit_seconds)

    def wait_for(self, tag: int) -> asyncio.Future[dict[str, Any]]:
        """Return a future of the answer, on the running loop."""
        waiter: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[tag].waiters.append(waiter)
        return waiter

    def answer(self, tag: int, frame: dict[str, Any]) -> bool:
        """Remove a request and set its futures; return whether one was still waiting."""
        waiters = [waiter for waiter in self._open.pop(tag).waiters if _can_hear(waiter)]
        for waiter in waiters:
            waiter.set_result(frame)
        return bool(waiters)

    def heard(self) -> None:
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
        return min(_LOOK_SECONDS, min(request.limit_seconds for request in self._open.values()) / 4)

    def fail(self, error: Exception) -> None:
        """Remove all requests and set the error in their futures."""
        requests, self._open = self._open, {}
        for request in requests.values():
            for waiter in request.waiters:
                if _can_hear(waiter):
                    waiter.set_exception(error)


def _can_hear(waiter: asyncio.Future[dict[str, Any]]) -> bool:
    return not waiter.done() and not waiter.get_loop().is_closed()
