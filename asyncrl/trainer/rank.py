"""Process of one rank that `Trainer(groups=N)` has started: `python -m asyncrl.trainer.rank DIRECTORY`.

It runs the directory's job as one group, sends messages to the launcher, and ends normally if the launcher dies, whose
directory it then removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
from pathlib import Path

from asyncrl.errors import AsyncRLError, GroupLost, StoppedWhileStarting
from asyncrl.groups.place import quiet_stores
from asyncrl.run.job import Job
from asyncrl.run.switching import own_process
from asyncrl.trainer.channel import Channel, sendable
from asyncrl.trainer.pool_worker import error_of, send_snapshots
from asyncrl.trainer.ranks import JOB, SOCKET, remove
from asyncrl.trainer.trainer import Trainer

_PR_SET_PDEATHSIG = 1


def main(directory: Path) -> int:
    """Run one rank; returns the exit code."""
    quiet_stores()
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    place_on_machine()
    rank, parent = int(os.environ["RANK"]), os.getppid()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(directory / SOCKET))
    except (ConnectionRefusedError, FileNotFoundError):  # the launcher was killed meanwhile
        connection.close()
        remove(directory)
        return 0
    launcher = Channel(connection)
    launcher.send("hello", rank, os.getpid())
    with (directory / JOB).open("rb") as file:
        sys.path[:] = pickle.load(file)  # the launcher's, on which the environment's module may be
        job: Job = pickle.load(file)
    trainer = Trainer._of_job(job)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: trainer.stop("interrupted"))
    threading.Thread(target=_obey, args=(launcher, trainer), name="asyncrl-launcher", daemon=True).start()
    if rank == 0:
        send_snapshots(
            trainer,
            lambda page: launcher.send("url", trainer.url, page),
            lambda snapshot: launcher.send("snapshot", snapshot),
        )
    trainer._start(callbacks=(_Relay(launcher),) if rank == 0 else ())
    error = error_of(trainer)
    if rank == 0 or error is not None:
        launcher.send("result", rank, trainer.result if rank == 0 else None, sendable(error))
    launcher.close()
    if os.getppid() != parent:  # the launcher was killed
        remove(directory)
    if error is None or isinstance(error, StoppedWhileStarting | GroupLost):
        return 0  # otherwise the agent would restart this rank; the launcher already has the error
    return error.exit_code if isinstance(error, AsyncRLError) else 1


def place_on_machine() -> None:
    """Correct torchrun's variables: all ranks of a launcher are on its machine, even if each has its own agent."""
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = os.environ["RANK"], os.environ["WORLD_SIZE"]


class _Relay:
    """Callback that sends checkpoint events to the launcher, which has the user's callbacks."""

    def __init__(self, launcher: Channel) -> None:
        self._launcher = launcher

    def on_checkpoint(self, trainer: Trainer, path: str) -> None:
        """See `Callback`."""
        self._launcher.send("checkpoint", path)


def _obey(launcher: Channel, trainer: Trainer) -> None:
    """Obey the launcher's messages; stop the run when it sends `stop` or its connection ends."""
    while (message := launcher.receive()) is not None:
        if message[0] == "stop":
            trainer.stop(message[1])
        elif message[0] == "log":
            with contextlib.suppress(RuntimeError):  # the run has ended
                trainer.log(message[1])
    trainer.stop("interrupted")


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a mask passes exec: that of the launcher's caller
    with own_process():
        code = main(Path(sys.argv[1]))
    sys.exit(code)
