"""One life of the fork server: its process, its socket, the requests that it has not answered yet.

Every request has a limit, and ends by its answer, by the server's end, or by the limit, whichever comes first. A server
that lets a limit pass is given up: its guardian is told to kill it, and everybody who waits is told at once.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.actors.awake import AwakeClock
from asyncrl.actors.forked import ChildExit, Forked
from asyncrl.actors.forking import THREAD_VARIABLES
from asyncrl.actors.requests import READY, Requests
from asyncrl.actors.wire import Wire

_GONE_SECONDS = 4.0
_CLOSE_SECONDS = 0.7
"""How long an ending server is given, before it is killed by its guardian, and then the guardian too."""


class ServerLost(Exception):
    """The fork server ended, or was given up, before it answered. Internal to `ForkServer`."""


class ForkRefused(Exception):
    """The fork server could not fork; the text is the system's reason. Internal to `ForkServer`."""


class ServerProcess:
    """A fork server from its start to its end.

    Made and closed on any thread; all else belongs to the thread of one running event loop.

    Args:
        ready_seconds: how long it may import.
        request_seconds: how long it may take to fork, or to pass on a signal.

    Attributes:
        pid: of the server; of its guardian until the server has said its own.
        was_ready: whether it ever answered.
        lost: why it is no more, or "".
    """

    def __init__(self, ready_seconds: float, request_seconds: float) -> None:
        self._request_seconds = request_seconds
        self._requests, self._forked = Requests(ready_seconds), Forked()
        self._tags = itertools.count()
        self._ticking: asyncio.TimerHandle | None = None
        self._clock = AwakeClock()
        self.was_ready = False
        self.lost = ""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs)
        except BaseException:
            ours.close()
            raise
        self._wire = Wire(ours)
        self.pid = self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status of guardian and server, 128 + n where signal n killed the server; None while it runs."""
        return self._process.poll()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to it on this loop."""
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

    async def fork(
        self, message: Mapping[str, Any], fds: list[int], on_exit: Callable[[ChildExit], None]
    ) -> int:
        """Have it fork; returns the child's process id. Raises `ServerLost` or `ForkRefused`."""
        if self.lost:
            raise ServerLost(self.lost)
        tag = self._ask({"do": "fork", **message}, fds)
        self._forked.expect(tag, on_exit)
        frame = await self._requests.wait_for(tag)
        if frame["event"] == "refused":
            raise ForkRefused(frame["why"])
        pid: int = frame["pid"]
        return pid

    def signal(self, pid: int, number: int, group: bool) -> None:
        """Have it send a signal to a child or to its group; does nothing where the child has ended."""
        if pid in self._forked and not self.lost:
            self._ask({"do": "signal", "pid": pid, "signal": int(number), "group": group})

    def hang_up(self) -> None:
        """Shut the socket, which ends it; any thread or signal handler, never blocks."""
        self._wire.shut_down()

    async def gone(self) -> None:
        """Wait until nothing of it is left: no child, nor what children have started; seconds at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GONE_SECONDS
        while self._process.poll() is None and loop.time() < deadline:
            await asyncio.sleep(0.005)
        self.close()

    def close(self) -> None:
        """End the server and with it every child; takes milliseconds, seconds at most; idempotent."""
        self._detach()
        self._wire.close()
        for hasten in (self._process.terminate, self._process.kill, self._forked.kill_groups):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
                break
            hasten()
        if not self.lost:
            self.lost = "the fork server was closed"
        self._forked.forget()
        self._requests.fail(ServerLost(self.lost))

    def _detach(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._wire.detach()

    def _ask(self, message: dict[str, Any], fds: list[int] | None = None) -> int:
        """Send a request; returns its tag."""
        tag = next(self._tags)
        self._wire.send({**message, "tag": tag}, fds or [])
        self._requests.add(tag, self._request_seconds)
        loop = self._wire.loop
        if self._ticking is None and loop is not None:
            self._clock.advance()
            self._ticking = loop.call_later(self._requests.look_seconds(), self._tick)
        return tag

    def _tick(self) -> None:
        """Count how long unanswered requests have waited; runs only while there are some."""
        self._ticking = None
        if not self._requests or self._wire.loop is None:
            return
        limit = self._requests.overdue(self._clock.advance())
        if limit is not None:
            self._process.terminate()  # its guardian; `gone` waits for the effect
            self._on_lost(f"the fork server did not answer for {limit:g} s and was killed")
            return
        self._ticking = self._wire.loop.call_later(self._requests.look_seconds(), self._tick)

    def _on_readable(self) -> None:
        for frame in self._wire.frames():
            self._on_frame(frame)
        self._requests.heard()
        if self._wire.eof and not self.lost:
            self._on_lost("the fork server ended")

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if frame["event"] == "ready":
            self.was_ready, self.pid = True, frame["pid"]
            self._requests.answer(READY, frame)
        elif frame["event"] == "exited":
            self._forked.end(ChildExit(frame["pid"], frame["status"], frame["max_rss_bytes"]))
        elif frame["event"] == "forked":
            self._forked.begin(frame["tag"], frame["pid"])
            if not self._requests.answer(frame["tag"], frame):  # nobody waits for it any more
                self.signal(frame["pid"], signal.SIGKILL, group=True)
        else:
            self._forked.refuse(frame["tag"])
            self._requests.answer(frame["tag"], frame)

    def _on_lost(self, why: str) -> None:
        """It is gone. Kernel and guardian end what it has started; groups are killed here too, should both fail."""
        self.lost = why
        self._detach()
        self._forked.kill_groups()
        self._requests.fail(ServerLost(why))
        self._forked.lose()


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the guardian, which forks the server; returns while it imports."""
    environ = dict(os.environ)
    environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    package_root = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # Its output is this process's standard error: what environments print must not mix with results.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "asyncrl.actors.forkserver", str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=_error_stream(),
        stderr=_error_stream(),
        env=environ,
        start_new_session=True,
    )


def _error_stream() -> int:
    """Descriptor of this process's standard error, or of nothing where that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
