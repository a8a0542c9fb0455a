"""Processes that the fork server has forked and that have not ended, and who wants to know how they end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ChildExit:
    """How a forked process ended.

    Attributes:
        pid: its process id.
        status: exit status; the negative signal number where a signal killed it.
        max_rss_bytes: the most memory it ever had resident, 0 where unknown.
        server_lost: the fork server died, and this process with it.
    """

    pid: int
    status: int
    max_rss_bytes: int
    server_lost: bool = False


class Forked:
    """The living children of one fork server."""

    def __init__(self) -> None:
        self._callback_of_tag: dict[int, Callable[[ChildExit], None]] = {}
        self._callbacks: dict[int, Callable[[ChildExit], None]] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._callbacks

    def expect(self, tag: int, on_exit: Callable[[ChildExit], None]) -> None:
        """A process was asked for under this tag."""
        self._callback_of_tag[tag] = on_exit

    def begin(self, tag: int, pid: int) -> None:
        """The process of this tag exists."""
        self._callbacks[pid] = self._callback_of_tag.pop(tag)

    def refuse(self, tag: int) -> None:
        """There will be no process of this tag."""
        self._callback_of_tag.pop(tag, None)

    def end(self, exit: ChildExit) -> None:
        """One has ended."""
        callback = self._callbacks.pop(exit.pid, None)
        if callback is not None:
            callback(exit)

    def kill_groups(self) -> None:
        """Kill all, with what they have started."""
        for pid in self._callbacks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def lose(self) -> None:
        """The server is gone, and all with it."""
        self._callback_of_tag.clear()
        callbacks, self._callbacks = self._callbacks, {}
        for pid, callback in callbacks.items():
            callback(ChildExit(pid, -signal.SIGKILL, 0, server_lost=True))

    def forget(self) -> None:
        """Tell nobody any more."""
        self._callback_of_tag.clear()
        self._callbacks.clear()
