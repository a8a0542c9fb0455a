"""Running children of the fork server, with their exit callbacks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass


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


class Forked:
    """Running children of one fork server, with their exit callbacks."""

    def __init__(self) -> None:
        self._callback_of_tag: dict[int, Callable[[ChildExit], None]] = {}
        self._callbacks: dict[int, Callable[[ChildExit], None]] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._callbacks

    def expect(self, tag: int, on_exit: Callable[[ChildExit], None]) -> None:
        """Register the exit callback of a fork request."""
        self._callback_of_tag[tag] = on_exit

    def begin(self, tag: int, pid: int) -> None:
        """Record the process id of a fork request."""
        self._callbacks[pid] = self._callback_of_tag.pop(tag)

    def refuse(self, tag: int) -> None:
        """Drop a fork request that was refused."""
        self._callback_of_tag.pop(tag, None)

    def end(self, exit: ChildExit) -> None:
        """Remove a process that has ended, and call its exit callback."""
        callback = self._callbacks.pop(exit.pid, None)
        if callback is not None:
            callback(exit)

    def kill_groups(self) -> None:
        """Kill the process groups of all."""
        for pid in self._callbacks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def lose(self) -> None:
        """Report the exit of all, because the server is lost."""
        self._callback_of_tag.clear()
        callbacks, self._callbacks = self._callbacks, {}
        for pid, callback in callbacks.items():
            callback(ChildExit(pid, -signal.SIGKILL, 0, server_lost=True))

    def forget(self) -> None:
        """Drop all callbacks."""
        self._callback_of_tag.clear()
        self._callbacks.clear()
