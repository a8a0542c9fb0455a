"""Child handle of the main process, with a fake fork server that records calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Any

from actors_rig import make_ring
from waiting import PATIENCE_SECONDS

from asyncrl.actors.child import Child
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.frames import send_frame
from asyncrl.actors.limits import ProcessLimits, RestartBudget
from asyncrl.actors.server_process import ChildExit, ServerLost, ServerProcess
from asyncrl.actors.supervised import SupervisedActor


class Server:
    """Fork server that forks nothing; the process it names never answers and never ends."""

    def __init__(self) -> None:
        self.signals: list[tuple[int, int]] = []

    async def fork(self, role: str, payload: bytes, fds: Any, **options: Any) -> int:
        return 2**22 + 1

    def signal(self, pid: int, number: int, group: bool = True) -> None:
        self.signals.append((pid, number))


def test_ending_that_is_cancelled_leaves_neither_process_nor_descriptor() -> None:
    """Cancel a task that is ending its child, as a task group does if another task fails."""

    async def story() -> None:
        server = Server()
        child = Child(server, "evaluator")  # type: ignore[arg-type]
        await child.start(b"", {})
        ending = asyncio.create_task(child.end(patience_seconds=PATIENCE_SECONDS))
        while not child._news._waiters:
            await asyncio.sleep(0)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending
        assert server.signals == [(2**22 + 1, signal.SIGKILL)]
        assert child._channel.fileno() == -1 and child._theirs.fileno() == -1 and child._stack._file.closed

    asyncio.run(story())


def test_a_silent_actor_whose_end_is_not_reported_is_killed_again() -> None:
    """It was given up, and its files are closed: the watcher of heartbeats has no stack, and must go on."""

    async def story() -> None:
        server = Server()
        child = Child(server, "actor")  # type: ignore[arg-type]
        await child.start(b"", {})
        actor = SupervisedActor(0, make_ring(), RestartBudget(3))
        actor.begin_life(child)
        await child.end(patience_seconds=0.0)
        assert child.exited is None and child._stack._file.closed
        await actor.check(2.0, ProcessLimits(ready_timeout_seconds=1.0))
        assert "was not built and reset" in str(actor.killed_for)
        assert server.signals[-1] == (child.pid, signal.SIGKILL)

    asyncio.run(story())


class Life:
    """Fork server that has forked a process, which sends a message; the server may then be lost."""

    def __init__(self, says: str, lost: bool) -> None:
        self.says, self.lost = says, lost

    async def fork(self, message: Any, fds: list[int], on_exit: Any) -> int:
        channel = dict(zip(message["fd_names"], fds, strict=True))["channel"]
        with socket.socket(fileno=os.dup(channel)) as theirs:
            send_frame(theirs, {"kind": self.says})
        if self.lost:
            raise ServerLost
        self.on_exit = on_exit
        return 2**22 + 1


class LostOnce(ForkServer):
    def __init__(self, *lives: Life) -> None:
        super().__init__()
        self.lives = [*lives]

    async def _running(self) -> Any:
        return self.lives.pop(0)


def test_a_process_of_a_lost_server_is_not_heard() -> None:
    """The server dies after forking and before reporting it; the next server forks again."""

    async def story() -> None:
        last = Life("second", lost=False)
        child = Child(LostOnce(Life("first", lost=True), last), "evaluator")
        await child.start(b"", {})
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await child.receive())["kind"] == "second"
        last.on_exit(ChildExit(child.pid, 0, 0))
        assert not child._frames
        await child.end()

    asyncio.run(story())


def test_a_process_forked_at_the_moment_of_a_cancellation_is_killed() -> None:
    """The answer has come, and its caller is cancelled before it runs: nobody would end the process."""

    class Ended(ServerProcess):
        command = ("-c", "")
        killed = 0

        def signal(self, pid: int, number: int, group: bool) -> None:
            assert (number, group) == (signal.SIGKILL, True)
            self.killed = pid

    async def story(server: Ended) -> None:
        forking = asyncio.create_task(server.fork({}, [], lambda _: None))
        await asyncio.sleep(0)
        server._on_frame({"event": "forked", "tag": 0, "pid": 7})
        forking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await forking
        assert forking.cancelled() and server.killed == 7

    with contextlib.closing(Ended(1.0, 1.0)) as server:
        asyncio.run(story(server))
