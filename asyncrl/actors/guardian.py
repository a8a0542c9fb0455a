"""The guardian, the fork server's parent: it kills all descendants of a server that has ended.

The kernel kills an actor when the fork server dies (PR_SET_PDEATHSIG), but not the processes that the actor's
environment has started; and the main process may have died with the server. So the first process of the fork server is
a guardian. It forks the server before importing anything else, and waits for its end:

    main process ── guardian ── fork server ── actor ── helper processes of an environment

Guardian, server and actors are subreapers (PR_SET_CHILD_SUBREAPER): a process whose parent has ended becomes a child of
its nearest such ancestor, also in another session or process group. So a helper that leaves its session stays a
descendant of its actor. When the actor ends, its helpers become children of the server, which kills every child that it
did not fork. When the server ends, all become children of the guardian, which exits after it has killed them.

The server exits when the main process has ended. A server that is suspended does not, so the guardian looks at its own
parent as well: it kills the server once the main process has ended. PR_SET_PDEATHSIG would end the guardian with the
thread that started it, not with the main process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from asyncrl.timer_slack import USUAL_NANOSECONDS, set_timer_slack

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CRASHED = 70
_END_SECONDS = 3.0
_CHECK_SECONDS = 0.5
"""Interval at which the guardian checks whether the main process has ended."""
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def guard(control: socket.socket, main: int) -> None:
    """Fork; the child returns and becomes the fork server, the parent is the guardian and never returns.

    Args:
        control: the server's socket to the main process, which the guardian closes.
        main: process id of the main process, the guardian's parent.
    """
    become_subreaper()
    set_timer_slack(USUAL_NANOSECONDS)  # whatever it is in the thread that started this process
    guardian = os.getpid()
    server = os.fork()
    if server == 0:
        die_with_parent(guardian)
        return
    status = _CRASHED
    try:
        control.close()
        status = _guard(server, main)
    finally:
        os._exit(status)


def _guard(server: int, main: int) -> int:
    """Wait for the server's end, kill its descendants, and return its exit status, 128 + n for signal n.

    The guardian kills the server when the main process has ended, and on SIGTERM, which the main process sends when the
    server does not answer.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: kill_with_group(server))
    status = _wait_for(server, main)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _wait_for(server: int, main: int) -> int:
    """Reap children until the server has ended, and return its wait status; kill it if the main process ends first."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == server:
            return status
        if pid == 0:
            if os.getppid() != main:
                os.kill(server, signal.SIGKILL)
            select.select([wake_read], [], [], _CHECK_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)


def _end_all() -> None:
    """Kill all children, including those that become children meanwhile, for at most `_END_SECONDS`."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        for pid in children():
            kill_with_group(pid)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.002)


def kill_with_group(pid: int) -> None:
    """Send SIGKILL to a child, and to the process group that it leads, if any; do nothing if it was just reaped."""
    signal_group(pid, signal.SIGKILL)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group that a child led when it was forked, and to the child if it has left that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) != pid:
            os.kill(pid, number)


def children() -> set[int]:
    """Process ids of this single-threaded process's children; empty if the system does not list them."""
    try:
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    except OSError:
        return _children_by_search() if Path("/proc/self/stat").exists() else set()


def _children_by_search() -> set[int]:
    """`children` on a kernel without CONFIG_PROC_CHILDREN, by the parent of every process."""
    found, own = set(), os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # "pid (name) state parent ...": the name may contain spaces and brackets.
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == own:
                    found.add(int(entry.name))
    return found


def become_subreaper() -> None:
    """Become the new parent of every descendant whose parent ends, in place of init; Linux only, else do nothing."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel send SIGKILL when the parent dies (Linux only); exit at once if it already has."""
    if _libc is not None and _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        os._exit(_CRASHED)
