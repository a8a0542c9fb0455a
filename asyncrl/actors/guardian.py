"""The last resort against orphans: a process that outlives the fork server by a millisecond.

The kernel kills an actor when the fork server dies, but not what the actor's environment has started, and the main
process, which would then kill the groups, may have died with the server. So the server forks, before it has imported
anything, a process that does nothing but remember which groups are alive, and kills them when the server is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket


class Guardian:
    """The server's end of the pipe to its guardian.

    Args:
        control: the server's socket to the main process, which the guardian must not hold open.
    """

    def __init__(self, control: socket.socket) -> None:
        read_fd, self._write_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write_fd)
                control.close()
                os.setsid()
                _guard(read_fd)
            finally:
                os._exit(0)
        os.close(read_fd)

    def add(self, group: int) -> None:
        """A process group that must not outlive the server."""
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        """A process group that is gone."""
        self._tell(f"-{group}\n")

    def forget(self) -> None:
        """For a forked child: the pipe must close with the server, so nobody else may hold it."""
        os.close(self._write_fd)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_fd, line.encode())


def _guard(read_fd: int) -> None:
    """Remember groups until the pipe is closed, then kill those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(read_fd) as lines:
        for line in lines:
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
