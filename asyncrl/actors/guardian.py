"""The fork server's parent: whatever the server and its children started does not outlive them.

The kernel kills an actor when the fork server dies (PR_SET_PDEATHSIG), but not what the actor's environment has
started; and the main process, which could, may have died with the server. So the first process of the fork server is
a guardian. It forks the server before anything is imported, and does nothing but wait for its end:

    main process ── guardian ── fork server ── actor ── helper processes of an environment

Guardian, server and actors are subreapers (PR_SET_CHILD_SUBREAPER): a process whose parent ended becomes a child of the
nearest of them above it, in whatever session or group it is. A helper that leaves its session therefore stays under its
actor while that lives. When the actor ends, its helpers become children of the server, which kills every child that it
did not fork. When the server ends, everything becomes a child of the guardian, which kills it all and leaves. Its exit
means that nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CRASHED = 70
_END_SECONDS = 3.0
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def guard(control: socket.socket) -> None:
    """Fork. The child returns and becomes the fork server; the parent is the guardian and never returns.

    Args:
        control: the server's socket to the main process, which the guardian must not hold open.
    """
    become_subreaper()
    guardian = os.getpid()
    server = os.fork()
    if server == 0:
        die_with_parent(guardian)
        return
    status = _CRASHED
    try:
        control.close()
        status = _guard(server)
    finally:
        os._exit(status)


def _guard(server: int) -> int:
    """Wait for the server's end, end all that it leaves; returns an exit status, 128 + n for signal n.

    SIGTERM kills the server: the main process sends it where the server does not answer.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGKILL))
    pid = status = 0
    while pid != server:
        pid, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_all()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_all() -> None:
    """Kill every child, and those that become children by that, until there is none; `_END_SECONDS` at most."""
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
    """SIGKILL to a child that was not reaped, and to the process group that it leads, if it does."""
    signal_group(pid, signal.SIGKILL)


def signal_group(pid: int, number: int) -> None:
    """A signal to the group that a child led when it was forked, and to the child, which may have left that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) != pid:
            os.kill(pid, number)


def children() -> set[int]:
    """Process ids of this single-threaded process's children; empty where the system does not list them."""
    try:
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    except OSError:
        return _children_by_search() if Path("/proc/self/stat").exists() else set()


def _children_by_search() -> set[int]:
    """The same on a kernel without CONFIG_PROC_CHILDREN: by the parent of every process."""
    found, own = set(), os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # "pid (name) state parent ...": the name may hold anything, spaces and brackets too.
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == own:
                    found.add(int(entry.name))
    return found


def become_subreaper() -> None:
    """Be the new parent of every descendant whose parent ends, as init is; does nothing but on Linux."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; leave at once if it already has."""
    if _libc is not None and _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        os._exit(_CRASHED)
