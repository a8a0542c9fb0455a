"""A small process that forks others for the tests of shared memory, and its client."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_SECONDS

import asyncrl


class Nursery:
    """Client of `shm_processes.py`, a single-threaded process that forks children in a few milliseconds each.

    pytest's own process may run threads and must not be forked; a fresh interpreter takes 300 ms to start.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(asyncrl.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        script = str(Path(__file__).with_name("shm_processes.py"))
        command = [sys.executable, script, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self._socket = ours
        self._socket.settimeout(100)
        assert self._call("hello") == "ready"

    def _call(self, verb: str, *args: Any, fds: tuple[int, ...] = ()) -> Any:
        data = pickle.dumps((verb, args))
        socket.send_fds(self._socket, [struct.pack("<I", len(data))], fds) if fds else self._socket.sendall(
            struct.pack("<I", len(data))
        )
        self._socket.sendall(data)
        (size,) = struct.unpack("<I", self._socket.recv(4, socket.MSG_WAITALL))
        return pickle.loads(self._socket.recv(size, socket.MSG_WAITALL))

    def fork(self, function: str, *args: Any, fds: tuple[int, ...] = ()) -> int:
        """Fork a child that calls `shm_processes.<function>(*fds, *args)`; returns its pid."""
        return int(self._call("fork", function, args, len(fds), fds=fds))

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a child and wait for its end; it must not have ended by itself."""
        status = self._call("kill", pid)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"child ended with {status}"

    def join(self, pid: int, *, killed: bool = False) -> Any:
        """Wait for a child's end; returns its function's result. `killed`: it must die of SIGKILL."""
        status, result = self._call("join", pid)
        if killed:
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (
                f"child ended with {status}"
            )
        else:
            assert status == 0, f"child {pid} failed: {result}"
        return result

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def nursery() -> Any:
    nursery = Nursery()
    yield nursery
    nursery.close()
