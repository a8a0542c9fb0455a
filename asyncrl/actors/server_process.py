"""One life of the fork server: its process, its socket, its open requests.

Every request ends by its answer, by the server's end, or by its time limit. A server that exceeds a limit counts as
lost: its guardian gets SIGTERM to kill it, and all open requests fail at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.actors.forking import THREAD_VARIABLES
from asyncrl.actors.frames import Wire
from asyncrl.actors.limits import AwakeClock

READY = -1
"""Tag of the implicit request to every server: to import everything and send "ready"."""
_CHECK_SECONDS = 0.25
_END_SECONDS = 4.0
_CLOSE_SECONDS = 0.7
"""Time limit of each stage of `close`, in seconds: the server exits, its guardian kills it, the guardian is killed."""


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


class ServerLost(Exception):
    """The fork server ended, or exceeded a time limit, before it answered. Internal to `ForkServer`."""


class ForkRefused(Exception):
    """The fork server could not fork; the message is the system's reason. Internal to `ForkServer`."""


class ServerProcess:
    """One fork server process, started by the constructor.

    The constructor, `close` and `hang_up` may be called on any thread, other methods on that of one event loop.

    Args:
        ready_seconds: time limit of its imports.
        request_seconds: time limit of a fork or of sending a signal.

    Attributes:
        command: arguments of Python that start it, before the descriptor of its socket and the main process's id.
        pid: process id of the server; that of its guardian until the "ready" frame.
        was_ready: whether the "ready" frame has arrived.
        lost: reason why it is lost or closed, or "".
    """

    command: tuple[str, ...] = ("-m", "asyncrl.actors.forkserver")

    def __init__(self, ready_seconds: float, request_seconds: float) -> None:
        self._request_seconds = request_seconds
        self._requests = Requests(ready_seconds)
        self._children: dict[int, OnExit] = {}  # exit callbacks of the running children, by process id
        self._tags = itertools.count()
        self._ticking: asyncio.TimerHandle | None = None
        self._clock = AwakeClock()
        self.was_ready = False
        self.lost = ""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(self.command, theirs)
        except BaseException:
            ours.close()
            raise
        self._wire = Wire(ours)
        self.pid = self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status of guardian and server, 128 + n if signal n killed the server; None while it runs."""
        return self._process.poll()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read its frames on this loop."""
        if self._wire.loop is not loop and not self.lost:
            self._detach()
            self._clock = AwakeClock()
            self._wire.attach(loop, self._on_readable)
            self._tick()

    async def ready(self) -> None:
        """Wait until it has imported everything. Raises `ServerLost`."""
        if self.lost:
            raise ServerLost(self.lost)
        if not self.was_ready:
            await self._requests.wait_for(READY)

    async def fork(self, message: Mapping[str, Any], fds: list[int], on_exit: OnExit) -> int:
        """Request a fork; return the child's process id. Raises `ServerLost` or `ForkRefused`."""
        if self.lost:
            raise ServerLost(self.lost)
        answer = self._requests.wait_for(self._ask({"do": "fork", **message}, fds, on_exit))
        try:
            frame = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:  # at the same moment
                self.signal(answer.result().get("pid", 0), signal.SIGKILL, group=True)
            raise
        if frame["event"] == "refused":
            raise ForkRefused(frame["why"])
        pid: int = frame["pid"]
        return pid

    def signal(self, pid: int, number: int, group: bool) -> None:
        """Request a signal to a child or to its group; do nothing if the child has ended."""
        if pid in self._children and not self.lost:
            self._ask({"do": "signal", "pid": pid, "signal": int(number), "group": group})

    def hang_up(self) -> None:
        """Shut the socket down, which ends it; any thread or signal handler, never blocks."""
        self._wire.shut_down()

    async def ended(self) -> None:
        """Wait until it and all its descendants have ended, for at most `_END_SECONDS`, and close it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _END_SECONDS
        while self._process.poll() is None and loop.time() < deadline:
            await asyncio.sleep(0.005)
        self.close()

    def close(self) -> None:
        """End the server and all its children; takes milliseconds, a few seconds at most; idempotent."""
        self._detach()
        self._wire.close()
        for kill in (self._process.terminate, self._process.kill, self._kill_children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
                break
            kill()
        if not self.lost:
            self.lost = "the fork server was closed"
        self._children.clear()
        self._requests.fail(ServerLost(self.lost))

    def _detach(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._wire.detach()

    def _ask(self, message: dict[str, Any], fds: Sequence[int] = (), on_exit: OnExit | None = None) -> int:
        """Send a request; return its tag."""
        tag = next(self._tags)
        self._wire.send({**message, "tag": tag}, fds)
        self._requests.add(tag, Request(self._request_seconds, on_exit))
        loop = self._wire.loop
        if self._ticking is None and loop is not None:
            self._clock.advance()
            self._ticking = loop.call_later(self._requests.look_seconds(), self._tick)
        return tag

    def _tick(self) -> None:
        """Add to the waiting times of open requests; runs periodically while there are some."""
        self._ticking = None
        if not self._requests or self._wire.loop is None:
            return
        limit = self._requests.overdue(self._clock.advance())
        if limit is not None:
            self._process.terminate()  # its guardian; `ended` waits for the effect
            self._on_lost(f"the fork server did not answer for {limit:g} s and was killed")
            return
        self._ticking = self._wire.loop.call_later(self._requests.look_seconds(), self._tick)

    def _on_readable(self) -> None:
        for frame in self._wire.frames():
            self._on_frame(frame)
        self._requests.restart_limits()
        if self._wire.eof and not self.lost:
            self._on_lost("the fork server ended")

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if frame["event"] == "ready":
            self.was_ready, self.pid = True, frame["pid"]
            self._requests.pop(READY).answer(frame)
        elif frame["event"] == "exited":
            if (on_exit := self._children.pop(frame["pid"], None)) is not None:
                on_exit(ChildExit(frame["pid"], frame["status"], frame["max_rss_bytes"]))
        else:
            request = self._requests.pop(frame["tag"])
            if frame["event"] == "forked" and request.on_exit is not None:
                self._children[frame["pid"]] = request.on_exit
            if not request.answer(frame) and frame["event"] == "forked":  # its caller was cancelled
                self.signal(frame["pid"], signal.SIGKILL, group=True)

    def _on_lost(self, why: str) -> None:
        """Mark the server as lost and fail its requests; kill its children, in case kernel and guardian do not."""
        self.lost = why
        self._detach()
        self._kill_children()
        self._requests.fail(ServerLost(why))
        children, self._children = self._children, {}
        for pid, on_exit in children.items():
            on_exit(ChildExit(pid, -signal.SIGKILL, 0, server_lost=True))

    def _kill_children(self) -> None:
        """Kill the process groups of all children."""
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


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
    """Open requests to a server, by tag; at its start the only one is `READY`."""

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


def _start(command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the guardian, which forks the server; return while that imports."""
    environ = dict(os.environ)
    environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    package_root = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # Its output goes to this process's standard error: what environments print must not mix with results.
    return subprocess.Popen(
        [sys.executable, "-P", *command, str(theirs.fileno()), str(os.getpid())],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=_error_stream(),
        stderr=_error_stream(),
        env=environ,
        start_new_session=True,
    )


def _error_stream() -> int:
    """Descriptor of this process's standard error, or `DEVNULL` if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
