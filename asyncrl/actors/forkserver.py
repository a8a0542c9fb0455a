"""The main process's end of the fork server.

Actors are never forked from the main process: a fork of a process with threads of torch or numba hangs. They are forked
by a small process that is started as early as possible, imports what actors need while the main process imports torch,
and then forks an actor within milliseconds:

    python -m asyncrl.actors.forkserver FD PID

`forking.py` is the code of that process, `guardian.py` ends its descendants, `server_process.py` is one life of it. The
socket FD between it and the main process PID closes when either ends; the server then exits, and its guardian kills
every child. A server that dies, or does not answer, is replaced at the next fork request, a few times a minute at most.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from asyncrl.actors.descriptors import descriptors_or_error
from asyncrl.actors.forking import serve
from asyncrl.actors.limits import WINDOW_SECONDS, RestartBudget
from asyncrl.actors.server_process import ForkRefused, OnExit, ServerLost, ServerProcess
from asyncrl.errors import ResourceError


class ForkServer:
    """Client of the process that forks actors; starts, replaces and ends it.

    `start`, `close` and `kill` may be called from any thread; other methods from that of a running event loop only.

    Args:
        max_restarts: limit of restarts of a server that died, within a minute.
        ready_seconds: time limit of its imports; then it is killed.
        request_seconds: time limit of a fork or of sending a signal; then it is killed.

    Attributes:
        killed: whether `kill` was called since the last start.
    """

    def __init__(
        self, *, max_restarts: int = 3, ready_seconds: float = 120.0, request_seconds: float = 10.0
    ) -> None:
        self._ready_seconds, self._request_seconds = ready_seconds, request_seconds
        self._budget = RestartBudget(max_restarts)
        self._life: ServerProcess | None = None
        self._ending = False
        self.killed = False
        self._replacing: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, 0 if none runs; that of its guardian until the server is ready."""
        return self._life.pid if self._life is not None else 0

    def start(self) -> None:
        """Start the server process and return at once, while it imports; idempotent."""
        if self._life is None:
            self._ending = self.killed = False
            with descriptors_or_error("The fork server"):
                self._life = ServerProcess(self._ready_seconds, self._request_seconds)

    async def fork(
        self,
        role: str,
        payload: bytes,
        fds: Mapping[str, int],
        *,
        on_exit: OnExit,
        on_lost: Callable[[], Mapping[str, int]],
        log: Path | None = None,
    ) -> int:
        """Fork a process with a role (see `worker.py`) and return its process id.

        Args:
            role: `"actor"`, `"probe"`, `"trial"` or `"evaluator"`.
            payload: pickled plan of the role.
            fds: descriptors to pass, by name; they stay open here.
            on_exit: callback when the process has ended, once, on the loop's thread.
            on_lost: callback when the server was lost before it answered, before the request is repeated; returns the
                descriptors to pass then. The lost server may have forked a child that has used the first ones.
            log: file to which its output is appended; None for this process's standard error.

        Raises:
            ResourceError: the fork server was not started, was closed, cannot fork, or dies too often.
        """
        from asyncrl.shm.unnamed_file import (
            unnamed_file,  # not at the top: the server starts before NumPy is loaded
        )

        surroundings = {"sys_path": list(sys.path), "cwd": _working_directory(), "environ": dict(os.environ)}
        message = {
            "role": role,
            "fd_names": ["payload", *fds],
            "log": None if log is None else str(log),
        }
        with descriptors_or_error(f"The {role} process"), unnamed_file("payload") as packed:
            _write(packed, pickle.dumps(surroundings) + payload, role)
            while True:
                life = await self._running()
                try:
                    return await life.fork(message, [packed.fileno(), *fds.values()], on_exit)
                except ServerLost:
                    fds = on_lost()
                except ForkRefused as refused:
                    raise ResourceError(
                        f"The {role} process could not be forked: {refused}.",
                        fix="see `ulimit -u` and the memory of the machine, or lower num_actors",
                    ) from refused

    def signal(self, pid: int, number: int, *, group: bool = True) -> None:
        """Send a signal to a child or to its process group; do nothing if it has ended."""
        if self._life is not None:
            self._life.signal(pid, number, group)

    def kill(self) -> None:
        """Shut the server's socket down, so that it exits and all children are killed.

        Any thread or signal handler; never blocks. `close` must still be called.
        """
        self._ending = self.killed = True
        if self._life is not None:
            self._life.hang_up()

    def close(self) -> None:
        """End the server and all its children; takes milliseconds, 2 s at most; idempotent."""
        self._ending = True
        life, self._life = self._life, None
        if life is not None:
            life.close()

    async def _running(self) -> ServerProcess:
        """Return a server that is ready to fork; replace a lost one first."""
        loop = asyncio.get_running_loop()
        while True:
            life = self._life
            if life is None or self._ending:
                raise self._not_running()
            if life.lost:
                await self._replace(life)
                continue
            life.attach(loop)
            try:
                await life.ready()
            except ServerLost:
                continue
            return life

    def _not_running(self) -> ResourceError:
        if self.killed:
            return ResourceError(
                "The run was killed, and none of its processes can be started.",
                fix="train again, or go on from the last checkpoint: Trainer.resume(run_dir)",
            )
        return ResourceError(
            "The fork server is not running, so that no actor can be started.",
            fix="call start() first; if it ran, its own output says why it ended",
        )

    async def _replace(self, life: ServerProcess) -> None:
        """Replace a lost server, once all its processes have ended."""
        async with self._replacement_lock():
            if self._life is not life or self._ending:
                return  # another task has replaced it
            await life.ended()
            status = life.exit_status
            crashed = not life.was_ready and status is not None and 0 < status < 128
            pause = None if crashed else self._budget.spend(useful=life.was_ready)
            if pause is None:
                raise self._given_up(life, status)
            await asyncio.sleep(pause)
            if self._life is life and not self._ending:
                self._life = ServerProcess(self._ready_seconds, self._request_seconds)

    def _given_up(self, life: ServerProcess, status: int | None) -> ResourceError:
        often = f", after {self._budget.limit} restarts within {WINDOW_SECONDS:.0f} s"
        return ResourceError(
            f"No actor could be started: {life.lost}{often if life.was_ready and self._budget.limit else ''}.",
            facts={"exit status": status},
            fix="its own output says why; if it was killed and nobody did it, the machine may be out of memory",
        )

    def _replacement_lock(self) -> asyncio.Lock:
        """Return the lock of the running event loop; several loops may use this object, one after the other."""
        loop = asyncio.get_running_loop()
        if self._replacing is None or self._replacing[0] is not loop:
            self._replacing = (loop, asyncio.Lock())
        return self._replacing[1]


def _write(file: IO[bytes], payload: bytes, role: str) -> None:
    """Write a payload. Raises `ResourceError` if the file cannot hold it."""
    try:
        file.write(payload)
        file.flush()
    except OSError as error:
        from asyncrl.shm.unnamed_file import file_size_limit

        limit = file_size_limit()
        named = (
            f", `ulimit -f` allows {limit:,} bytes"
            if error.errno == errno.EFBIG and limit is not None
            else ""
        )
        raise ResourceError(
            f"The {role} process could not be forked: its plan of {len(payload):,} bytes cannot be written: "
            f"{error.strerror}{named}.",
            fix="run `ulimit -f unlimited` in the shell before"
            if named
            else "free memory, or make space in /tmp",
        ) from error


def _working_directory() -> str | None:
    """Return the working directory, None if it was removed: actors are restarted nevertheless."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        serve(control, int(sys.argv[2]))
