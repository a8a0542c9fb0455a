"""The process that forks actors: the other end of `ForkServer`.

It holds what every actor needs, already imported, and nothing that must not be forked: one thread, no event
loop, no torch. It does three things: it forks on request, it reports exits, and when the main process is gone
it kills the process group of every child and leaves. It never runs an environment's code.

    main -> here      {"do": "fork", ...} with descriptors, {"do": "signal", "pid", "signal", "group"}
    here -> main      {"event": "ready"}, {"event": "forked", "tag", "pid"}, {"event": "exited", "pid",
    "status", "max_rss_bytes"}
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from asyncrl.actors.frames import receive_frame, send_frame
from asyncrl.actors.guardian import Guardian

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Kept at 1 in every child, whatever the main process says: actors are the parallelism."""
_PR_SET_PDEATHSIG = 1
_CRASHED = 70
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def serve(control: socket.socket) -> None:
    """Fork children for whoever holds the other end of `control`, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(control, Guardian(control))
    _preload()
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared: no collection in a child ever touches their counts
    with contextlib.suppress(OSError):
        server.run()
    server.end_all()


def _preload() -> None:
    """Import what actors import and load the kernels they call, so that a fork finds both in memory."""
    import cloudpickle  # noqa: F401
    import gymnasium.envs.classic_control
    import gymnasium.vector
    import gymnasium.wrappers  # noqa: F401
    import numpy as np

    import asyncrl.acting.box
    import asyncrl.acting.policies
    import asyncrl.acting.stochastic
    import asyncrl.actors.worker  # noqa: F401
    from asyncrl.shm import WeightMailbox

    mailbox = WeightMailbox.create(1)
    mailbox.publish(np.zeros(1, np.float32))
    mailbox.close()
    np.random.default_rng(np.random.SeedSequence(0)).random()


class _Server:
    def __init__(self, control: socket.socket, guardian: Guardian) -> None:
        self._control = control
        self._guardian = guardian
        self._children: set[int] = set()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        send_frame(self._control, {"event": "ready"})
        poller = select.poll()
        for fd in (self._control.fileno(), self._wake_read):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._report_exits()
            if self._control.fileno() in ready:
                frame = receive_frame(self._control)
                if frame is None:
                    return
                self._obey(*frame)

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["do"] == "signal":
            self._signal(message["pid"], message["signal"], message["group"])
            return
        pid = os.fork()
        if pid == 0:
            self._become_child(message, fds)
        self._children.add(pid)
        self._guardian.add(pid)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does the same: whoever comes first
        for fd in fds:
            os.close(fd)
        send_frame(self._control, {"event": "forked", "tag": message["tag"], "pid": pid})

    def _become_child(self, message: dict[str, Any], fds: list[int]) -> None:
        """Everything a child is; never returns."""
        status = _CRASHED
        try:
            server_pid = os.getppid()
            os.setpgid(0, 0)
            _die_with_parent(server_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)
            self._control.close()
            self._guardian.forget()
            status = run_child(message, dict(zip(message["fd_names"], fds, strict=True)))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _signal(self, pid: int, number: int, group: bool) -> None:
        # Only children that were not reaped: their numbers cannot have been given to somebody else.
        if pid in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number) if group else os.kill(pid, number)

    def _report_exits(self) -> None:
        while (exited := self._reap()) is not None:
            send_frame(self._control, exited)

    def _reap(self) -> dict[str, Any] | None:
        """Collect one child that ended, and end what is left of its group; None where there is none."""
        try:
            # The child stays a zombie until wait4, so that its group's number is still its own here.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if found is None:
            return None
        pid = found.si_pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._guardian.discard(pid)
        _, status, usage = os.wait4(pid, 0)
        self._children.discard(pid)
        scale = 1 if sys.platform == "darwin" else 1024
        code = os.waitstatus_to_exitcode(status)
        return {"event": "exited", "pid": pid, "status": code, "max_rss_bytes": usage.ru_maxrss * scale}

    def end_all(self) -> None:
        """Kill every child's group and wait for them, a second at most."""
        for pid in list(self._children):
            self._signal(pid, signal.SIGKILL, group=True)
        deadline = time.monotonic() + 1.0
        while self._children and time.monotonic() < deadline:
            if self._reap() is None:
                select.select([self._wake_read], [], [], 0.01)


def run_child(message: dict[str, Any], fds: dict[str, int]) -> int:
    """What a forked process does after it has cut its ties to the server; returns its exit status."""
    # Ctrl-C is for the main process, which ends its actors in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if message["niceness"]:
        os.nice(message["niceness"])
    if message["log"] is not None:
        log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    if "stack" in fds:
        faulthandler.register(signal.SIGUSR1, file=fds["stack"], all_threads=True)
    _mirror(message)
    from asyncrl.actors.worker import run_role

    return run_role(message["role"], fds)


def _mirror(message: dict[str, Any]) -> None:
    """Look like the main process to user code: same import path, directory and environment variables."""
    threads = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update({**message["environ"], **threads})
    sys.path[:] = message["sys_path"]
    with contextlib.suppress(OSError):
        os.chdir(message["cwd"])


def _die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the fork server dies; leave at once if it already has."""
    if _libc is not None and _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), errno.errorcode.get(ctypes.get_errno(), "prctl failed"))
    if os.getppid() != parent:
        os._exit(_CRASHED)
