"""A child process killed, or refused space, at a chosen system call by ptrace, for the section `checkpoints`.

Linux on x86-64 only: the numbers of system calls and the offsets of registers are those of that machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from dataclasses import dataclass

TRACEME, PEEKUSER, POKEUSER, SYSCALL, SETOPTIONS = 0, 3, 6, 24, 0x4200
TRACESYSGOOD, EXITKILL = 1, 1 << 20
RAX, ORIG_RAX = 10 * 8, 15 * 8
WRITING_CALLS = {
    1: "write",
    18: "pwrite64",
    20: "writev",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    86: "link",
    87: "unlink",
    257: "openat",
    258: "mkdirat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    285: "fallocate",
    316: "renameat2",
}
"""System calls that a full disk may refuse, by number."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def trace_me() -> None:
    """Let the parent trace this process, and stop until it does."""
    _ptrace(TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


@dataclass
class Interruption:
    """One fault at one system call of a child that has called `trace_me`.

    Attributes:
        number: which system call: of all if the child is killed there, of `WRITING_CALLS` if it is refused.
        refuse: the call fails with ENOSPC and is not executed; otherwise the child is killed before the call.
        call: number of the system call that was hit, or None if the child ended before.
    """

    number: int
    refuse: bool
    call: int | None = None

    def watch(self, pid: int) -> int:
        """Let the child run to its end with this fault; returns its wait status."""
        os.waitpid(pid, 0)
        _ptrace(SETOPTIONS, pid, 0, TRACESYSGOOD | EXITKILL)
        seen, entering, refusing, signal_to_pass = 0, True, False, 0
        while True:
            _ptrace(SYSCALL, pid, 0, signal_to_pass)
            status = os.waitpid(pid, 0)[1]
            if not os.WIFSTOPPED(status):
                return status
            signal_to_pass = os.WSTOPSIG(status)
            if signal_to_pass != signal.SIGTRAP | 0x80:
                continue
            signal_to_pass = 0
            if entering:
                call = _ptrace(PEEKUSER, pid, ORIG_RAX)
                counted = not self.refuse or call in WRITING_CALLS
                if counted and seen == self.number:
                    self.call, refusing = call, self.refuse
                    self._strike(pid)
                seen += counted
            elif refusing:
                _ptrace(POKEUSER, pid, RAX, -errno.ENOSPC)
                refusing = False
            entering = not entering

    def _strike(self, pid: int) -> None:
        if self.refuse:
            _ptrace(POKEUSER, pid, ORIG_RAX, -1)  # no such call: nothing is executed
        else:
            os.kill(pid, signal.SIGKILL)


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    result: int = _libc.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno() and request != PEEKUSER:
        code = ctypes.get_errno()
        if code != errno.ESRCH:  # the child was killed between two stops
            raise OSError(code, f"ptrace: {os.strerror(code)}")
    return result
