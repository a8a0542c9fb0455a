"""The fork server as the main process sees it.

Actors are never forked from the main process: a child of torch's or numba's threads hangs. They are forked by
a small process of our own that is started as early as possible, imports what actors need while the main
process imports torch, and then forks an actor within milliseconds:

    python -m asyncrl.actors.forkserver FD

What happens in that process stands in `forking.py`. Its end is this process's end: the socket between them
closes with whoever dies, the server then kills every child's group, and if the server dies its children are
killed by the kernel and their groups by `ForkServer`.
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
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.actors.forking import THREAD_VARIABLES, serve
from asyncrl.actors.frames import FrameReader, send_frame
from asyncrl.errors import ResourceError

_CLOSE_SECONDS = 2.0


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


class ForkServer:
    """Starts, talks to and ends the process that forks actors.

    `start` and `close` may be called from any thread and need no event loop; all else belongs to the thread
    of one running event loop.

    Attributes:
        pid: process id of the server, 0 before `start` and after `close`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: FrameReader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tags = itertools.count()
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._exit_callbacks: dict[int, Callable[[ChildExit], None]] = {}
        self._callback_of_tag: dict[int, Callable[[ChildExit], None]] = {}
        self._ready = False
        self._ready_waiters: list[asyncio.Future[None]] = []
        self._lost = False

    @property
    def pid(self) -> int:
        """Process id of the server, 0 where none runs."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the server process; returns at once, while it imports. Does nothing the second time."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        environ = dict(os.environ)
        environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        package_root = str(Path(__file__).resolve().parents[2])
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-m", "asyncrl.actors.forkserver", str(theirs.fileno())]
        with theirs:
            # Its output is this process's standard error: what environments print must not mix with results.
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=_error_stream(),
                stderr=_error_stream(),
                env=environ,
                start_new_session=True,
            )
        self._socket = ours
        self._reader = FrameReader(ours)

    async def fork(
        self,
        role: str,
        payload: bytes,
        fds: Mapping[str, int],
        *,
        on_exit: Callable[[ChildExit], None],
        log: Path | None = None,
        niceness: int = 0,
    ) -> int:
        """Fork a process that plays `role` (see `worker.py`); returns its process id.

        Args:
            role: `"actor"`, `"probe"` or `"evaluator"`.
            payload: what the role needs to know, as bytes.
            fds: descriptors to hand over, by name; they stay open here.
            on_exit: called once on the loop's thread when the process ended, however it did.
            log: file to which its output is appended; None sends it to this process's standard error.
            niceness: how much to lower its priority.

        Raises:
            ResourceError: the fork server is not running (any more).
        """
        loop = asyncio.get_running_loop()
        self._attach(loop)
        await self._until_ready(loop)
        tag = next(self._tags)
        reply = self._forks[tag] = loop.create_future()
        self._callback_of_tag[tag] = on_exit
        with tempfile.TemporaryFile() as packed:
            packed.write(payload)
            packed.flush()
            message = {
                "do": "fork",
                "tag": tag,
                "role": role,
                "fd_names": ["payload", *fds],
                "log": None if log is None else str(log),
                "niceness": niceness,
                "sys_path": list(sys.path),
                "cwd": os.getcwd(),
                "environ": dict(os.environ),
            }
            self._send(message, [packed.fileno(), *fds.values()])
        pid: int = await reply
        return pid

    def signal(self, pid: int, number: int, *, group: bool = True) -> None:
        """Send a signal to a child, or to its whole process group; does nothing where it has ended."""
        if pid in self._exit_callbacks:
            self._send({"do": "signal", "pid": pid, "signal": int(number), "group": group})

    def kill(self) -> None:
        """Have all children and the server killed at once; any thread or signal handler, never blocks.

        `close` must still be called.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the server and with it every child; takes milliseconds, 2 s at most; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        self._detach()
        assert self._socket is not None
        self._socket.close()
        try:
            process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._kill_groups()
        self._exit_callbacks.clear()
        self._fail_forks("the fork server was closed")

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._process is None or self._socket is None or self._lost:
            raise ResourceError(
                "The fork server is not running, so that no actor can be started.",
                fix="call start() first; if it ran, its own output says why it ended",
            )
        if self._loop is not loop:
            self._detach()
            self._loop = loop
            loop.add_reader(self._socket.fileno(), self._on_readable)

    def _detach(self) -> None:
        if self._loop is not None and self._socket is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._loop = None

    async def _until_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._ready:
            waiter: asyncio.Future[None] = loop.create_future()
            self._ready_waiters.append(waiter)
            await waiter

    def _send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # a server that is gone is found by its end of file
            send_frame(self._socket, message, fds or [])

    def _on_readable(self) -> None:
        assert self._reader is not None
        for frame in self._reader.frames():
            self._on_frame(frame)
        if self._reader.eof:
            self._on_server_lost()

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if frame["event"] == "ready":
            self._ready = True
            _wake(self._ready_waiters)
        elif frame["event"] == "forked":
            self._exit_callbacks[frame["pid"]] = self._callback_of_tag.pop(frame["tag"])
            reply = self._forks.pop(frame["tag"])
            if reply.cancelled():
                self.signal(frame["pid"], signal.SIGKILL)
            else:
                reply.set_result(frame["pid"])
        else:
            callback = self._exit_callbacks.pop(frame["pid"], None)
            if callback is not None:
                callback(ChildExit(frame["pid"], frame["status"], frame["max_rss_bytes"]))

    def _on_server_lost(self) -> None:
        """The server died. The kernel kills its children; what they started in their groups is left to us."""
        self._lost = True
        self._detach()
        self._kill_groups()
        self._fail_forks("the fork server ended; its output says why")
        callbacks, self._exit_callbacks = self._exit_callbacks, {}
        for pid, callback in callbacks.items():
            callback(ChildExit(pid, -signal.SIGKILL, 0, server_lost=True))

    def _kill_groups(self) -> None:
        for pid in self._exit_callbacks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _fail_forks(self, why: str) -> None:
        waiting: list[asyncio.Future[Any]] = [*self._forks.values(), *self._ready_waiters]
        self._forks.clear()
        self._callback_of_tag.clear()
        self._ready_waiters.clear()
        for future in waiting:
            if not future.done() and not future.get_loop().is_closed():
                future.set_exception(ResourceError(f"No actor could be started: {why}."))


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    while waiters:
        waiter = waiters.pop()
        if not waiter.done():
            waiter.set_result(None)


def _error_stream() -> int:
    """Descriptor of this process's standard error, or of nothing where that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
