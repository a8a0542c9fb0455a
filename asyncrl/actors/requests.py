"""Requests to the fork server that it has not answered yet, each with a limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

READY = -1
"""Tag of what every server is asked for without words: to import everything and say so."""
_LOOK_SECONDS = 0.25


@dataclass
class _Request:
    """One request.

    Attributes:
        limit_seconds: how long it may take, in time that this process was awake and the server said nothing.
        waiters: who waits for the answer.
        waited_seconds: how long it has taken.
    """

    limit_seconds: float
    waiters: list[asyncio.Future[dict[str, Any]]] = field(default_factory=list)
    waited_seconds: float = 0.0


class Requests:
    """What a server has not answered yet, by tag; from its start on that is `READY`.

    Args:
        ready_seconds: limit of `READY`.
    """

    def __init__(self, ready_seconds: float) -> None:
        self._open = {READY: _Request(ready_seconds)}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, tag: int, limit_seconds: float) -> None:
        """Begin one."""
        self._open[tag] = _Request(limit_seconds)

    def wait_for(self, tag: int) -> asyncio.Future[dict[str, Any]]:
        """The answer to come, on the running loop."""
        waiter: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[tag].waiters.append(waiter)
        return waiter

    def answer(self, tag: int, frame: dict[str, Any]) -> bool:
        """End one; returns whether anybody still waited for it."""
        waiters = [waiter for waiter in self._open.pop(tag).waiters if _can_hear(waiter)]
        for waiter in waiters:
            waiter.set_result(frame)
        return bool(waiters)

    def heard(self) -> None:
        """Count anew: the server lives, and answers in order."""
        for request in self._open.values():
            request.waited_seconds = 0.0

    def overdue(self, elapsed_seconds: float) -> float | None:
        """Count so much more silence; returns the limit of one that has waited longer than that."""
        for request in self._open.values():
            request.waited_seconds += elapsed_seconds
        limits = (r.limit_seconds for r in self._open.values() if r.waited_seconds > r.limit_seconds)
        return next(limits, None)

    def look_seconds(self) -> float:
        """How often `overdue` should be asked while there are some."""
        return min(_LOOK_SECONDS, min(request.limit_seconds for request in self._open.values()) / 4)

    def fail(self, error: Exception) -> None:
        """End all; whoever waits gets the error."""
        requests, self._open = self._open, {}
        for request in requests.values():
            for waiter in request.waiters:
                if _can_hear(waiter):
                    waiter.set_exception(error)


def _can_hear(waiter: asyncio.Future[dict[str, Any]]) -> bool:
    return not waiter.done() and not waiter.get_loop().is_closed()
