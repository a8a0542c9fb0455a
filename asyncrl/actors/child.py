"""Handle of the main process on a forked process: its id, its socket, its exit.

Every forked process (actor, evaluator, probe, trial) goes through the states of this table. Its end wakes all waiters
at once, and every state has a limit:

    state      until                    limit                              at the limit
    forked     its process id arrives   `request_seconds` of the server    the fork server is replaced
    starting   its first frame, READY   `ready_timeout_seconds`            stack, kill, ASYNC015
    working    its next sign of life    `step_timeout_seconds`             stack, kill, ASYNC015
    closing    its exit                 0.5 s in `end`, 2 s for a pool     SIGKILL to its group
    dead       the next life            `max_restarts` in a minute         ASYNC003

A sign of life of an actor is a published row or its heartbeat (`heartbeat.py`); of the others a frame
(`receive_within`). The fork server has the same states; see `server_process.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asyncrl.actors.descriptors import descriptors_or_error
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.frames import FrameReader, send_frame
from asyncrl.actors.limits import AwakeClock
from asyncrl.actors.server_process import ChildExit
from asyncrl.shm.unnamed_file import unnamed_file

_EXIT_SECONDS = 1.0
"""Time limit for a process to end after it has closed its socket, in seconds; then it is killed."""
_CHECK_SECONDS = 0.1
_CRASH_MARK = "Fatal Python error: "


class ChildDied(Exception):
    """A forked process ended without an error frame. Internal: callers turn it into an `AsyncRLError`.

    Attributes:
        exit: its exit.
        crash: report of its interpreter on a fatal signal: the signal and Python stacks; "" without one.
    """

    def __init__(self, exit: ChildExit, crash: str = "") -> None:
        super().__init__(f"process {exit.pid} ended with status {exit.status}")
        self.exit = exit
        self.crash = crash


class ChildSilent(Exception):
    """A forked process sent no frame within a time limit. Internal: callers turn it into an `AsyncRLError`.

    Attributes:
        seconds: duration of the wait.
        stack: Python stacks of its threads, "" if not available.
    """

    def __init__(self, seconds: float, stack: str) -> None:
        super().__init__(f"the process sent no frame for {seconds:.1f} s")
        self.seconds = seconds
        self.stack = stack


class Child:
    """Forked process with a role; all methods but `send_bytes` on the event loop's thread only.

    Args:
        server: fork server that forks it.
        role: its role, see `worker.py`.

    Attributes:
        pid: its process id, 0 before `start` returns.
        starting: whether `start` waits for the fork.
        exited: its exit, or None while it runs.
    """

    def __init__(self, server: ForkServer, role: str) -> None:
        self._server = server
        self._role = role
        self.pid, self.starting = 0, False
        self.exited: ChildExit | None = None
        with descriptors_or_error(f"The {role} process"), contextlib.ExitStack() as half_way:
            self._channel, self._theirs = socket.socketpair()
            half_way.callback(self._channel.close)
            half_way.callback(self._theirs.close)
            self._stack = StackFile()
            half_way.pop_all()
        self._reader = FrameReader(self._channel)
        self._frames: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()  # set and cleared at once: wakes all waiters
        self._kill_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, payload: bytes, fds: Mapping[str, int], *, log: Path | None = None) -> None:
        """Fork it; return when it exists. Raises `ResourceError` if the fork server does not run."""
        self._loop = asyncio.get_running_loop()

        def handed_over() -> dict[str, int]:
            return {"channel": self._theirs.fileno(), "stack": self._stack.fileno(), **fds}

        def on_lost() -> dict[str, int]:
            # A process that the lost server had forked may have sent READY on the old socket, which must not be read.
            with descriptors_or_error(f"The {self._role} process"):
                self._channel.close()
                self._theirs.close()
                self._channel, self._theirs = socket.socketpair()
            self._reader = FrameReader(self._channel)
            return handed_over()

        self.starting = True
        try:
            self.pid = await self._server.fork(
                self._role, payload, handed_over(), on_exit=self._on_exit, on_lost=on_lost, log=log
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            self.starting = False
            self._wake()
        self._theirs.close()
        if self.exited is None:
            self._loop.add_reader(self._channel.fileno(), self._on_readable)

    async def receive(self) -> dict[str, Any]:
        """Return its next frame.

        Raises:
            AsyncRLError: it sent an error frame.
            ChildDied: it ended and sent nothing more.
        """
        while not self._frames:
            if self.exited is not None:
                raise ChildDied(self.exited, self._stack.crash_report())
            await self._news.wait()
        frame = self._frames.popleft()
        if frame["kind"] == "error":
            raise frame["error"]
        return frame

    async def receive_within(self, limit_seconds: float) -> dict[str, Any]:
        """Return its next frame, with a limit in seconds of `AwakeClock`.

        Raises:
            AsyncRLError: it sent an error frame.
            ChildDied: it ended and sent nothing more.
            ChildSilent: the limit has passed; the process still runs.
        """
        clock, waited = AwakeClock(), 0.0
        while not self._frames and self.exited is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_CHECK_SECONDS, limit_seconds)):
                    await self._news.wait()
            waited += clock.advance()
            if waited > limit_seconds and not self._frames and self.exited is None:
                raise ChildSilent(waited, await self.python_stack())
        return await self.receive()

    def send(self, message: dict[str, Any]) -> None:
        """Send it a small frame; dropped if it has ended."""
        with contextlib.suppress(OSError):
            send_frame(self._channel, message)

    def send_bytes(self, command: bytes) -> None:
        """Send it bytes; any thread, never blocks; dropped if it has ended or the socket's buffer is full."""
        with contextlib.suppress(OSError):
            self._channel.send(command, socket.MSG_DONTWAIT)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to its process group."""
        self._server.signal(self.pid, number)

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait until it has ended (returns True), until it could not be started, or until the timeout (both False)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.exited is None and (self.pid or self.starting):
                    await self._news.wait()
        return self.exited is not None

    async def end(self, *, patience_seconds: float = 0.5) -> None:
        """End it: shut its socket down, which ends it, and kill it after `patience_seconds`. Idempotent.

        It is killed also if the caller is cancelled meanwhile (twice, if its task group ends by an error).
        """
        try:
            if self.pid and self.exited is None:
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_WR)
                if not await self.wait(patience_seconds):
                    self.kill()
                    await self.wait(1.0)
        finally:
            if self.pid and self.exited is None:
                self.kill()
            self._close_files()

    async def python_stack(self) -> str:
        """Return the Python stacks of its threads, most recent call first, even if it hangs; "" if not available."""
        if self._stack.closed:  # it was killed, and its exit is not reported yet
            return ""
        return await self._stack.written_after(
            lambda: self._server.signal(self.pid, signal.SIGUSR1, group=False)
        )

    def _on_readable(self) -> None:
        self._frames.extend(self._reader.frames())
        if self._reader.eof and self._loop is not None:
            self._loop.remove_reader(self._channel.fileno())
            # The fork server should report its exit now. If it does not, it is asked to kill the process. A server that
            # does not answer that either counts as lost, which is reported as the exit of every child.
            self._kill_timer = self._loop.call_later(_EXIT_SECONDS, self.kill)
        self._wake()

    def _on_exit(self, exit: ChildExit) -> None:
        """Record its exit, after reading the frames it sent; do not wait for others that hold its socket open."""
        if self._channel.fileno() >= 0:
            self._frames.extend(self._reader.frames())
        self.exited = exit
        self._stop_listening()
        self._wake()

    def _wake(self) -> None:
        """Wake all waiters for a frame or the exit."""
        self._news.set()
        self._news.clear()

    def _stop_listening(self) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._loop is not None and self._channel.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._channel.fileno())

    def _close_files(self) -> None:
        self._stop_listening()
        self._channel.close()
        self._theirs.close()
        self._stack.close()


class StackFile:
    """Unnamed file to which `faulthandler` writes a process's Python stacks, on request and on a fatal signal."""

    def __init__(self) -> None:
        self._file = unnamed_file("stack")

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.closed

    def fileno(self) -> int:
        """File descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    async def written_after(self, request: Callable[[], None]) -> str:
        """Call `request` and return what is written within half a second; "" if nothing is, or the file is closed."""
        file = self._file.fileno()
        before = size = os.fstat(file).st_size
        request()
        for _ in range(50):
            await asyncio.sleep(0.01)
            if self._file.closed:  # the process died meanwhile
                return ""
            last, size = size, os.fstat(file).st_size
            if size > before and size == last:
                break
        return os.pread(file, size - before, before).decode(errors="replace")

    def crash_report(self) -> str:
        """Return the interpreter's report on the fatal signal that ended the process; "" without one."""
        if self._file.closed:
            return ""
        file = self._file.fileno()
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        _, mark, report = text.rpartition(_CRASH_MARK)
        return mark + report if mark else ""
