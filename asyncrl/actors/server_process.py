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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.actors.awake import AwakeClock
from asyncrl.actors.forking import THREAD_VARIABLES
from asyncrl.actors.frames import FrameReader, FrameWriter

_READY = -1
"""Tag of what every server is asked for without words: to import everything and say so."""
_TICK_SECONDS = 0.25
_GONE_SECONDS = 4.0
_CLOSE_SECONDS = 0.7
"""How long an ending server is given, before it is killed by its guardian, and then the guardian too."""


class ServerLost(Exception):
    """The fork server ended, or was given up, before it answered. Internal to `ForkServer`."""


class ForkRefused(Exception):
    """The fork server could not fork; the text is the system's reason. Internal to `ForkServer`."""


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


@dataclass
class _Request:
    """Something that the server has not answered yet.

    Attributes:
        limit_seconds: how long it may take, in time that this process was awake and the server said nothing.
        waited_seconds: how long it has taken.
        answer: who waits for it.
    """

    limit_seconds: float
    answer: asyncio.Future[dict[str, Any]] | None = None
    waited_seconds: float = 0.0


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
        self._requests = {_READY: _Request(ready_seconds)}
        self._tags = itertools.count()
        self._ready_waiters: list[asyncio.Future[None]] = []
        self._callback_of_tag: dict[int, Callable[[ChildExit], None]] = {}
        self._exit_callbacks: dict[int, Callable[[ChildExit], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._clock = AwakeClock()
        self.was_ready = False
        self.lost = ""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(theirs)
        except BaseException:
            self._socket.close()
            raise
        self._reader, self._writer = FrameReader(self._socket), FrameWriter(self._socket)
        self.pid = self._process.pid

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to it on this loop."""
        if self._loop is not loop and not self.lost:
            self._detach()
            self._loop = loop
            self._clock = AwakeClock()
            loop.add_reader(self._socket.fileno(), self._on_readable)
            self._send_rest()
            self._tick()

    async def ready(self) -> None:
        """Wait until it has imported everything. Raises `ServerLost`."""
        if not self.was_ready and not self.lost:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ready_waiters.append(waiter)
            await waiter
        if self.lost:
            raise ServerLost(self.lost)

    async def fork(
        self, message: Mapping[str, Any], fds: list[int], on_exit: Callable[[ChildExit], None]
    ) -> int:
        """Have it fork; returns the child's process id. Raises `ServerLost` or `ForkRefused`."""
        if self.lost:
            raise ServerLost(self.lost)
        tag = next(self._tags)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._ask({"do": "fork", "tag": tag, **message}, fds, answer)
        self._callback_of_tag[tag] = on_exit
        frame = await answer
        if frame["event"] == "refused":
            raise ForkRefused(frame["why"])
        pid: int = frame["pid"]
        return pid

    def signal(self, pid: int, number: int, group: bool) -> None:
        """Have it send a signal to a child or to its group; does nothing where the child has ended."""
        if pid in self._exit_callbacks and not self.lost:
            tag = next(self._tags)
            self._ask({"do": "signal", "tag": tag, "pid": pid, "signal": int(number), "group": group})

    def hang_up(self) -> None:
        """Shut the socket, which ends it; any thread or signal handler, never blocks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def exit_status(self) -> int | None:
        """Exit status of guardian and server, 128 + n where signal n killed the server; None while it runs."""
        return self._process.poll()

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
        self._socket.close()
        self._writer.clear()
        for hasten in (self._process.terminate, self._process.kill, self._kill_groups):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
                break
            hasten()
        if not self.lost:
            self.lost = "the fork server was closed"
        self._exit_callbacks.clear()
        self._fail_waiters()

    def _detach(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if self._loop is not None and not self._loop.is_closed() and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._loop = None

    def _ask(
        self,
        message: dict[str, Any],
        fds: list[int] | None = None,
        answer: asyncio.Future[dict[str, Any]] | None = None,
    ) -> None:
        if not self._writer.send(message, fds or []):
            self._send_rest()
        self._requests[message["tag"]] = _Request(self._request_seconds, answer)
        if self._ticking is None and self._loop is not None:
            self._clock.advance()
            self._tick()

    def _send_rest(self) -> None:
        if self._loop is not None:
            if self._writer.flush():
                self._loop.remove_writer(self._socket.fileno())
            else:
                self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def _tick(self) -> None:
        """Count how long unanswered requests have waited; runs only while there are some."""
        self._ticking = None
        if not self._requests or self._loop is None:
            return
        elapsed = self._clock.advance()
        for request in self._requests.values():
            request.waited_seconds += elapsed
            if request.waited_seconds > request.limit_seconds:
                self._process.terminate()  # its guardian; `gone` waits for the effect
                self._on_lost(
                    f"the fork server did not answer for {request.limit_seconds:g} s and was killed"
                )
                return
        shortest = min(request.limit_seconds for request in self._requests.values())
        self._ticking = self._loop.call_later(min(_TICK_SECONDS, shortest / 4), self._tick)

    def _on_readable(self) -> None:
        for frame in self._reader.frames():
            self._on_frame(frame)
        for request in self._requests.values():
            request.waited_seconds = 0.0  # it lives, and answers in order
        if self._reader.eof and not self.lost:
            self._on_lost("the fork server ended")

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if frame["event"] == "ready":
            self.was_ready, self.pid = True, frame["pid"]
            del self._requests[_READY]
            self._wake_ready()
        elif frame["event"] == "exited":
            callback = self._exit_callbacks.pop(frame["pid"], None)
            if callback is not None:
                callback(ChildExit(frame["pid"], frame["status"], frame["max_rss_bytes"]))
        else:
            self._on_answer(frame)

    def _on_answer(self, frame: dict[str, Any]) -> None:
        answer = self._requests.pop(frame["tag"]).answer
        on_exit = self._callback_of_tag.pop(frame["tag"], None)
        if frame["event"] == "forked":
            assert on_exit is not None
            self._exit_callbacks[frame["pid"]] = on_exit
            if answer is None or answer.done():  # nobody waits for it any more
                self.signal(frame["pid"], signal.SIGKILL, group=True)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _on_lost(self, why: str) -> None:
        """It is gone. Kernel and guardian end what it has started; groups are killed here too, should both fail."""
        self.lost = why
        self._detach()
        self._kill_groups()
        self._fail_waiters()
        callbacks, self._exit_callbacks = self._exit_callbacks, {}
        for pid, callback in callbacks.items():
            callback(ChildExit(pid, -signal.SIGKILL, 0, server_lost=True))

    def _kill_groups(self) -> None:
        for pid in self._exit_callbacks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _fail_waiters(self) -> None:
        requests, self._requests = self._requests, {}
        self._callback_of_tag.clear()
        for request in requests.values():
            answer = request.answer
            if answer is not None and not answer.done() and not answer.get_loop().is_closed():
                answer.set_exception(ServerLost(self.lost))
        self._wake_ready()

    def _wake_ready(self) -> None:
        waiters, self._ready_waiters = self._ready_waiters, []
        for waiter in waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)


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
