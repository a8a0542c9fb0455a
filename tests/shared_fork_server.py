"""Fork server processes that the runs of successive tests share: importing numba and gymnasium takes it a second.

A server process serves one run at a time and never runs an environment's code, so a run that ends in good order can
leave it to the next one. What a test does to it (kill, suspension, a fork that is never answered) ends it as usual.

It has imported pytest and asyncrl's public names, too: each process whose environment is a test module's imports that
module, which takes it 0.25 s of CPU less.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from typing import ClassVar

import psutil
import pytest

import asyncrl.actors.forkserver as forkserver
from asyncrl.actors.server_process import ServerProcess

_CLOSE_SECONDS = 2.0
_MOST_KEPT = 2
"""A command's server and that of a run which the command starts."""
_SERVE = """
import runpy
import asyncrl.actors.forking as forking
own = forking._preload

def preload():
    import pytest
    exec("from asyncrl import *", {})
    own()

forking._preload = preload
runpy.run_module("asyncrl.actors.forkserver", run_name="__main__", alter_sys=True)
"""


class SharedProcess(ServerProcess):
    """A server process whose `close` kills its children and keeps it for a later run, if it is sound.

    Attributes:
        kept: the processes that wait for a run.
    """

    command = ("-c", _SERVE)
    kept: ClassVar[list[SharedProcess]] = []

    def __new__(cls, *_: float) -> SharedProcess:
        """Return a kept process that is alive, if there is one."""
        while cls.kept:
            found = cls.kept.pop()
            if found._is_sound():
                return found
            ServerProcess.close(found)
        return super().__new__(cls)

    def __init__(self, ready_seconds: float, request_seconds: float) -> None:
        if not hasattr(self, "_wire"):
            super().__init__(ready_seconds, request_seconds)

    @property
    def pids(self) -> set[int]:
        """Process ids of the guardian and the server."""
        return {self._process.pid, self.pid}

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket."""
        return self._wire._socket.fileno()

    def close(self) -> None:
        """Kill and reap the children; keep the process if that succeeds and few are kept, end it otherwise."""
        self._detach()
        if len(self.kept) < _MOST_KEPT and self.was_ready and self._has_ended_all():
            self.kept.append(self)
        else:
            super().close()

    def _has_ended_all(self) -> bool:
        """Kill the children; return whether the server has answered everything and reported every exit in time."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self.lost and (self._requests or self._children) and time.monotonic() < deadline:
            self._children = dict.fromkeys(self._children, _nothing)
            for request in self._requests._open.values():
                request.on_exit = _nothing
            self._kill_children()
            select.select([self.descriptor], [], [], 0.1)
            self._on_readable()
        return not (self.lost or self._requests or self._children)

    def _is_sound(self) -> bool:
        """Whether the idle process runs and has sent nothing."""
        with contextlib.suppress(psutil.Error):
            running = psutil.Process(self.pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
            return running and not select.select([self.descriptor], [], [], 0)[0]
        return False


def _nothing(_: object) -> None:
    """The exit callback of a child whose run has ended."""


@pytest.fixture(autouse=True, scope="session")
def shared_fork_server() -> Iterator[None]:
    """Let runs of this process share a fork server; end it after the last test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "ServerProcess", SharedProcess)
        yield
    for kept in SharedProcess.kept:
        ServerProcess.close(kept)


@pytest.fixture
def own_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a new fork server process whenever the test asks for one."""
    monkeypatch.setattr(forkserver, "ServerProcess", ServerProcess)
