"""The process that forks actors: the other end of `ForkServer`.

It has imported everything that actors need, and contains nothing that must not be forked: it has one thread, no event
loop and no torch. It forks on request; it reports exits and kills processes that a child has left behind; and it exits
when the main process has ended, after which its guardian kills the rest. It never runs an environment's code.

    main -> here      {"do": "fork", "tag", ...} with descriptors
                      {"do": "signal", "tag", "pid", "signal", "group"}
    here -> main      {"event": "ready", "pid"}
                      {"event": "forked", "tag", "pid"}, {"event": "refused", "tag", "why"}
                      {"event": "signalled", "tag"}
                      {"event": "exited", "pid", "status", "max_rss_bytes"}

Every request is answered, so the main process notices a server that hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import socket
import sys
from typing import Any

from asyncrl.actors.frames import receive_frame, send_frame
from asyncrl.actors.guardian import (
    become_subreaper,
    children,
    die_with_parent,
    guard,
    kill_with_group,
    signal_group,
)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables set to 1 in every child, regardless of the main process: parallelism is by actors."""
_CHECK_MILLISECONDS = 1000
"""Interval at which the server checks for ended children of which it received no SIGCHLD."""
_CRASHED = 70


def serve(control: socket.socket, main: int) -> None:
    """Serve the fork requests on `control` until its other end, of the process with id `main`, is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a mask passes exec: the caller may have SIGCHLD blocked
    guard(control, main)
    become_subreaper()
    server = _Server(control)
    gc.disable()  # imports free nothing
    _preload()
    gc.enable()
    gc.freeze()  # keeps pages of imported objects shared: a collection in a child does not write to them
    with contextlib.suppress(OSError):
        server.run()


def _preload() -> None:
    """Import the modules and load the kernels that actors use, so that forks share them."""
    import cloudpickle  # noqa: F401
    import gymnasium.envs.classic_control
    import gymnasium.vector
    import gymnasium.wrappers  # noqa: F401
    import numpy as np

    import asyncrl.acting.box
    import asyncrl.acting.policies
    import asyncrl.acting.stochastic
    import asyncrl.actors.worker  # noqa: F401
    from asyncrl.shm.prepare import prepare_quietly

    # The kernels of served actors are compiled by the main process of a run that has such actors.
    prepare_quietly(without=("asyncrl.shm.requests",))
    np.random.default_rng(np.random.SeedSequence(0)).random()


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: set[int] = set()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        send_frame(self._control, {"event": "ready", "pid": os.getpid()})
        poller = select.poll()
        for fd in (self._control.fileno(), self._wake_read):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(_CHECK_MILLISECONDS)}
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            self._report_exits()  # in every round: a signal may be lost
            if self._control.fileno() in ready:
                frame = receive_frame(self._control)
                if frame is None:
                    return
                message, fds = frame
                self._obey(message, fds)

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["do"] == "signal":
            self._signal(message["pid"], message["signal"], message["group"])
            send_frame(self._control, {"event": "signalled", "tag": message["tag"]})
        else:
            send_frame(self._control, {**self._fork(message, fds), "tag": message["tag"]})
        for fd in fds:
            os.close(fd)

    def _fork(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        if len(fds) != len(message["fd_names"]):  # the kernel drops descriptors beyond the limit
            return {"event": "refused", "why": "too many open files in the fork server"}
        try:
            pid = os.fork()
        except OSError as error:
            return {"event": "refused", "why": str(error)}
        if pid == 0:
            self._become_child(message, fds)
        self._children.add(pid)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does the same; the first call counts
        return {"event": "forked", "pid": pid}

    def _become_child(self, message: dict[str, Any], fds: list[int]) -> None:
        """Run the child process; never returns."""
        status = _CRASHED
        try:
            server_pid = os.getppid()
            os.setpgid(0, 0)
            die_with_parent(server_pid)
            become_subreaper()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)
            self._control.close()
            status = run_child(message, dict(zip(message["fd_names"], fds, strict=True)))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _signal(self, pid: int, number: int, group: bool) -> None:
        # Only children that were not reaped: the kernel cannot have reused their process ids.
        if pid in self._children:
            if group:
                signal_group(pid, number)
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def _report_exits(self) -> None:
        while (pid := self._next_exited()) is not None:
            self._reap(pid)
        # A running actor is the subreaper of its orphaned descendants. A child that this process did not fork is
        # therefore a descendant of an actor that has ended.
        for pid in children() - self._children:
            kill_with_group(pid)

    def _next_exited(self) -> int | None:
        """Return a child that has ended and was not reaped, or None."""
        try:
            # It stays a zombie until wait4, so its process group id is not reused before `_reap` kills the group.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if found is None else found.si_pid

    def _reap(self, pid: int) -> None:
        """Kill the rest of the group of a child that has ended, reap it, and report it if it was forked here."""
        kill_with_group(pid)
        _, status, usage = os.wait4(pid, 0)
        if pid not in self._children:
            return
        self._children.discard(pid)
        scale = 1 if sys.platform == "darwin" else 1024
        code = os.waitstatus_to_exitcode(status)
        exited = {"event": "exited", "pid": pid, "status": code, "max_rss_bytes": usage.ru_maxrss * scale}
        send_frame(self._control, exited)


def run_child(message: dict[str, Any], fds: dict[str, int]) -> int:
    """Run the role of a forked process once it is detached from the server; return its exit status."""
    # Ctrl-C is for the main process, which ends its actors in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if message["log"] is not None:
        log = open_log(message["log"])
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    # On a fatal signal faulthandler writes the Python stacks to a file of the main process; see `ChildDied.crash`.
    faulthandler.enable(file=fds["stack"], all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=fds["stack"], all_threads=True)
    packed = os.fdopen(fds["payload"], "rb")
    packed.seek(0)
    _mirror(pickle.load(packed))
    from asyncrl.actors.worker import run_role

    return run_role(message["role"], packed, fds)


def open_log(path: str) -> int:
    """Open the log for appending and return the descriptor; that of the null device if it cannot be opened.

    If the run's directory was removed it is created again. A log that cannot be opened does not end an actor.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _mirror(surroundings: dict[str, Any]) -> None:
    """Copy the main process's import path, working directory and environment variables, but for `THREAD_VARIABLES`."""
    threads = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update({**surroundings["environ"], **threads})
    sys.path[:] = surroundings["sys_path"]
    if surroundings["cwd"] is not None:
        with contextlib.suppress(OSError):
            os.chdir(surroundings["cwd"])
